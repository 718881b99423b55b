"""config.json: what a job is, written and read with all types checked."""

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

from fedjax_muon.runs.config import Comparison, Config, Job, Run, Sweep

ALL = CollectionCheckStrategy.ALL_ITEMS
KINDS = {"run": Run, "comparison": Comparison, "sweep": Sweep}


def to_json(job: Job) -> str:
    """The text of config.json."""
    kind = {"kind": type(job).__name__.lower()}
    return json.dumps(kind | dataclasses.asdict(job), indent=2, default=str) + "\n"


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}


def from_json(text: str) -> Job:
    """Reads what `to_json` wrote; raises `ValueError` for anything else."""
    try:
        fields = json.loads(text, object_hook=_with_tuples)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"not the config of a run, but {type(fields).__name__}")
    kind = fields.pop("kind", None)
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    config = fields.get("config")
    if not isinstance(config, dict):
        raise ValueError(f"config must be an object, got {config!r}")
    fields["config"] = _made(Config, config)
    return _made(KINDS[kind], fields)


def _made(kind: Any, fields: dict[str, Any]) -> Any:
    """An instance whose fields have the types that they are declared with."""
    hints = get_type_hints(kind)
    for name in sorted(fields.keys() ^ hints.keys()):
        problem = "unknown" if name in fields else "missing"
        raise ValueError(
            f"{name!r} is {problem} in its {kind.__name__.lower()}: it is of another "
            "version of fedjax_muon; train again, or install that version"
        )
    for name, hint in hints.items():
        value = fields[name]
        if Path in get_args(hint) and isinstance(value, str):
            fields[name] = value = Path(value)
        if isinstance(value, bool) and hint is not bool:
            raise ValueError(f"{name} has a wrong type: bool")
        try:
            check_type(value, hint, collection_check_strategy=ALL)
        except TypeCheckError as error:
            raise ValueError(f"{name} has a wrong type: {error}") from error
    return kind(**fields)
