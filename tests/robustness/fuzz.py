"""Command lines, made from signatures and mutated at random."""

import random
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from fedjax_muon.algorithms import ALL
from fedjax_muon.algorithms.minimax import ALL as MINIMAX
from fedjax_muon.cli import call
from fedjax_muon.cli.names import SEVERAL, TABLES, kind_of, members

from . import outcome
from .outcome import Outcome

# What makes a command fast; mutations change some of it.
SMALL = {"problem": "digits:clients=4,model=mlp:4", "cohort": "2", "local_steps": "1"}
SMALL |= {"batch_size": "8", "rounds": "2", "evaluate_every": "1"}
WITH_SERVER = [*ALL, *MINIMAX]
CHEAP = ("fedavg", "fedprox", "scaffold", "fedmuon", "local_sgdm", "fedadam")
COMMANDS = (*["train"] * 20, "sweep", "compare", "compare private", "list")
COMMANDS += ("partition", "plot", "export", "prepare")
# what belongs to other machines, or to the beginning of a process
APART = ("devices", "distributed")
TRAINING = ("train", "sweep", "compare")
NUMBERS = ("-1", "0", "1", "2", "3", "1e30", "nan", "inf", "-inf", "0.5", "1e-9")
NUMBERS += ("99999999999999999999", "2147483648", "x", "", "1_000", "0x10", "²", "1,2")
WORDS = ("", "digits", "breast_cancer", "a b", "../x", "x[1]", "*", "💥", "--", "none")
WORDS += ("a:b", "a(b", "top_k:0.1", "mlp:hidden=4", "(", "1+2", "x=y")


class Case(NamedTuple):
    """A command line and what came of it."""

    words: list[str]
    result: Outcome
    started: bool  # whether training was reached
    problem: str


def value(draw: random.Random, name: str, kinds: list[Any], place: Path) -> str:
    """A word for an option: mostly right, sometimes not."""
    if draw.random() < 0.05:
        return draw.choice((*NUMBERS, *WORDS))
    kind = draw.choice(kinds)
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if kind is type(None):
        return "none"
    if kind is bool:
        return draw.choice(("true", "false"))
    if kind is int:
        return str(draw.choice((0, 1, 2, 3, 4, 5, 8, -1)))
    if kind is float:
        return str(draw.choice((0.0, 0.01, 0.1, 0.5, 0.9, 1.0, -0.1, 2.0)))
    if kind is Path:
        return str(place / draw.choice(("a", "b[1]", "c d", "none/e.png")))
    if origin in SEVERAL and inner:
        count = draw.randint(1, 3)
        return ",".join(value(draw, name, [inner[0]], place) for _ in range(count))
    if inner and all(isinstance(one, str) for one in inner):
        return str(draw.choice(inner))
    if name in TABLES:
        return draw.choice(sorted(TABLES[name]))
    return draw.choice(WORDS)


def line(draw: random.Random, place: Path) -> list[str]:
    """A command line; about half of them are meant to train."""
    name, *private = draw.choice(COMMANDS).split()
    method = draw.choice(CHEAP) if draw.random() < 0.7 else draw.choice(WITH_SERVER)
    method = "dpmixsgd" if private else method
    if name not in TRAINING:
        return [name, *(draw.choice(WORDS) for _ in range(draw.randint(0, 2)))]
    known = call.options_of(name)
    chosen = {key: word for key, word in SMALL.items() if key in known}
    chosen["directory"] = str(place / "out")
    if name == "sweep":
        chosen |= {"grid": "lr=0.1,0.2", "extend": "false"}
    if name != "train":
        chosen["seeds"] = "0"
    if private:
        chosen |= {"problem": "auc:clients=3", "ledger": str(place / "ledger.json")}
        chosen |= {"privacy": "ExamplePrivacy:epsilon=4"}
        del chosen["cohort"], chosen["local_steps"]
    count = min(len(known), draw.choice((0, 0, 1, 1, 2, 3)))
    for key in draw.sample(sorted(known), count):
        if key not in APART:
            chosen[key] = value(draw, key, members(kind_of(known[key])), place)
    words = [name, method]
    for key, given in chosen.items():
        words += ["--" + key.replace("_", "-"), given]
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
