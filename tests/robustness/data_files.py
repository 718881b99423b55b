"""Damaged and hostile data files and checkpoints, and what reading them ends in.

Every case must end in one `ValueError` or `OSError` of one line that names the file, or
in the values of the undamaged files where a checksum or a published number tells.
"""

import os
import random
import resource
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from . import hostile
from .damage import HARMS, Harm, with_bytes
from .outcome import HangError, limited
from .tiny_files import KINDS, Arrays, Kind

SECONDS = 20  # that a case may take
MEMORY = 400_000  # KiB by which the largest memory of the process may grow
GROWN = 2**30  # bytes of a sparse file


def _number(draw: random.Random, content: bytes) -> bytes:
    """A huge number in place of one written in digits, or of four bytes."""
    runs = [i for i, byte in enumerate(content[:4000]) if 48 <= byte <= 57]
    if runs and draw.random() < 0.7:
        i = draw.choice(runs)
        new = draw.choice((b"1180591620717411303424", b"-1", b"1e400", b"nan", b"0"))
        return content[:i] + new + content[i + 1 :]
    i = draw.randrange(max(1, min(len(content), 64)))
    four = draw.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0\0\0\x80", b"\0" * 4))
    return content[:i] + four + content[i + 4 :]


def _inserted(*choices: bytes):
    def change(draw: random.Random, content: bytes) -> bytes:
        i = draw.randrange(len(content) + 1)
        return content[:i] + draw.choice(choices) + content[i:]

    return with_bytes(change)


def _loop(draw: random.Random, path: Path) -> None:
    del draw
    path.unlink()
    path.symlink_to(path)


OWN = (
    Harm("a huge number", with_bytes(_number)),
    Harm("NUL bytes", _inserted(b"\0", b"\0" * 700)),
    Harm("other letters", _inserted("💥".encode(), b"\xe9", "\u2028²".encode(), b"\r")),
    Harm("a symbolic link to itself", _loop),
    Harm("a sparse end", lambda draw, path: os.truncate(path, GROWN)),
)
LOCKED = Harm("no permission", lambda draw, path: path.chmod(0))
JSON = (
    Harm("another value", hostile.edited(hostile.mutated)),
    Harm(
        "deep brackets",
        lambda draw, path: path.write_text(draw.choice(("[", '{"a":')) * 200_000),
    ),
)


def harms_for(name: str, path: Path) -> list[Harm]:
    """What can be done to a file."""
    found = [*HARMS, *OWN]
    if os.getuid() != 0:  # root may read everything
        found.append(LOCKED)
    if path.suffix == ".json":
        found += JSON * 4
    for ending, more in hostile.HARMS.items():
        if name.startswith(ending[0]) and path.name.endswith(ending[1]):
            found += more * max(1, len(found) // (2 * len(more)))
    return found


def _differs(whole: Arrays, found: Arrays, exact: bool) -> str:
    """What is wrong with values that were read from a damaged file."""
    for name, array in found.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"{name} that is not finite is accepted"
    if exact:
        same = whole.keys() == found.keys() and all(
            a.shape == found[n].shape and np.array_equal(a, found[n])
            for n, a in whole.items()
        )
        return "" if same else "other values are accepted"
    for name in ("x_train", "x_test", "y_train", "y_test"):
        if name in whole and len(whole[name]) != len(found[name]):
            return f"{len(found[name])} of {len(whole[name])} rows are accepted"
    return ""


def attempt(kind: Kind, whole: Arrays, folder: Path) -> str:
    """Reads damaged files; returns what is wrong with what came of it."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    problem = ""
    try:
        with limited(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("error")
            found = kind.read(folder)
        # Without published sizes, fewer or more rows can be a valid file.
        problem = _differs(whole, found, kind.exact)
    except (ValueError, OSError) as error:
        text = str(error)
        if "\n" in text:
            problem = f"a message of several lines: {text!r}"
        elif str(folder) not in text:
            problem = f"a message without a path: {text!r}"
        elif isinstance(error, ValueError) and len(text) > 1200:
            problem = f"a message of {len(text)} letters: {text[:300]!r}"
    except HangError:
        problem = f"more than {SECONDS} s"
    except BaseException as error:  # that of Rust is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        problem = f"{type(error).__name__}: {error}"[:300]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    if grown > MEMORY:
        problem = f"{grown >> 10} MiB of memory; {problem}"
    return problem


def cases(draw: random.Random, place: Path) -> Iterator[tuple[str, str, str]]:
    """Damages copies of valid files, one at a time, without end.

    Yields the kind of file, the damage with the file's name, and what is wrong, if
    anything.
    """
    whole: dict[str, Arrays] = {}
    for name, kind in KINDS.items():
        (place / "whole" / name).mkdir(parents=True)
        kind.write(place / "whole" / name)
        whole[name] = kind.read(place / "whole" / name)
    for number in range(10**9):
        name = draw.choice(list(KINDS))
        folder = place / f"{number}"
        shutil.copytree(place / "whole" / name, folder)
        path = draw.choice(sorted(p for p in folder.rglob("*") if p.is_file()))
        harm = draw.choice(harms_for(name, path))
        about = f"{path.relative_to(folder)}: {harm.name}"
        harm.act(draw, path)
        problem = attempt(KINDS[name], whole[name], folder)
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)
        shutil.rmtree(folder)
        yield name, about, problem
