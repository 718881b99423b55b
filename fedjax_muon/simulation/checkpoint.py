"""Checkpoints of a simulation's state: atomic, on disk, equal to the bit when restored.

Orbax keeps the last two. Its default policy skips saves in silence while one is under
way; every save here is forced and waited for. It has no checksums of large arrays
either, so a digest of all values is stored, and compared when they are read.

Of several processes all save and restore together, each its part of the state, in a
directory that all of them see.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_muon.engine.processes import whole

KEPT = 2


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says which, and what to do."""


def fingerprint(config: Mapping[str, Any], state) -> str:
    """Identifies a configuration together with the structure, shapes and dtypes of the
    state it leads to. `config` holds what JSON can."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    shapes = [f"{jax.tree_util.keystr(p)} {x.shape} {x.dtype}" for p, x in leaves]
    text = json.dumps([config, shapes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(state) -> str:
    """Of all values in order, with their shapes and dtypes: orbax reads a typed key as
    plain numbers if a file that says otherwise is missing."""
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        total.update(f"{leaf.shape} {leaf.dtype};".encode())
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        values = whole(jax.random.key_data(leaf) if is_key else leaf)
        total.update(np.ascontiguousarray(values).view(np.uint8).data)
    return total.hexdigest()


def open_checkpoints(directory: Path) -> Any:
    """The checkpoints of a run; create or continue. Close it when done.

    Raises `CheckpointError` if one that is there cannot be told what it is.
    """
    # Imported here: it takes a while, and only runs on disk need it.
    from orbax.checkpoint.experimental import v1 as orbax

    policy = orbax.training.preservation_policies.LatestN(KEPT)
    try:
        return orbax.training.Checkpointer(
            directory.absolute(),
            preservation_policy=policy,
            cleanup_tmp_directories=True,
        )
    except Exception as error:  # as in `restore`
        raise CheckpointError(
            f"the checkpoints in {directory} cannot be opened ({error}); delete the "
            "damaged one, or start anew in another directory"
        ) from error


def save(checkpoints, round: int, state, mark: str) -> None:
    """Writes the state after `round` rounds; returns when it is on disk.

    Raises `CheckpointError` if it was not written.
    """
    about = {"fingerprint": mark, "digest": _digest(state)}
    written = checkpoints.save(round, state, force=True, custom_metadata=about)
    if not written:
        raise CheckpointError(f"round {round} was not saved in {checkpoints.directory}")


def restore(checkpoints, template, mark: str):
    """The newest state, with the structure and placement of `template`; None if there
    is no checkpoint yet.

    Raises `CheckpointError` if it is damaged or belongs to another configuration.
    """
    newest = checkpoints.latest
    if newest is None:
        return None
    place = Path(checkpoints.directory) / str(newest.step)
    damaged = CheckpointError(
        f"the checkpoint {place} is damaged; delete it to continue from the one "
        "before, or start anew in another directory"
    )
    try:
        about = checkpoints.metadata(newest.step).custom_metadata
        same = about["fingerprint"] == mark
        state = checkpoints.load(newest.step, template) if same else None
    except Exception as error:  # orbax names no common type for what damage raises
        raise damaged from error
    if not same:
        raise CheckpointError(
            f"the checkpoint {place} was written by another configuration or version; "
            "resume it with its own config.json, or start anew in another directory"
        )
    if _digest(state) != about.get("digest"):
        raise damaged
    return state
