"""Parameters in files that other programs read. The suffix of a path is the format:

- `.safetensors`: one tensor for every leaf, named by its path with dots, such as
  "Dense_0.kernel";
- `.msgpack`: what `flax.serialization.from_bytes` reads.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.serialization
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_muon.core.atomic_files import write
from fedjax_muon.core.reading import read_text, reading
from fedjax_muon.versions import check_installed

KEY = "fedjax_muon"  # of the metadata in a file of safetensors
ANEW = "export it again"


class Format(NamedTuple):
    """How parameters are written and read."""

    # (path, parameters as nested dictionaries, metadata)
    save: Callable[[Path, dict[str, Any], Mapping[str, Any]], None]
    load: Callable[[Path], dict[str, Any]]  # path -> leaves by name, with dots
    metadata: Callable[[Path], Mapping[str, Any]]


def save_params(
    path: str | Path,
    params: Any,
    *,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes parameters to a file, completely or not at all.

    The suffix decides the format: `.safetensors` (requires the extra `export`) or
    `.msgpack`. A msgpack file cannot contain metadata; they are written to a second
    file, with `.json` added to its name.

    Args:
      params: Parameters, a pytree of arrays in dictionaries and named tuples.
      metadata: Values that JSON can represent, which `load_metadata` returns.
    """
    path = Path(path)
    form = check_target(path, overwrite=overwrite)
    nested = flax.serialization.to_state_dict(params)
    leaves = {k: np.asarray(x, order="C") for k, x in flatten_dict(nested).items()}
    _check_names(leaves)
    path.parent.mkdir(parents=True, exist_ok=True)
    form.save(path, unflatten_dict(leaves), dict(metadata or {}))
    return path


def load_params(path: str | Path, like: Any) -> Any:
    """Reads parameters that `save_params` or `fedjax-muon export` wrote.

    Args:
      like: Parameters of the same model, or their `jax.ShapeDtypeStruct`s, with the
        structure of the result.
    """
    path = Path(path)
    form = _existing(path)
    stored = form.load(path)
    wanted = flatten_dict(flax.serialization.to_state_dict(like))
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
    """
    path = Path(path)
    return dict(_existing(path).metadata(path))


def check_target(path: Path, *, overwrite: bool) -> Format:
    """Checks, as far as is known before, that parameters can be written to a path.

    Returns the format of its suffix.
    """
    form = _format_of(path)
    there = [each for each in (path, _beside(path)) if each.exists()]
    if there and not overwrite:
        raise ValueError(
            f"{there[0]} exists already; choose another name, or replace it (overwrite)"
        )
    if path.is_dir():
        raise ValueError(f"{path} is a directory; choose another name")
    return form


def _format_of(path: Path) -> Format:
    if path.suffix.lower() not in FORMATS:
        raise ValueError(
            f"the name of a parameter file must end in {' or '.join(FORMATS)}, got "
            f"{str(path)!r}"
        )
    if path.suffix.lower() == ".safetensors":
        check_installed("safetensors", "a file of safetensors")
    return FORMATS[path.suffix.lower()]


def _existing(path: Path) -> Format:
    form = _format_of(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    return form


def _check_names(leaves: Iterable[tuple[str, ...]]) -> None:
    names = [".".join(place) for place in leaves]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two parameters have the name {name}; rename one")


def _shown(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"


def _named(nested: Any) -> dict[str, Any]:
    if not isinstance(nested, dict):
        raise ValueError(f"parameters by name, got {type(nested).__name__}")
    named = {".".join(place): leaf for place, leaf in flatten_dict(nested).items()}
    for name, leaf in named.items():
        if not hasattr(leaf, "dtype"):
            kind = type(leaf).__name__
            raise ValueError(f"{name} must be an array, got a value of type {kind}")
    return named


# ----------------------------------------------------------------------- safetensors


@contextlib.contextmanager
def _safetensors(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    wanted = "tensors in the format of safetensors"
    with (
        reading(path, wanted, ANEW, found="", errors=(SafetensorError,)),
        safe_open(path, framework="numpy") as file,
    ):
        yield file


def _save_safetensors(
    path: Path, nested: dict[str, Any], metadata: Mapping[str, Any]
) -> None:
    from safetensors.numpy import save

    write(path, save(_named(nested), {KEY: json.dumps(metadata)}))


def _load_safetensors(path: Path) -> dict[str, Any]:
    with _safetensors(path) as file:
        names = file.keys()
        return {name: file.get_tensor(name) for name in names}


def _metadata_of_safetensors(path: Path) -> Mapping[str, Any]:
    with _safetensors(path) as file:
        return json.loads((file.metadata() or {}).get(KEY, "{}"))


# --------------------------------------------------------------------------- msgpack


def _beside(path: Path) -> Path:
    """The metadata of a msgpack file; for other formats the path itself."""
    is_msgpack = path.suffix.lower() == ".msgpack"
    return path.with_name(f"{path.name}.json") if is_msgpack else path


def _save_msgpack(
    path: Path, nested: dict[str, Any], metadata: Mapping[str, Any]
) -> None:
    write(_beside(path), json.dumps(metadata, indent=2) + "\n")
    write(path, flax.serialization.msgpack_serialize(nested))


def _load_msgpack(path: Path) -> dict[str, Any]:
    with reading(path, "parameters that flax has serialized", ANEW, found=""):
        return _named(flax.serialization.msgpack_restore(path.read_bytes()))


def _metadata_of_msgpack(path: Path) -> Mapping[str, Any]:
    if not _beside(path).exists():
        return {}
    with reading(_beside(path), "metadata in JSON", ANEW):
        return json.loads(read_text(_beside(path)))


FORMATS = {
    ".safetensors": Format(
        _save_safetensors, _load_safetensors, _metadata_of_safetensors
    ),
    ".msgpack": Format(_save_msgpack, _load_msgpack, _metadata_of_msgpack),
}
