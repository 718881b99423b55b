"""Texts that name things: labels, owners and parts, in tables and in arrays alike."""

import re
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

MISSING = ("NaN", "NA", "N/A", "null", "None", "?", "<NA>", "-")  # and an empty text
OF_NUMPY = ("nan", "<NA>", "NaT")  # what missing values become in arrays of texts
WHOLE = re.compile(r"\+?(-?\d+)(?:\.0*)?")  # 1 as a program that knows floats writes it


def clean(text: str) -> str:
    """A normal form of a name: names with the same form count as the same.

    Example:
      >>> [clean(text) for text in (" north ", "1.0", "+1", "01", "1.5")]
      ['north', '1', '1', '01', '1.5']
    """
    text = unicodedata.normalize("NFC", text).strip().strip("\ufeff\u200b")
    whole = WHOLE.fullmatch(text)
    return whole[1] if whole else text


def cleaned(
    texts: Sequence[str],
    rows: np.ndarray,
    what: str,
    missing: Collection[str],
    place: Callable[[int], str],
) -> np.ndarray:
    """The names that rows have: integers if all of them are, so that 2 precedes 10.

    Args:
      texts: Different texts.
      rows: For every row, the number of its text.
      what: What the texts are, in errors and warnings.
      missing: Words that stand for a missing value. These are errors.
      place: Function from the number of a row to where it is, in errors.
    """
    absent = {word.casefold() for word in missing} | {""}
    names = np.array([clean(text) for text in texts] or [""])
    gone = np.array([name.casefold() in absent for name in names.tolist()])
    if gone[rows].any():
        row, count = int(np.argmax(gone[rows])), int(gone[rows].sum())
        word = names[rows[row]]
        more = f" ({count} of {len(rows)} are missing)" if count > 1 else ""
        if not word:
            raise ValueError(
                f"{place(row)}: {what} is empty{more}; fill it in, or leave it out"
            )
        raise ValueError(
            f"{place(row)}: {what} is {str(word)!r}, which stands for a missing value"
            f"{more}; fill it in, leave it out or, if it is a name, give the words for "
            "missing values as `na_values`"
        )
    used = np.unique(names[np.unique(rows)])
    warn_of_likeness(what, used.tolist())
    whole = all(re.fullmatch(r"0|-?[1-9]\d{0,17}", name) for name in used.tolist())
    return (names.astype(np.int64) if whole else names)[rows]


def warn_of_likeness(what: str, names: Iterable[str]) -> None:
    """Warns about names that differ only in case, blanks or zeros."""
    seen: dict[Any, str] = {}
    for name in names:
        key: Any = " ".join(name.casefold().split())
        try:
            key = float(key)
        except ValueError:
            if len(name) == 1:  # as the letters of EMNIST
                continue
        if key in seen:
            warnings.warn(
                f"{what} {seen[key]!r} and {name!r} count as two; if they are one, "
                "write them alike",
                stacklevel=2,
            )
        seen.setdefault(key, name)


def of_array(name: str, values: Any, count: int) -> np.ndarray:
    """The names in an array [count]: integers or texts.

    Integers and texts in any form that pandas, NumPy and h5py have them are taken:
    objects, bytes, whole floats, booleans.
    """
    values = np.asarray(values)
    kind, shape = values.dtype.kind, list(values.shape)
    if values.shape != (count,) or kind not in "biufUSOT":
        hint = ""
        if values.ndim == 2 and values.shape[0] == count:
            hint = f"; give {name}.{'ravel()' if shape[1] == 1 else 'argmax(1)'}"
        raise ValueError(
            f"{name} must be {count} integers or strings, one per example, got "
            f"{values.dtype}{shape}{hint}"
        )
    if kind in "iu" or not count:
        return values
    texts, rows = np.unique(
        [_text(name, i, value) for i, value in enumerate(values.tolist())],
        return_inverse=True,
    )
    place = lambda i: f"example {i}"
    return cleaned(texts.tolist(), rows, f"{name}", OF_NUMPY, place)


def _text(name: str, i: int, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, bool | np.bool_ | Integral):
        return str(value)
    if value is None or str(value) in OF_NUMPY:
        return ""
    if isinstance(value, Real) and float(value).is_integer():
        return str(int(float(value)))
    number = "; numbers that are not classes are targets: from_arrays(x, targets=y)"
    raise ValueError(
        f"{name} must be integers or strings, got {value!r} in example {i}"
        f"{number if isinstance(value, Real) else ''}"
    )
