"""Checkpoints of a simulation's state: atomic, on disk, equal to the bit when restored.

Orbax keeps the last two. Its default policy skips saves in silence while one is under
way; every save here is forced and waited for.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint.experimental import v1 as orbax

KEPT = 2


class CheckpointError(Exception):
    """A checkpoint that cannot be used; the message says which, and what to do."""


def fingerprint(config: Mapping[str, Any], state) -> str:
    """Identifies a configuration together with the structure, shapes and dtypes of the
    state it leads to. `config` holds what JSON can."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    shapes = [f"{jax.tree_util.keystr(p)} {x.shape} {x.dtype}" for p, x in leaves]
    text = json.dumps([config, shapes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def open_checkpoints(directory: Path) -> orbax.training.Checkpointer:
    """The checkpoints of a run; create or continue. Close it when done."""
    policy = orbax.training.preservation_policies.LatestN(KEPT)
    return orbax.training.Checkpointer(
        directory.absolute(), preservation_policy=policy, cleanup_tmp_directories=True
    )


def save(checkpoints, round: int, state, mark: str) -> None:
    """Writes the state after `round` rounds; returns when it is on disk.

    Raises `CheckpointError` if it was not written.
    """
    written = checkpoints.save(
        round, state, force=True, custom_metadata={"fingerprint": mark}
    )
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
    try:
        found = (checkpoints.metadata(newest.step).custom_metadata or {}).get(
            "fingerprint"
        )
        state = checkpoints.load(newest.step, template) if found == mark else None
    except Exception as error:  # orbax names no common type for what damage raises
        raise CheckpointError(
            f"the checkpoint {place} is damaged; delete it to continue from the one "
            "before, or start anew in another directory"
        ) from error
    if state is None:
        raise CheckpointError(
            f"the checkpoint {place} was written by another configuration or version; "
            "resume it with its own config.json, or start anew in another directory"
        )
    return state
