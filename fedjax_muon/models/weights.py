"""Parameters in files of safetensors, which other programs read.

Every leaf is one tensor, named by its path with dots, such as "Dense_0.kernel".
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import flax.serialization
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_muon.files import reading, write
from fedjax_muon.versions import check_installed

KEY = "fedjax_muon"  # of the metadata in a file


def save_params(
    path: str | Path,
    params: Any,
    *,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes parameters to a file, completely or not at all.

    Requires the extra `export`.

    Args:
      path: A name that ends in `.safetensors`.
      params: Parameters, a pytree of arrays in dictionaries and named tuples.
      metadata: Values that JSON can represent, which `load_metadata` returns.

    Example:
      >>> about = {"lr": 0.1}
      >>> path = fm.save_params("digits.safetensors", state.params, metadata=about)
    """
    path = Path(path)
    check_target(path, overwrite=overwrite)
    from safetensors.numpy import save

    tensors: dict[str, np.ndarray] = {}
    for place, leaf in _leaves(params).items():
        name = ".".join(place)
        if name in tensors:
            raise ValueError(f"two parameters have the name {name}; rename one")
        tensors[name] = np.asarray(leaf, order="C")
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, save(tensors, {KEY: json.dumps(dict(metadata or {}))}))
    return path


def load_params(path: str | Path, like: Any) -> Any:
    """Reads parameters that `save_params` or `fedjax-muon export` wrote.

    Args:
      like: Parameters of the same model, or their `jax.ShapeDtypeStruct`s, with the
        structure of the result.

    Example:
      >>> path = fm.save_params("weights.safetensors", state.params)
      >>> params = fm.load_params(path, like=task.init(jax.random.key(0)))
    """
    with opened(Path(path)) as file:
        names = file.keys()
        stored = {name: file.get_tensor(name) for name in names}
    wanted = _leaves(like)
    expected = {".".join(place): _shown(leaf) for place, leaf in wanted.items()}
    actual = {name: _shown(leaf) for name, leaf in stored.items()}
    for name in [*expected, *actual]:
        if actual.get(name) != expected.get(name):
            raise ValueError(
                f"{path} has weights of another model: {name} is "
                f"{actual.get(name, 'missing')}, expected {expected.get(name, 'none')}"
            )
    leaves = {place: jnp.asarray(stored[".".join(place)]) for place in wanted}
    return flax.serialization.from_state_dict(like, unflatten_dict(leaves))


def load_metadata(path: str | Path) -> dict[str, Any]:
    """Reads the metadata that `save_params` or `fedjax-muon export` wrote.

    `fedjax-muon export` writes the names of the algorithm, the dataset and the classes,
    the model with its options, and the mean and the standard deviation that inputs were
    standardized with. The result is empty if the file has no metadata.

    Example:
      >>> path = fm.save_params("m.safetensors", state.params, metadata={"lr": 0.1})
      >>> fm.load_metadata(path)["lr"]
      0.1
    """
    with opened(Path(path)) as file:
        return json.loads((file.metadata() or {}).get(KEY, "{}"))


def check_target(path: Path, *, overwrite: bool) -> None:
    """Checks, as far as is known before, that parameters can be written to a path."""
    _check_name(path)
    if path.exists() and not overwrite:
        raise ValueError(
            f"{path} exists already; choose another name, or replace it (overwrite)"
        )
    if path.is_dir():
        raise ValueError(f"{path} is a directory; choose another name")


def _check_name(path: Path) -> None:
    if path.suffix.lower() != ".safetensors":
        raise ValueError(
            f"the name of a parameter file must end in .safetensors, got {str(path)!r}"
        )
    check_installed("safetensors", "a file of safetensors")


def _leaves(params: Any) -> dict[tuple[str, ...], Any]:
    return flatten_dict(flax.serialization.to_state_dict(params))


def _shown(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"


@contextlib.contextmanager
def opened(path: Path, remedy: str = "export it again") -> Iterator[Any]:
    """What reads the tensors of a file by their names, one by one."""
    _check_name(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    from safetensors import SafetensorError, safe_open

    wanted = "tensors in the format of safetensors"
    with (
        reading(path, wanted, remedy, found="", errors=(SafetensorError,)),
        safe_open(path, framework="numpy") as file,
    ):
        yield file
