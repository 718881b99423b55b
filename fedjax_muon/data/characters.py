"""Prediction of the next character of a text.

The characters are those of LEAF's Shakespeare (arXiv:1812.01097).
"""

import numpy as np

from fedjax_muon.data.dataset import Examples
from fedjax_muon.data.text import padded

LETTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
NAMES = tuple({"\n": "newline", " ": "space"}.get(x, x) for x in LETTERS)
DIGITS_AND_LETTERS = tuple(  # the classes of FEMNIST
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)
UNKNOWN = len(LETTERS) + 1  # token id; that of LETTERS[i] is i + 1, and 0 is padding
TOKENS = len(LETTERS) + 2
CONTEXT = 80  # characters that the next one is predicted from
_IDS = {letter: i + 1 for i, letter in enumerate(LETTERS)}


def encode(text: str) -> np.ndarray:
    """Converts characters to token ids, int32; those outside of LETTERS are UNKNOWN.

    Example:
      >>> encode("a!").tolist()
      [54, 3]
    """
    return np.array([_IDS.get(letter, UNKNOWN) for letter in text], np.int32)


def windows(text: str, *, context: int = CONTEXT, stride: int = 1) -> Examples:
    """Makes examples of a text: characters in a row, and the one after them.

    Args:
      context: Largest number of characters before the predicted one; at the start of
        the text there are fewer, with padding after them.

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
    contexts = [ids[max(end - context, 0) : end] for end in ends]
    return padded(contexts, context), ids[ends] - 1
