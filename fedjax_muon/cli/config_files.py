"""`--config FILE`: the options of a command from a file.

The keys are the names of options; `hyper` has those of the algorithm. Their values
become the defaults of the command line.
"""

import contextlib
import dataclasses
import difflib
import json
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import pydantic
import yaml
from tyro.constructors import PrimitiveConstructorSpec

from fedjax_muon.cli import parsing
from fedjax_muon.cli.arguments import value_in
from fedjax_muon.cli.parsing import Option
from fedjax_muon.core.reading import check_size, named, reading
from fedjax_muon.runs import directory
from fedjax_muon.runs.config import Comparison, Job, Run, Sweep
from fedjax_muon.runs.directory import from_json, one_line

LIMIT = 2**18  # bytes; all options together have some thousands
COMMANDS: dict[type, tuple[str, ...]] = {
    Run: ("train", "deploy"),
    Comparison: ("compare",),
    Sweep: ("sweep",),
}
KINDS = {".yaml": "YAML", ".yml": "YAML", ".json": "JSON", ".toml": "TOML"}
ERRORS = (yaml.YAMLError, RecursionError)


class _Loader(yaml.SafeLoader):
    """Reads YAML without references, which can make a small file a large value."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("a reference (*) is not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        pairs = self.construct_pairs(node, deep=deep)
        return _once(pairs)


def _once(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dictionary. Raises `ValueError` if a key occurs twice."""
    values: dict[Any, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"{key!r} occurs twice")
        values[key] = value
    return values


class File(NamedTuple):
    """A file of options; without a path, there is none."""

    path: Path | None
    values: Mapping[str, Any]  # by the names of options, with underscores

    @contextlib.contextmanager
    def blamed(self, name: str, argv: Sequence[str]) -> Iterator[None]:
        """Names the file in an error about its value of an option."""
        try:
            yield
        except ValueError as error:
            if name in self.values and value_in(argv, f"--{name}", None) is None:
                raise ValueError(f"{self.path}: {error}") from error
            raise

    @contextlib.contextmanager
    def blamed_for(self, kind: type, options: Sequence[Option]) -> Iterator[None]:
        """Names the file in an error that its own values would raise too."""
        try:
            yield
        except ValueError as error:
            if self.path is None:
                raise
            try:
                defaults = {option.name: option.default for option in options}
                parsing.from_values(kind, options, defaults)
            except ValueError as same:
                if str(same) == str(error):
                    raise ValueError(f"{self.path}: {error}") from error
            raise

    @property
    def deciding(self) -> list[str]:
        """Arguments with those of its values that other defaults depend on."""
        names = ("algorithm", "problem")
        return [
            f"--{name}={self.values[name]}" for name in names if name in self.values
        ]

    def for_algorithm(self, argv: Sequence[str]) -> "File":
        """The file without its algorithm's options, if arguments name another one."""
        usual = self.values.get("algorithm")
        if value_in(argv, "--algorithm", usual) == usual:
            return self
        return File(self.path, {k: v for k, v in self.values.items() if k != "hyper"})


def find(command: str, argv: Sequence[str]) -> File:
    """Reads the file that arguments name, if they name one."""
    named = value_in(argv, "--config", None)
    if named is None or not any(command in names for names in COMMANDS.values()):
        return File(None, {})
    path = Path(named)
    if path.is_dir():
        path = path / directory.CONFIG
        if not path.exists():
            raise ValueError(f"{named} is not a run directory: it has no {path.name}")
    return File(path, _read(path, command))


def _read(path: Path, command: str) -> dict[str, Any]:
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise ValueError(
            f"the name of a config file must end in {', '.join(KINDS)}, got "
            f"{str(path)!r}"
        )
    check_size(path, LIMIT)
    with reading(path, f"a file in {kind}", "correct it", found="", errors=ERRORS):
        text = path.read_text(encoding="utf-8")
        values = _parsed(kind, text)
    if not isinstance(values, dict):
        what = type(values).__name__
        raise ValueError(f"{path}: expected options by name, got {what}")
    if kind == "JSON" and "kind" in values:
        return _of_job(path, text, command)
    return {str(key).replace("-", "_"): value for key, value in values.items()}


def _parsed(kind: str, text: str) -> Any:
    if kind == "YAML":
        values = yaml.load(text, _Loader)
        return {} if values is None else values
    if kind == "TOML":
        return tomllib.loads(text)
    return json.loads(text, object_pairs_hook=_once)


def _of_job(path: Path, text: str, command: str) -> dict[str, Any]:
    """The options that made the config.json of a run."""
    with named(path):
        job = from_json(text)
    commands = COMMANDS[type(job)]
    if command not in commands:
        raise ValueError(
            f"{path} is the config of `{' and '.join(commands)}`, not of `{command}`; "
            f"repeat it with: fedjax-muon {commands[0]} --config {path}"
        )
    return _flat(job)


def _flat(job: Job) -> dict[str, Any]:
    values = {f.name: getattr(job, f.name) for f in dataclasses.fields(job)}
    if isinstance(job, Comparison):
        values["lr_schedules"] = values.pop("lr_schedule")
        values["quick"] = not values.pop("grids")
    if isinstance(job, Sweep):
        values["grid"] = _words_of_grids(values.pop("grids"))
    if "config" in values:
        config = values.pop("config")
        values |= {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return values


def _words_of_grids(grids: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    words = [
        f"{name}.{option}={','.join(map(repr, points))}"
        for name, grid in grids.items()
        for option, points in grid.items()
    ]
    return words or ["paper"]  # all grids are empty


def with_defaults(options: Sequence[Option], file: File) -> list[Option]:
    """Options whose defaults are the values of a file."""
    known = {option.name: option for option in options if option.name != "config_file"}
    defaults: dict[str, Any] = {}
    for name, value in file.values.items():
        with named(file.path):
            check_key(name, known)
            defaults[name] = _checked(name, known[name].hint, value)
    return [
        option._replace(default=defaults.get(option.name, option.default))
        for option in options
    ]


def check_key(name: str, known: Collection[str]) -> None:
    """Raises `ValueError` for a key that is no option's name."""
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.6)
        advice = f"did you mean {near[0]}?" if near else "keys are names of options"
        raise ValueError(f"unknown key {name!r}; {advice}")


def _checked(name: str, hint: Any, value: Any) -> Any:
    """A value of a file as one of an option's type."""
    plain, *about = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if dataclasses.is_dataclass(plain):  # the options of the algorithm
        if not isinstance(value, dict):
            raise ValueError(f"{name} takes values by name, got {_short(value)}")
        value = {str(key).replace("-", "_"): entry for key, entry in value.items()}
        for key in value:
            check_key(key, [field.name for field in dataclasses.fields(plain)])
    if get_origin(plain) is tuple and not isinstance(value, list | tuple):
        value = [value]
    lists = [each for each in about if isinstance(each, PrimitiveConstructorSpec)]
    if lists and value and isinstance(value, list | tuple):  # entries may have commas
        value = lists[0].instance_from_str([str(entry) for entry in value])
    if isinstance(value, bool) and plain is not bool:
        raise ValueError(f"{name} takes numbers or words, got {_short(value)}")
    try:
        return pydantic.TypeAdapter(plain).validate_python(value)
    except pydantic.ValidationError as error:
        raise ValueError(one_line(error, name)) from error


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
