"""Run directories that are damaged, and what becomes of them."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import outcome
from .environments import TRAIN
from .kills import results


class Harm(NamedTuple):
    """A kind of damage to a file."""

    name: str
    act: Callable[[random.Random, Path], None]


def with_bytes(change: Callable[[random.Random, bytes], bytes]):
    return lambda draw, path: path.write_bytes(change(draw, path.read_bytes()))


def _flipped(draw: random.Random, data: bytes) -> bytes:
    if not data:
        return b"\x00"
    position = draw.randrange(len(data))
    new = bytes([data[position] ^ (1 << draw.randrange(8))])
    return data[:position] + new + data[position + 1 :]


def _cut(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data))] if data else b"x"


def _digit(draw: random.Random, data: bytes) -> bytes:
    places = [i for i, b in enumerate(data) if 48 <= b <= 57]
    if not places:
        return data + b"7"
    i = draw.choice(places)
    return data[:i] + bytes([48 + (data[i] - 48 + 1) % 10]) + data[i + 1 :]


def _lines(change: Callable[[random.Random, list[bytes]], list[bytes]]):
    return with_bytes(lambda draw, data: b"".join(change(draw, data.splitlines(True))))


def _swapped(draw: random.Random, lines: list[bytes]) -> list[bytes]:
    if len(lines) < 3:
        return lines[::-1]
    i = draw.randrange(1, len(lines) - 1)
    return [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]


def _directory(draw: random.Random, path: Path) -> None:
    del draw
    path.unlink()
    path.mkdir()


HARMS = (
    Harm("deleted", lambda draw, path: path.unlink()),
    Harm("empty", lambda draw, path: path.write_bytes(b"")),
    Harm("cut", with_bytes(_cut)),
    Harm("a bit flipped", with_bytes(_flipped)),
    Harm("a digit changed", with_bytes(_digit)),
    Harm("doubled", with_bytes(lambda draw, data: data + data)),
    Harm("garbage", with_bytes(lambda draw, data: draw.randbytes(40))),
    Harm("garbage after", with_bytes(lambda draw, data: data + draw.randbytes(9))),
    Harm("a line lost", _lines(lambda draw, lines: lines[:-1])),
    Harm("a line twice", _lines(lambda draw, lines: [*lines, *lines[-1:]])),
    Harm("lines swapped", _lines(_swapped)),
    Harm("a directory", _directory),
)


class Case(NamedTuple):
    """One file, one kind of damage, what came of it."""

    file: str
    harm: str
    end: str  # refused, same, or what is wrong

    @property
    def problem(self) -> str:
        return "" if self.end in ("refused", "same") else self.end


def files_of(directory: Path) -> list[Path]:
    """The files of a run that who goes on with it may read."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return [p for p in found if p.suffix not in (".png", ".md") and p.name[0] != "."]


def harm_run(draw: random.Random, finished: Path, place: Path) -> Case:
    """Damages a file of a copy of a run, goes on with it, and compares all numbers."""
    copy = place / "copy"
    shutil.copytree(finished, copy)
    path = draw.choice(files_of(copy))
    harm = draw.choice(HARMS)
    name = str(path.relative_to(copy))
    before = path.read_bytes()
    harm.act(draw, path)
    if path.is_file() and path.read_bytes() == before:
        return Case(name, harm.name, "same")
    result = outcome.run([*TRAIN, "--directory", copy])
    if result.problem:
        return Case(name, harm.name, f"{result.problem}: {result.text[-300:]}")
    if result.status == 2:
        return Case(name, harm.name, "refused")
    same = results(copy) == results(finished)
    return Case(name, harm.name, "same" if same else "accepted with other numbers")
