"""Checkpoints of a simulation's state: atomic, on disk, bit-identical when restored.

Orbax keeps the last two. Its default policy silently skips saves while another one is
in progress, so every save is forced and awaited here. Orbax has no checksums of large
arrays, so a digest of all values is stored, and compared after reading.

Several processes save and restore together, each its part of the state, in a directory
that is visible to all of them.
"""

import contextlib
import gc
import hashlib
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_muon.core import tree
from fedjax_muon.engine.processes import full_array

KEPT = 2


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message names it and a remedy."""


def fingerprint(config: Mapping[str, Any], state: Any) -> str:
    """Identifies a configuration and the structure, shapes and dtypes of its state."""
    text = json.dumps([config, list(tree.shapes(state).items())], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def digest(state: Any) -> str:
    """The SHA-256 of all values in order, with their shapes and dtypes.

    Orbax reads a typed key as plain numbers if a metadata file is missing.
    """
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        total.update(f"{leaf.shape} {leaf.dtype};".encode())
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        values = full_array(jax.random.key_data(leaf) if is_key else leaf)
        total.update(np.ascontiguousarray(values).view(np.uint8).data)
    return total.hexdigest()


def check_path(directory: Path) -> None:
    """Raises `CheckpointError` if a path has characters of a file pattern."""
    wild = sorted(set("[]*?") & set(str(directory.absolute())))
    if wild:  # orbax searches the files of a checkpoint by patterns
        raise CheckpointError(
            f"checkpoints can't be read from a path with {' '.join(wild)}, got "
            f"{directory.absolute()}; choose another directory"
        )


def _digest_of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def open_checkpoints(directory: Path, *, secret: bool = False) -> Iterator[Any]:
    """Opens the checkpoints of a run, as Orbax's `Checkpointer`.

    Args:
      secret: Whether only its owner may read them, since states have keys of noise.

    Raises:
      CheckpointError: If an existing checkpoint cannot be read, or the path has
        characters of a file pattern.
    """
    check_path(directory)
    if secret:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
    # Imported here, since it is slow and only runs on disk need it.
    from orbax.checkpoint.experimental import v1 as orbax

    policy = orbax.training.preservation_policies.LatestN(KEPT)
    checkpoints = _attempt(
        lambda: orbax.training.Checkpointer(
            directory.absolute(),
            preservation_policy=policy,
            cleanup_tmp_directories=True,
        ),
        lambda reason: CheckpointError(
            f"the checkpoints in {directory} cannot be opened ({reason}); delete the "
            "damaged one, or start anew in another directory"
        ),
    )
    try:
        yield checkpoints
    except BaseException:  # closing would raise it again
        with _silence(), contextlib.suppress(Exception):
            checkpoints.close()
        raise
    checkpoints.close()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    levels, hook = [logger.level for logger in loggers], sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _attempt(read: Callable[[], Any], problem: Callable[[str], CheckpointError]) -> Any:
    """The result of `read`, or one error, whatever damaged files make orbax raise.

    Orbax logs them too, and leaves coroutines behind, of which Python complains in
    dozens of lines when it finds them. They are collected here, so that a refusal is
    one line at once.
    """
    with _silence():
        try:
            return read()
        except Exception as error:  # orbax names no common type
            reason = str(error)
        for _ in range(3):  # reads that are still under way end meanwhile
            gc.collect()
            time.sleep(0.1)
    raise problem(reason)


def save(
    checkpoints: Any,
    round: int,
    state: Any,
    mark: str,
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Writes a checkpoint; returns when it is on disk.

    Args:
      round: Number of completed rounds. An existing checkpoint of this round is
        replaced.
      notes: Other values that JSON can represent, which `restore` returns.
    """
    text = json.dumps(dict(notes or {}))
    about: dict[str, Any] = {"fingerprint": mark, "digest": digest(state)}
    about |= {"shapes": tree.shapes(state)}
    about |= {"notes": text, "notes_digest": _digest_of_text(text)}
    reason = "orbax skipped it"
    with _silence():
        try:
            options = {"force": True, "overwrite": True, "custom_metadata": about}
            written = checkpoints.save(round, state, **options)
        except Exception as error:  # orbax names no common type
            if jax.process_count() > 1:  # perhaps another process has ended
                raise
            written, reason = False, str(error).split("\n")[0][:300]
    if not written:
        raise CheckpointError(
            f"checkpoint {round} can't be saved in "
            f"{checkpoints.directory}: {reason}; free some space, or use another "
            "directory"
        )
    if _is_secret(checkpoints):
        for path in Path(checkpoints.directory).rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)


def restore(
    checkpoints: Any, template: Any, mark: str
) -> tuple[Any, dict[str, Any]] | None:
    """Reads the state and the notes of the newest checkpoint; None if there is none."""
    about = _newest(checkpoints, mark, template)
    if about is None:
        return None
    damaged = lambda _: _damaged(checkpoints)
    state = _attempt(
        lambda: checkpoints.load(checkpoints.latest.step, template), damaged
    )
    if digest(state) != about.get("digest"):
        raise _damaged(checkpoints)
    return state, json.loads(about["notes"])


def without_template(checkpoints: Any) -> Any:
    """The newest state in dictionaries, for who cannot make a state like it.

    Several processes may have written it; here it is on one device.
    """
    place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    array = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
    like = lambda x: array(x) if hasattr(x, "shape") else x

    def read() -> Any:
        step = checkpoints.latest.step
        known = checkpoints.metadata(step).metadata
        return checkpoints.load(step, jax.tree.map(like, known))

    return _attempt(read, lambda _: _damaged(checkpoints))


def notes_of(checkpoints: Any, mark: str) -> dict[str, Any] | None:
    """Reads the notes of the newest checkpoint as `restore` does, without its state."""
    about = _newest(checkpoints, mark)
    return None if about is None else json.loads(about["notes"])


def _newest(checkpoints: Any, mark: str, template: Any = None) -> dict[str, Any] | None:
    """What is stored beside the newest state, checked; None if there is none.

    Args:
      template: A state that the stored one must be like, to say where it is not.
    """
    if checkpoints.latest is None:
        return None
    about = _attempt(
        lambda: dict(checkpoints.metadata(checkpoints.latest.step).custom_metadata),
        lambda _: _damaged(checkpoints),
    )
    if about.get("fingerprint") is None:
        raise _damaged(checkpoints)
    if about["fingerprint"] != mark:
        stored, where = about.get("shapes"), ""
        if isinstance(stored, Mapping) and template is not None:
            where = tree.difference(stored, tree.shapes(template))
        raise CheckpointError(
            f"the checkpoint {_path(checkpoints)} was written by another configuration "
            f"or version{where and f', its state{where}'}; resume it as it "
            "was begun, or start again in another directory"
        )
    if _digest_of_text(str(about.get("notes"))) != about.get("notes_digest"):
        raise _damaged(checkpoints)
    return about


def _path(checkpoints: Any) -> Path:
    return Path(checkpoints.directory) / str(checkpoints.latest.step)


def _is_secret(checkpoints: Any) -> bool:
    return not Path(checkpoints.directory).stat().st_mode & 0o077


def _damaged(checkpoints: Any) -> CheckpointError:
    # private rounds after an older one would be released again, with other noise
    before = "" if _is_secret(checkpoints) else "delete it to continue from the one "
    before += before and "before, or "
    return CheckpointError(
        f"the checkpoint {_path(checkpoints)} is damaged; {before}start anew in "
        "another directory"
    )
