"""Tries to break the command for a while, and prints what came of it.

    python -m tests.robustness --minutes 60
    python -m tests.robustness --minutes 10 --only kills damage

The tests in `test_robustness.py` are a short form.
"""

import argparse
import contextlib
import itertools
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax

from . import damage, data_files, environments, fuzz, kills, outcome


class Line(NamedTuple):
    """What was tried, and what is wrong with what came of it."""

    what: str
    problem: str


def places(place: Path) -> Iterator[tuple[int, Path]]:
    """Numbered empty directories without end, each of which is deleted after use."""
    for number in itertools.count():
        own = place / str(number)
        own.mkdir()
        yield number, own
        shutil.rmtree(own, ignore_errors=True)


def fuzzing(draw: random.Random, place: Path) -> Iterator[Line]:
    """Command lines, and config files of a finished run, without end."""
    finished = place / "finished"
    outcome.run([*environments.TRAIN, "--output", finished])
    for number, own in places(place):
        with contextlib.chdir(own):
            if number % 10 == 9:
                case = fuzz.try_process(fuzz.line(draw, own), own)
                what = "command line in a process of its own"
            elif number % 5 == 4:
                case = fuzz.try_config(draw, finished, own)
                what = "config file"
            else:
                case = fuzz.try_line(fuzz.line(draw, own), own)
                what = "command line that trains" if case.started else "command line"
        shown = " ".join(map(repr, case.words)) + " " + case.result.text[-300:]
        yield Line(what, case.problem and f"{case.problem}: {shown}")


def killing(draw: random.Random, place: Path) -> Iterator[Line]:
    """Kills of every command, in every phase, without end."""
    names = list(kills.COMMANDS)
    for number in itertools.count():
        sent = signal.SIGTERM if number % 3 == 2 else signal.SIGKILL
        name = names[number % len(names)]
        one = kills.trial(draw, name, sent, place / str(number))
        for phase in one.phases:
            yield Line(f"{one.signal} while {phase}", "")
        yield Line(f"killed {one.name}", one.problem)


def damaging(draw: random.Random, place: Path) -> Iterator[Line]:
    """Damage to directories of runs, without end."""
    made = {}
    for name, words in kills.COMMANDS.items():
        if name == "paper":  # started again, not resumed
            continue
        made[name] = place / f"finished-{name}"
        short = [w if w not in ("400", "60", "40") else "20" for w in words]
        outcome.run([*short, "--output", made[name]])
    for _, own in places(place):
        name = draw.choice(list(made))
        case = damage.harm_run(draw, made[name], own)
        what = f"damaged {name}: {case.end if not case.problem else 'wrong'}"
        about = f"{case.file} {case.harm}: {case.problem}"
        yield Line(what, case.problem and about)


def damaging_data(draw: random.Random, place: Path) -> Iterator[Line]:
    """Damage to files of datasets and of checkpoints, without end."""
    for kind, harm, problem in data_files.cases(draw, place):
        yield Line(f"damaged {kind}", problem and f"{harm}: {problem}")


def surrounding(draw: random.Random, place: Path) -> Iterator[Line]:
    """Hostile environments, once."""
    del draw
    here = environments
    starts = here.simultaneous_starts, here.one_sweep_directory
    limits = here.limited_files, here.limited_memory
    for part in (*starts, *limits, here.without, lambda own: [here.soak(10_000)]):
        own = place / part.__name__
        own.mkdir()
        for check in part(own):
            yield Line(check.name, check.problem)


PARTS = {"environments": surrounding, "fuzz": fuzzing, "kills": killing}
PARTS |= {"damage": damaging, "data": damaging_data}


def main() -> None:
    """Runs the parts in turn until the time is over, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 2)
    share = 60 * given.minutes / len(given.only)
    counts, wrong = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only:
            place, end = Path(folder) / name, time.monotonic() + share
            place.mkdir()
            for line in PARTS[name](random.Random(given.seed), place):
                row = f"| {name} | {line.what}"
                counts[row] += 1
                if counts.total() % 20 == 0:
                    jax.clear_caches()  # Linux limits the memory maps of a process
                wrong[row] += bool(line.problem)
                if line.problem:
                    print(f"{name}: {line.what}: {line.problem}", flush=True)
                if time.monotonic() > end:
                    break
    print(f"Seed {given.seed}.\n\n| part | what | times | wrong |\n|---|---|---:|---:|")
    for row, count in sorted(counts.items()):
        print(f"{row} | {count} | {wrong[row]} |")


if __name__ == "__main__":
    main()
