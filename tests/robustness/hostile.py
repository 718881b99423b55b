"""Files that were made to harm their readers: one kind of format each."""

import bz2
import functools
import gzip
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .damage import Harm
from .tiny_files import IMAGES, LABELS, SMALL, TRAIN, write_npz

MEGABYTE = 2**20
BOMB = 640 * MEGABYTE
VALUES = (None, True, -1, 0, 1.5, 2**70, 10**9, 1e300)
VALUES += ("x", "", [], {}, [[]], "9" * 5000)


def mutated(draw: random.Random, tree: Any) -> Any:
    """A JSON value with another value somewhere, or without one."""
    value = draw.choice(VALUES)
    if not isinstance(tree, dict | list) or not tree:
        return value
    if isinstance(tree, list):
        i = draw.randrange(len(tree))
        return [*tree[:i], mutated(draw, tree[i]), *tree[i + 1 :]]
    key = draw.choice(list(tree))
    choice = draw.random()
    if choice < 0.1:
        return {k: v for k, v in tree.items() if k != key}
    if choice < 0.2:
        return tree | {str(value): value}
    if choice < 0.5:
        return tree | {key: value}
    return tree | {key: mutated(draw, tree[key])}


def edited(change: Callable[[random.Random, Any], Any]):
    """A JSON file with what a change returns, or makes of its value."""

    def act(draw: random.Random, path: Path) -> None:
        content = json.loads(path.read_text())
        path.write_text(json.dumps(change(draw, content)))

    return act


# --------------------------------------------------------------------- npz
def npy(descr: str, shape: tuple, content: bytes = b"", fortran=False) -> bytes:
    """A .npy file with any header."""
    header = repr({"descr": descr, "fortran_order": fortran, "shape": shape}) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + content


Y = LABELS[TRAIN]
ARRAYS = (  # in place of x_train, y_train or classes
    *(np.array([None] * 6), np.array([{"a": 1}] * 6, object), SMALL[TRAIN] / 255),
    *(Y.astype(complex), Y.astype("datetime64[s]"), Y.astype(float) * np.nan),
    *(Y.astype(bool), Y.astype("S"), Y + np.uint64(2**63), Y.astype(int) - 3),
    *(np.zeros(6, [("a", "i4"), ("ü", "f4")]), np.zeros((0, 4, 5, 3), np.uint8)),
    *(np.array(3), np.array([[1]])),
)
MEMBERS = (
    npy("|u1", (2**40, 4, 5, 3)),
    npy("|u1", (2**70,), b"abc"),
    npy("|u1", (-1, 4, 5, 3), b"abc" * 99),
    npy("|u1", (True, 4, 5, 3), b"abc" * 20),
    npy("|V2147483647", (2**31,)),
    npy("<U0", (2**40,)),
    npy("|u1", (0, 2**62, 5, 3)),
    npy("|O", (1,), b"cos\nsystem\n(S'false'\ntR."),
    npy("(" * 500, (1,)),
    b"\x93NUMPY\x02\0" + struct.pack("<I", 2**31 - 1) + b" " * 20_000,
    *(b"\x93NUMPY\x09\0", b"", b"\x80\x04N."),
)


def _contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _own_array(draw: random.Random, path: Path) -> None:
    name = draw.choice(("x_train", "y_train", "x_test", "y_test", "classes"))
    path.unlink()
    write_npz(path.parent, **{name: draw.choice(ARRAYS)})


def _rezipped(change: Callable[[random.Random, dict[str, bytes]], Any]):
    """An archive of the pairs of names and contents that a change returns."""

    def act(draw: random.Random, path: Path) -> None:
        pairs = change(draw, _contents(path))
        path.unlink()
        kinds = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA
        with zipfile.ZipFile(path, "w", draw.choice(kinds)) as archive:
            for name, content in pairs:
                archive.writestr(name, content)

    return act


def _member(draw: random.Random, members: dict[str, bytes]) -> list:
    name = draw.choice(list(members))
    return [*(members | {name: draw.choice(MEMBERS)}).items()]


def _renamed(draw: random.Random, members: dict[str, bytes]) -> list:
    new = draw.choice(("../x_train.npy", "x_train", "X_TRAIN.npy", "a\0b", "ü.npy"))
    name = draw.choice(list(members))
    return [(new if n == name else n, content) for n, content in members.items()]


def _bits(*offsets: int):
    """Other bits in the fields of a member's entry in the archive's directory."""

    def act(draw: random.Random, path: Path) -> None:
        content = bytearray(path.read_bytes())
        entry = content.find(b"PK\x01\x02")
        local = content.find(b"PK\x03\x04")
        offset = draw.choice(offsets)
        content[entry + offset] ^= 1 << draw.randrange(8)
        if offset < 20 and draw.random() < 0.5:
            content[local + offset - 2] = content[entry + offset]
        path.write_bytes(content)

    return act


@functools.cache
def _zip_bomb() -> bytes:
    """A member of zeros, by its header the images, in a thousandth of its size."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x_train.npy", "w") as member,
    ):
        count = BOMB // 60
        member.write(npy("|u1", (count, 4, 5, 3)))
        for _ in range(60):
            member.write(bytes(count))
    return file.getvalue()


def _bomb(draw: random.Random, path: Path) -> None:
    del draw
    members = _contents(path)
    path.write_bytes(_zip_bomb())
    with zipfile.ZipFile(path, "a") as archive:
        for name in set(members) - {"x_train.npy"}:
            archive.writestr(name, members[name])


# --------------------------------------------------------------- other files
def _gzip_bomb(draw: random.Random, path: Path) -> None:
    start = gzip.decompress(path.read_bytes()) if draw.random() < 0.5 else b""
    member = gzip.compress(bytes(MEGABYTE))
    path.write_bytes(gzip.compress(start) + member * (BOMB // MEGABYTE))


def _bzip2_bomb(draw: random.Random, path: Path) -> None:
    member = bz2.compress(draw.choice((b"\n", b"1")) * 16 * MEGABYTE)
    path.write_bytes(member * (BOMB // MEGABYTE // 16))


def _line(*lines: str) -> Harm:
    """One of these lines in place of one of the file."""

    def act(draw: random.Random, path: Path) -> None:
        found = path.read_text().split("\n")
        found[draw.randrange(len(found) - 1)] = draw.choice(lines)
        path.write_text("\n".join(found))

    return Harm("another line", act)


LIBSVM = (
    *("+1 1180591620717411303424:1", "+1 4294967297:1", "+1 -3:1", "+1 0:1"),
    *("+1 1:nan", "+1 1:inf", "-1 1:1e400", "nan 1:1", "1e400 1:1", "+1,-1 1:1"),
    *("+1 qid:3 1:1", "+1 2:1 1:1", "+1 1:1 1:1", "+1 1_0:1", "+1 ١:1", "# nothing"),
    *("", "+1 1:1 # 3", "+1 1:0x10", "+1" + " 1:1" * 9999),
)
TABLE = ("", "\t\t\t\t", "\0\t1", "a\t1\0", "a\tb\t2", "x" * 200_000 + "\t1", '"a\t1')
TABLE += ("gj04\t1\t\t", "7\ta\tb\tentailment")


def _other_image(draw: random.Random, path: Path) -> None:
    kind = draw.choice(("PNG", "GIF", "TIFF", "BMP", "EPS"))
    Image.fromarray(IMAGES[0, :8, :8]).save(path, kind)


def _large_image(draw: random.Random, path: Path) -> None:
    """Another height and width in the header of a JPEG file."""
    content = bytearray(path.read_bytes())
    place = content.find(b"\xff\xc0") + 5
    sides = draw.choice(((65_500, 65_500), (12_000, 12_000), (10_000, 9_000), (0, 8)))
    content[place : place + 4] = struct.pack(">2H", *sides)
    path.write_bytes(content)


def _shards(draw: random.Random, info: dict) -> dict:
    """Other numbers of examples in the shards of a split."""
    number = draw.choice(("2", "0", "7", "-1", "9223372036854775807", "1" + "0" * 30))
    split = draw.choice(info["splits"])
    split["shardLengths"] = [number] * draw.choice((1, 1, 1, 2))
    return info


def _classes(draw: random.Random, path: Path) -> None:
    """Other Python classes of features."""
    names = ("os.system", "tensorflow_datasets.core.nothing.X", "tensorflow_datasets.")
    text, old = path.read_text(), "tensorflow_datasets.core.features"
    places = text.split(old)
    i = draw.randrange(1, len(places))
    path.write_text(old.join(places[:i]) + draw.choice(names) + old.join(places[i:]))


HARMS: dict[tuple[str, str], tuple[Harm, ...]] = {  # by kind and end of the name
    ("npz", ""): (
        Harm("another array", _own_array),
        Harm("another member", _rezipped(_member)),
        Harm("another name", _rezipped(_renamed)),
        Harm("another compression", _bits(10, 8)),
        Harm("another checksum", _bits(16, 20, 24)),
        Harm("a bomb", _bomb),
    ),
    ("idx", ".gz"): (Harm("a bomb", _gzip_bomb),),
    ("libsvm, bzip2", ""): (Harm("a bomb", _bzip2_bomb),),
    ("libsvm", "a9a"): (_line(*LIBSVM),),
    ("libsvm", "a9a.t"): (_line(*LIBSVM),),
    ("", ".tsv"): (_line(*TABLE),),
    ("yelp", ".txt"): (_line(*TABLE),),
    ("tiny_imagenet", "s.txt"): (
        _line(*TABLE, "../../../etc\tx", "n\0\tx", "/", "n02"),
    ),
    ("tiny_imagenet", ".JPEG"): (
        Harm("another format", _other_image),
        Harm("a large image", _large_image),
    ),
    ("prepared", "dataset_info.json"): (Harm("other shards", edited(_shards)),),
    ("prepared", "features.json"): (Harm("other classes", _classes),),
}
