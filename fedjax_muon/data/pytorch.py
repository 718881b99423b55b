"""Datasets of PyTorch, which need not be installed."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.data.dataset import Dataset, Examples
from fedjax_muon.data.user_files import from_arrays


def from_torch(
    examples: Iterable[Any],
    *,
    test: Iterable[Any] | None = None,
    test_share: float = 0.2,
    owners: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Makes a dataset from a `torch.utils.data.Dataset` or a `DataLoader`.

    Images [channels, height, width], as torchvision's `ToTensor` makes them, become
    [height, width, channels]. Examples are read once: random transforms are drawn once,
    so leave out those that augment.

    Args:
      examples: Pairs of an input and a label; or a `DataLoader` of batches of these,
        which must not shuffle if there are owners.
      test: Pairs for testing; by default, `test_share` of the examples.
      owners: Owner of every example, integers or strings [n].
      classes: Names of the classes; by default `examples.classes`, or the labels.

    Example:
      >>> pairs = [(np.full((1, 8, 8), i / 20), i % 2) for i in range(20)]
      >>> from_torch(pairs)
      Dataset(20 examples (16 to train, 4 to test), 8 x 8 x 1, 2 classes: 0, 1)
    """
    x, y = _arrays("examples", examples)
    names = getattr(examples, "classes", None) if classes is None else classes
    tested = None if test is None else _arrays("test", test)
    share: Any = {"test": tested, "test_share": test_share}
    return from_arrays(x, y, owners=owners, classes=names, **share)


def _arrays(name: str, examples: Any) -> Examples:
    """Inputs with channels last, and labels."""
    loaded = hasattr(examples, "batch_sampler")  # batches of a DataLoader
    xs, ys = list[np.ndarray](), list[np.ndarray]()
    # by number, since a Dataset need not end an iteration
    count = None if loaded or not hasattr(examples, "__len__") else len(examples)
    several = examples if count is None else map(examples.__getitem__, range(count))
    for i, pair in enumerate(several):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(
                f"{name} must be pairs of an input and a label, got "
                f"{type(pair).__name__} in place {i}"
            )
        x, y = map(np.asarray, pair)
        shape = x.shape[1:] if loaded else x.shape
        first = xs[0].shape[1:] if xs else shape
        if shape != first:
            raise ValueError(
                f"{name} must have inputs of one shape, got {list(first)} in place 0 "
                f"and {list(shape)} in place {i}; resize or pad them with a transform"
            )
        xs.append(x if loaded else x[None])
        ys.append(np.atleast_1d(y))
    if not xs:
        raise ValueError(f"{name} has no examples")
    x = np.concatenate(xs)
    return (x.transpose(0, 2, 3, 1) if x.ndim == 4 else x), np.concatenate(ys)
