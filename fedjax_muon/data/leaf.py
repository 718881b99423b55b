"""FEMNIST and Shakespeare in the JSON files of LEAF (arXiv:1812.01097).

A file has the keys `users`, `num_samples` and `user_data`, with lists `x` and `y` for
every user. The folders `train` and `test` have one file or several.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.core.reading import reading
from fedjax_muon.data import characters
from fedjax_muon.data.dataset import Dataset, Examples, of_clients

URL = "https://github.com/TalwalkarLab/leaf"
Convert = Callable[[list[Any], list[Any]], Examples]


def read_users(
    paths: Sequence[Path], convert: Convert, classes: tuple[str, ...]
) -> Dataset:
    """Reads the users of a dataset; those of the training files are the owners.

    Args:
      paths: A file in the folder of training files, and one in that of test files.
      convert: Function from a user's `x` and `y` to inputs and labels.
    """
    train, test = (
        [
            examples
            for file in sorted(path.parent.glob("*.json"))
            for examples in _examples(file, convert)
        ]
        for path in paths
    )
    tokens = characters.TOKENS if convert is next_characters else 0
    return of_clients(train, test, classes, tokens)


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
            x, y = content["user_data"][user]["x"], content["user_data"][user]["y"]
            if len(x) != number or len(y) != number:
                raise ValueError(
                    f"user {user!r} has {len(x)} inputs and {len(y)} labels, and "
                    f"num_samples says {number}"
                )
            if number:
                yield convert(x, y)
