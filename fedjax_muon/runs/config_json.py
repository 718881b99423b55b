"""config.json: what a job is, written and read with all types checked."""

import dataclasses
import json
from typing import Any

import pydantic

from fedjax_muon.runs.config import Comparison, Config, Job, Run, Sweep

KINDS = {"run": Run, "comparison": Comparison, "sweep": Sweep}


def to_json(job: Job) -> str:
    """The text of config.json."""
    kind = {"kind": type(job).__name__.lower()}
    return json.dumps(kind | dataclasses.asdict(job), indent=2, default=str) + "\n"


def from_json(text: str) -> Job:
    """Reads what `to_json` wrote; raises `ValueError` for anything else."""
    try:
        fields = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"not the config of a run, but {type(fields).__name__}")
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    config = fields.get("config")
    if not isinstance(config, dict):
        raise ValueError(f"config must be an object, got {config!r}")
    _check_names(KINDS[kind], fields)
    _check_names(Config, config)
    adapter: pydantic.TypeAdapter[Job] = pydantic.TypeAdapter(KINDS[kind])
    try:
        return adapter.validate_json(json.dumps(fields), strict=True)
    except pydantic.ValidationError as error:
        raise ValueError(one_line(error)) from error


def _check_names(kind: Any, values: dict[str, Any]) -> None:
    names = {field.name for field in dataclasses.fields(kind)}
    for name in sorted(names ^ values.keys()):
        problem = "unknown" if name in values else "missing"
        raise ValueError(
            f"{name!r} is {problem} in its {kind.__name__.lower()}: it is of another "
            "version of fedjax_muon; train again, or install that version"
        )


def one_line(error: pydantic.ValidationError, *place: str) -> str:
    """The first mistake that pydantic has found, with its place in the values."""
    first = error.errors()[0]
    if first["type"] == "value_error":  # of a class of this project
        return str(first["ctx"]["error"])
    where = ".".join(map(str, (*place, *first["loc"])))
    message = first["msg"][:1].lower() + first["msg"][1:]
    return f"{where}: {message}, got {str(first['input'])[:60]!r}"
