"""Files of safetensors: what reads their tensors, and what they must have."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.files import reading
from fedjax_muon.versions import check_installed


@contextlib.contextmanager
def opened(path: str | Path, model: str, url: str) -> Iterator[tuple[Path, Any]]:
    """Opens a checkpoint: the file, and what reads its tensors by name, one by one.

    The file is memory-mapped.
    """
    check_installed("safetensors", f"a checkpoint of {model}")
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist; download model.safetensors of {model} from {url}"
        )
    wanted = "tensors in the format of safetensors that fit the model"
    with (
        reading(file, wanted, found="", errors=(SafetensorError,)),
        safe_open(file, framework="numpy") as tensors,
    ):
        yield file, tensors


def check_finite(name: str, tensor: np.ndarray) -> None:
    """Checks that a tensor has floating-point numbers, which are finite."""
    if not tensor.size or tensor.dtype.kind != "f" or not np.isfinite(tensor).all():
        raise ValueError(
            f"{name} must have finite numbers, got {tensor.dtype}{list(tensor.shape)}"
        )


def single(tensor: np.ndarray) -> jax.Array:
    """A tensor on the device, where half precision becomes float32."""
    half = tensor.dtype.itemsize < 4
    return jnp.asarray(tensor.astype(np.float32) if half else tensor)
