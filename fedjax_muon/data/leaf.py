"""FEMNIST and Shakespeare in the JSON files of LEAF (arXiv:1812.01097).

A file has the keys `users`, `num_samples` and `user_data`, with lists `x` and `y` for
every user. The folders `train` and `test` have one file or several.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.core.reading import reading
from fedjax_muon.data import characters
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.source import File, Layout

URL = "https://github.com/TalwalkarLab/leaf"
DIGITS_AND_LETTERS = tuple(
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)
Examples = tuple[np.ndarray, np.ndarray]
Convert = Callable[[list[Any], list[Any]], Examples]


def layout(name: str, convert: Convert, classes: tuple[str, ...]) -> Layout:
    """Describes a data set of LEAF, in the folder that its scripts write.

    Args:
      name: Name of its folder in LEAF.
      convert: Function from a user's `x` and `y` to inputs and labels.
    """

    def read(paths: list[Path]) -> Dataset:
        return read_users(paths, convert, classes)

    return Layout(
        files=(File("train/*.json"), File("test/*.json")),
        folders=(f"{name}/data", name),
        read=read,
        how=f"run preprocess.sh in data/{name} of {URL}, and give its directory data",
    )


def read_users(
    paths: list[Path], convert: Convert, classes: tuple[str, ...]
) -> Dataset:
    """Reads the users of a data set; those of the training files are the owners.

    Args:
      paths: A file in the folder of training files, and one in that of test files.
      convert: As for `layout`.
    """
    train, test = (
        characters.joined(
            examples
            for file in sorted(path.parent.glob("*.json"))
            for examples in _examples(file, convert)
        )
        for path in paths
    )
    is_text = train[0].dtype == np.int32
    return Dataset(
        x_train=train[0],
        y_train=train[1],
        x_test=test[0],
        y_test=test[1],
        classes=classes,
        tokens=characters.TOKENS if is_text else 0,
        owners=train[2],
    )


def images(x: list[Any], y: list[Any]) -> Examples:
    """Converts a user of FEMNIST: 28 x 28 gray values in 0..1, where 1 is white."""
    pixels = np.array(x, np.float32).reshape(len(y), 28, 28, 1)
    return pixels, np.array(y, np.int32)


def next_characters(x: list[Any], y: list[Any]) -> Examples:
    """Converts a user of Shakespeare: 80 characters, and the one after them."""
    if len(x) != len(y):
        raise ValueError(f"{len(x)} texts and {len(y)} characters")
    ids = np.stack([characters.encode(text) for text in x])
    labels = characters.encode("".join(y)) - 1
    if len(labels) != len(x) or ids.ndim != 2:
        raise ValueError("a label of several characters")
    known = labels < len(characters.LETTERS)
    return ids[known], labels[known]


def _examples(path: Path, convert: Convert) -> Iterator[Examples]:
    with reading(path, "users, num_samples and user_data of LEAF", "write it again"):
        content = json.loads(path.read_bytes())
        for user, number in zip(content["users"], content["num_samples"], strict=True):
            own = content["user_data"][user]
            if len(own["x"]) != number or len(own["y"]) != number:
                raise ValueError(
                    f"user {user!r} has {len(own['x'])} inputs and {len(own['y'])} "
                    f"labels, and num_samples says {number}"
                )
            if number:
                yield convert(own["x"], own["y"])
