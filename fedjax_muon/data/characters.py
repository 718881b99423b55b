"""Prediction of the next character of a text.

The characters are those of LEAF's Shakespeare (arXiv:1812.01097).
"""

from collections.abc import Iterable, Sequence

import numpy as np

LETTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
NAMES = tuple({"\n": "newline", " ": "space"}.get(one, one) for one in LETTERS)
UNKNOWN = len(LETTERS) + 1  # token id; that of LETTERS[i] is i + 1, and 0 is padding
TOKENS = len(LETTERS) + 2
CONTEXT = 80  # characters that the next one is predicted from
_IDS = {one: i + 1 for i, one in enumerate(LETTERS)}


def encode(text: str) -> np.ndarray:
    """Converts characters to token ids.

    Args:
      text: Any text.

    Returns:
      Token ids, int32 [len(text)]; characters outside of LETTERS are UNKNOWN.

    Example:
      >>> encode("a!").tolist()
      [54, 3]
    """
    return np.array([_IDS.get(one, UNKNOWN) for one in text], np.int32)


def windows(
    text: str, *, context: int = CONTEXT, stride: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Makes examples of a text: characters in a row, and the one after them.

    Args:
      text: Text of one owner.
      context: Largest number of characters before the predicted one; at the start of
        the text there are fewer, with padding after them.
      stride: Distance of predicted characters.

    Returns:
      Token ids int32 [n, context], and labels int32 [n], places in LETTERS. Characters
      outside of LETTERS are not predicted.

    Example:
      >>> x, y = windows("to be", context=3, stride=2)
      >>> "".join(LETTERS[label] for label in y)
      'ob'
    """
    ids = encode(text)
    ends = np.arange(1, len(ids), stride)
    ends = ends[ids[ends] != UNKNOWN]
    x = np.zeros((len(ends), context), np.int32)
    for row, end in zip(x, ends, strict=True):
        seen = ids[max(end - context, 0) : end]
        row[: len(seen)] = seen
    return x, ids[ends] - 1


def joined(
    parts: Iterable[tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Joins the examples of several owners.

    Args:
      parts: Inputs and labels of every owner.

    Returns:
      All inputs, all labels, and the number of the owner of each.
    """
    found: Sequence[tuple[np.ndarray, np.ndarray]] = list(parts)
    if not found:
        raise ValueError("no client")
    owners = np.repeat(np.arange(len(found)), [len(y) for _, y in found])
    x, y = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    return x, y, owners.astype(np.int32)
