"""A trained model as others use it: predictions for inputs as they were given.

    result = fm.train(fm.fedmuon, problem)
    result.save("model.safetensors")

    model = fm.load_model("model.safetensors")
    model.predict("patients.csv").labels

The file has the parameters, and in its metadata the classes and how inputs are made.
"""

import csv
import dataclasses
import functools
import hashlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from fedjax_muon import models
from fedjax_muon.core import Variables
from fedjax_muon.data import Dataset, Standardization, check_standardization, tokenizers
from fedjax_muon.data.cleaning import OF_NUMPY
from fedjax_muon.data.columns import (
    Columns,
    cells_of,
    check_there,
    from_json,
    read_rows,
)
from fedjax_muon.data.csv_files import Entries
from fedjax_muon.data.dataset import TOKEN_TYPES, not_finite
from fedjax_muon.data.images import FORMATS, decoded
from fedjax_muon.data.text import UNKNOWN, encode
from fedjax_muon.data.tokenizers import Tokenizer
from fedjax_muon.files import visible
from fedjax_muon.models.weights import load_metadata, opened, save_params
from fedjax_muon.runs.about import about_model
from fedjax_muon.tasks.classification import logits_of

MADE: tuple[Callable[..., Any], ...] = (  # of all models that a file can describe
    models.MLP,
    models.LeNet,
    models.EmnistCNN,
    models.ResNet18,
    models.ViT,
    models.vit_tiny,
    models.RNN,
    models.lstm,
    models.gru,
    models.GPT,
    models.llama,
)
TOGETHER = 256  # examples in a call
PRIMAL = {"model", "w1", "w2"}  # the variables of `tasks.auc` that are minimized


class Predictions(NamedTuple):
    """What a model says about n examples."""

    examples: tuple[str, ...]  # their names, or their numbers from 0
    labels: np.ndarray  # [n], the likeliest classes; or float32, targets
    probabilities: np.ndarray  # float32 [n, classes]; of targets [n, 0]
    classes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """A table in the form of CSV."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["example", "label", *self.classes])
        labels = self.labels
        shown = labels if self.classes else [f"{each:.6g}" for each in labels]
        for name, label, row in zip(
            self.examples, shown, self.probabilities, strict=True
        ):
            table.writerow([name, label, *(f"{each:.6g}" for each in row)])
        return text.getvalue().removesuffix("\n")


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """Parameters with what is needed to use them."""

    params: Any
    about: Mapping[str, Any]  # as `load_metadata` returns it
    module: nn.Module

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Writes the model to one file, which `load_model` reads.

        Args:
          path: A name that ends in `.safetensors`.
        """
        return save_params(path, self.params, metadata=self.about, overwrite=overwrite)

    def predict(self, x: Any) -> Predictions:
        """Predicts the classes or the targets of examples.

        Args:
          x: Examples as they were before training: numbers [n, ...], which are
            standardized here; the path of a CSV file, or columns by name, such as a
            `pandas.DataFrame`; texts, if it was trained on them; the path of an image
            or of a folder of them, or several paths, which are resized to the size of
            the training images. Or a `Dataset`, whose test examples are standardized
            already.

        Raises:
          ValueError: If the examples do not have the form of the training examples.
        """
        if "classes" not in self.about:
            raise ValueError(
                "this model continues texts and has no classes; use sample"
            )
        names, inputs = self._inputs(x)
        shape = tuple(self.about["input_shape"])
        if inputs.shape[1:] != shape or not len(inputs):
            raise ValueError(
                f"this model takes one or more examples of shape {list(shape)}, got "
                f"{list(inputs.shape)}"
            )
        run, weights = self._run, self._weights
        rows = np.concatenate([np.asarray(run(weights, x)) for x in _parts(inputs)])
        rows = rows[: len(inputs)]
        if "target" in self.about:
            return Predictions(tuple(names), rows[:, 0], rows[:, 1:])
        classes = tuple(self.about["classes"])
        labels = np.array(classes)[rows.argmax(1)]
        return Predictions(tuple(names), labels, rows, classes)

    @functools.cached_property
    def _weights(self) -> Any:
        """The parameters of the module; of agents, the mean over all."""
        weights: Any = flax.serialization.to_state_dict(self.params)
        if isinstance(weights.get("x"), Mapping) and {*weights["x"]} == PRIMAL:
            weights = weights["x"]["model"]
        if "adapters" in weights:
            raise ValueError(
                "these are adapters of a model; merge them first, with "
                "fm.tasks.lora.merged(task, params)"
            )
        if {*weights} == {*Variables._fields}:
            weights = Variables(**weights)
        mean = (lambda x: x.mean(0)) if self.about.get("agents") else lambda x: x
        return jax.tree.map(lambda x: mean(jnp.asarray(x)), weights)

    @functools.cached_property
    def _run(self) -> Callable[..., jax.Array]:
        outputs = functools.partial(logits_of, self.module)
        if (scale := self.about.get("target")) is not None:
            return jax.jit(lambda w, x: outputs(w, x) * scale["std"] + scale["mean"])
        return jax.jit(lambda w, x: jax.nn.softmax(outputs(w, x)))

    def _inputs(self, x: Any) -> tuple[Sequence[str], np.ndarray]:
        """The names of examples, and what the module takes."""
        scales = _standardization(self.about)
        if isinstance(x, Dataset):
            check_standardization(scales, x.standardization)
            return _numbered(x.x_test), x.x_test
        columns = self.about.get("columns")
        is_path = isinstance(x, str | os.PathLike)
        several = isinstance(x, list | tuple) and x and _is_path(x[0])
        if "words" in self.about and several:
            words = {word: i for i, word in enumerate(self.about["words"], UNKNOWN + 1)}
            return x, encode(words, x, *self.about["input_shape"])
        if columns is not None and (is_path or hasattr(x, "keys")):
            raw = _of_table(from_json(columns), x)
        elif is_path or several:
            names, raw = self._images([x] if is_path else x)
            return names, scales.of_rows(raw) if scales else raw
        else:
            raw = np.asarray(x)
            is_ids = scales is None and raw.dtype in TOKEN_TYPES
            if not is_ids and (raw.dtype.kind not in "iufb" or not_finite(raw)):
                raise ValueError(
                    f"x must be finite numbers, or {self._known}, got {raw.dtype}"
                    f"{list(raw.shape)}"
                )
        if scales is not None and raw.shape[-1:] == scales.mean.shape:
            raw = scales.apply(raw)
        return _numbered(raw), raw

    @property
    def _known(self) -> str:
        known = {"columns": "a CSV file or columns by name", "words": "texts"}
        found = [words for name, words in known.items() if name in self.about]
        return found[0] if found else "paths of images"

    def _images(self, given: Sequence[Any]) -> tuple[list[str], np.ndarray]:
        """Images of the size and the channels of the training images."""
        shape = self.about["input_shape"]
        if len(shape) != 3:
            raise ValueError(
                f"this model takes examples of shape {shape}, not files; give an "
                "array of numbers"
            )
        paths = list[Path]()
        for place in map(Path, given):
            inner = visible(place, "**/*") if place.is_dir() else [place]
            paths += [p for p in inner if p.suffix.lower() in FORMATS]
        if not paths:
            raise ValueError(
                f"{given[0]}: expected images in {', '.join(FORMATS)}, found none"
            )
        pixels = decoded(paths, paths.__getitem__, (shape[0], shape[1]))
        if pixels.shape[-1] == 1:
            pixels = np.repeat(pixels, shape[2], axis=-1)
        return [*map(str, paths)], pixels

    def sample(
        self,
        prompt: str,
        length: int | None = None,
        *,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
    ) -> str:
        """Continues a text.

        Args:
          prompt: The beginning.
          length: Number of tokens to draw; by default, what the model's context holds.
          temperature: Logits are divided by it; below 1, likely tokens become likelier.
          top_k: Tokens are drawn from the `top_k` likeliest ones; by default from all.

        Returns:
          The prompt and its continuation.
        """
        if "tokenizer" not in self.about:
            raise ValueError("this model has no tokenizer, and can't continue texts")
        tokenizer = _tokenizer(self.about["tokenizer"])
        ids = tokenizer.encode(prompt)
        module: Any = self.module
        rest = module.context - len(ids) if length is None else length
        key = jax.random.key(seed)
        how: Any = {"temperature": temperature, "top_k": top_k}
        drawn = models.generate(module, self._weights, ids, rest, key, **how)
        return tokenizer.decode(drawn)


def load_model(path: str | Path, module: nn.Module | None = None) -> TrainedModel:
    """Reads a model that `TrainedModel.save` or `fedjax-muon export` wrote.

    Args:
      module: The module that was trained, if it is not one of `fedjax_muon.models`.

    Example:
      >>> model = load_model("model.safetensors")  # doctest: +SKIP
      >>> model.predict({"age": [61], "sex": ["F"]}).labels  # doctest: +SKIP
      array(['ill'], dtype='<U4')
    """
    with opened(Path(path)) as file:
        names = file.keys()
        leaves = {tuple(n.split(".")): file.get_tensor(n) for n in names}
    about = load_metadata(path)
    return TrainedModel(unflatten_dict(leaves), about, module_of(about, module))


def module_of(about: Mapping[str, Any], module: nn.Module | None = None) -> nn.Module:
    """The module that metadata describe; raises `ValueError` for another one."""
    described = about.get("model", {})
    if module is not None:
        if about_model(module) != described:
            raise ValueError(
                f"the parameters are of {described}, and the module is "
                f"{about_model(module)}; give the one that was trained"
            )
        return module
    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in described.items()
        if name == "dtype" or (name != "name" and not isinstance(value, str))
    }  # the others are names of functions
    for make in MADE:
        try:
            found: Any = make(**fields)
        except TypeError:  # another model, without these fields
            continue
        if about_model(found) == described:
            return found
    raise ValueError(
        f"the model {described.get('name', 'of this file')} is not one of "
        "fedjax_muon.models, or has functions of its own; load the file in Python, "
        "with fm.load_model(path, module)"
    )


def _standardization(about: Mapping[str, Any]) -> Standardization | None:
    saved = about["standardization"]
    if saved is None:
        return None
    kind = saved["dtype"]
    return Standardization(*(np.asarray(saved[k], kind) for k in ("mean", "std")))


def _parts(x: np.ndarray) -> list[np.ndarray]:
    """Examples in parts of one size, so that one program is compiled."""
    size = min(TOGETHER, len(x))
    padded = np.concatenate([x, x[:1].repeat(-len(x) % size, axis=0)])
    return np.split(padded, len(padded) // size)


def _numbered(x: np.ndarray) -> list[str]:
    return [*map(str, range(len(x)))]


def _is_path(x: Any) -> bool:
    return isinstance(x, str | os.PathLike)


def _of_table(columns: Columns, x: Any) -> np.ndarray:
    """The inputs, not standardized yet, of a CSV file or of columns by name."""
    if _is_path(x):
        return read_rows(x, columns, labeled=False)[0]
    check_there("x", x, [each.name for each in columns.columns])
    entries = {each.name: _entries(x[each.name]) for each in columns.columns}
    plain = columns._replace(decimal=".")
    place = lambda row: f"example {row}"
    return plain.encode(cells_of(entries, plain, place, known=True))


def _entries(values: Any) -> Entries:
    """A column in Python, in which None, NaN and pandas.NA are blanks."""
    texts = ["" if v is None else str(v) for v in np.ravel(values).tolist()]
    texts = ["" if text in OF_NUMPY else text for text in texts]
    different, rows = np.unique(texts, return_inverse=True)
    return Entries(different.tolist(), rows)


def _tokenizer(about: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that metadata describe."""
    if about["name"] == "bytes":
        return tokenizers.of_bytes()
    if "letters" in about:
        return tokenizers.characters("".join(about["letters"]))
    path = Path(about.get("path", about["name"])).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"the model's tokenizer {path} is not here; put it there"
        )
    if hashlib.sha256(path.read_bytes()).hexdigest() != about.get("sha256"):
        raise ValueError(f"{path} is not the tokenizer of the model; restore it")
    return tokenizers.from_file(path, lossy=True)
