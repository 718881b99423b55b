"""Command lines and config files, made from the parser and mutated at random."""

import dataclasses
import json
import random
import shutil
import types
import typing
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from fedjax_muon.cli import command_kinds
from fedjax_muon.runs.config import METHODS, OF_AGENTS, PARTITIONS

from . import outcome
from .outcome import Outcome

# What makes a command fast; mutations change some of it.
SMALL = {"num_clients": "4", "cohort_size": "2", "local_steps": "1", "batch_size": "8"}
SMALL |= {"rounds": "2", "evaluate_every": "1", "hidden": "4"}
WITH_SERVER = [name for name in METHODS if name not in OF_AGENTS]
CHEAP = ("fedavg", "fedprox", "scaffold", "fedmuon", "local_sgdm", "fedadam")
COMMANDS = (*["train"] * 20, "sweep", "compare", "compare private", "list")
COMMANDS += ("partition", "plot", "resume", "prepare")
# what belongs to other machines, or to the beginning of a process
APART = ("data_dir", "devices")
APART += ("distributed", "coordinator", "num_processes", "process_id")
TRAINING = ("train", "sweep", "compare")
NUMBERS = ("-1", "0", "1", "2", "3", "1e30", "nan", "inf", "-inf", "0.5", "1e-9")
NUMBERS += ("99999999999999999999", "2147483648", "x", "", "1_000", "0x10", "²", "1,2")
WORDS = ("", "digits", "breast_cancer", "a b", "../x", "x[1]", "*", "💥", "--", "none")


class Case(NamedTuple):
    """A command line and what came of it."""

    words: list[str]
    result: Outcome
    started: bool  # whether training was reached
    problem: str


def options(kind: Any, prefix: str = "") -> dict[str, Any]:
    """The types of a command's options, as the parser is made from them."""
    found: dict[str, Any] = {}
    hints = get_type_hints(kind, include_extras=False)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            # only the algorithm's own options have a prefix
            found |= options(hint, "algorithm." if field.name == "hyper" else "")
        else:
            named = Literal[PARTITIONS] if field.name == "partition" else hint
            found[prefix + field.name] = named
    return found


def value(draw: random.Random, hint: Any, place: Path) -> list[str]:
    """Words for an option of a type: mostly right, sometimes not."""
    if draw.random() < 0.05:
        return [draw.choice((*NUMBERS, *WORDS))]
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return [str(draw.choice(parts))]
    if origin in (typing.Union, types.UnionType):
        return value(draw, draw.choice(parts), place)
    if origin is tuple:
        count = draw.randint(0, 3)
        return [word for _ in range(count) for word in value(draw, parts[0], place)]
    if hint is bool:
        return []
    if hint is int:
        return [str(draw.choice((0, 1, 2, 3, 4, 5, 8, -1)))]
    if hint is float:
        return [str(draw.choice((0.0, 0.01, 0.1, 0.5, 0.9, 1.0, -0.1, 2.0)))]
    if hint is Path:
        return [str(place / draw.choice(("a", "b[1]", "c d", "none/e.png")))]
    return [draw.choice(WORDS)]


def line(draw: random.Random, place: Path) -> list[str]:
    """A command line; about half of them are meant to train."""
    name, *private = draw.choice(COMMANDS).split()
    method = draw.choice(CHEAP) if draw.random() < 0.7 else draw.choice(WITH_SERVER)
    kind, _ = command_kinds(["train", "--algorithm", method])[name]
    known = options(kind)
    chosen: dict[str, list[str]] = {}
    if name in TRAINING:
        chosen |= {key: [word] for key, word in SMALL.items() if key in known}
        chosen["output"] = [str(place / "out")]
    if name == "train":
        chosen["algorithm"] = [method]
    if name == "sweep":
        chosen |= {"algorithms": [method], "grid": ["lr=0.1"], "seeds": ["0"]}
    if private:
        method = "dpmixsgd"
        chosen = {"epsilon": ["4"], "num-clients": ["3"], "rounds": ["2"]}
        chosen["output"] = [str(place / "out")]
        chosen["ledger"] = [str(place / "ledger.json")]
    count = min(len(known), draw.choice((0, 0, 1, 1, 2, 3)))
    for key in draw.sample(sorted(known), count):
        if key not in APART:
            chosen[key] = value(draw, known[key], place)
    words = [name]
    if name == "compare":
        words += [method, "--seeds", "0"]
        chosen.pop("algorithms", None)
        chosen.pop("seeds", None)
    for key, given in chosen.items():
        words += ["--" + key.replace("_", "-"), *given]
    if draw.random() < 0.05:
        position = draw.randrange(1, len(words) + 1)
        words.insert(position, draw.choice((*NUMBERS, *WORDS, "--nothing")))
    return words


def try_line(words: list[str], place: Path) -> Case:
    """Runs a command line in an empty directory."""
    return _judged(words, place, outcome.run(words))


def _judged(words: list[str], place: Path, result: Outcome) -> Case:
    problem = result.problem
    left = outcome.files(place)
    if not problem and result.status == 2 and left:
        problem = f"left {sorted(left)[0]} after a refusal"
    started = bool(left) and result.status in (0, 1) and words[0] in TRAINING
    return Case(words, result, started, problem)


def try_config(draw: random.Random, finished: Path, place: Path) -> Case:
    """Resumes a finished run whose config.json was edited."""
    copy = place / "copy"
    shutil.copytree(finished, copy)
    path = copy / "config.json"
    config = json.loads(path.read_text())
    tree = draw.choice([config, config.get("config", config)])
    key = draw.choice(sorted(tree))
    values = [None, True, -1, 0, 3, 1e300, "x", [], {}, [1, "a"], "fedavg", 2**70]
    match draw.randrange(4):
        case 0:
            del tree[key]
        case 1:
            tree[key + draw.choice("xyz")] = draw.choice(values)
        case _:
            tree[key] = draw.choice(values)
    path.write_text(json.dumps(config))
    before = (copy / "metrics.csv").read_bytes()
    result = outcome.run(["resume", copy])
    problem = result.problem
    after = (copy / "metrics.csv").read_bytes()
    if not problem and result.status == 0 and after != before:
        problem = "other numbers under an edited config"
    return Case(["resume", f"{key}={tree.get(key)!r}"], result, False, problem)
