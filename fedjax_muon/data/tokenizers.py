"""Tokenizers: texts to token ids and back, and how many bytes each token stands for.

    tokenizer = data.tokenizers.characters(text)
    ids = tokenizer.encode("To be")

`data.from_text` takes one, or the name of one.
"""

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.files import reading
from fedjax_muon.versions import optional

SPACE = "\u2581"  # of SentencePiece
SHOWN = 24  # letters of a text in errors
REMEDY = (
    "take another tokenizer, or have no bits per byte: "
    "data.tokenizers.from_file(path, lossy=True)"
)


class Tokenizer(NamedTuple):
    """A vocabulary of V tokens."""

    name: str
    encode: Callable[[str], np.ndarray]  # text -> ids, int32 [n]
    decode: Callable[[ArrayLike], str]  # ids -> text
    # int32 [V], the UTF-8 bytes of each token; 0 of one that is not text
    nbytes: np.ndarray
    path: Path | None = None  # of its file

    @property
    def vocabulary(self) -> int:
        """V, the number of tokens."""
        return len(self.nbytes)

    def __repr__(self) -> str:
        return f"{self.name} of {self.vocabulary} tokens"


def of_bytes() -> Tokenizer:
    """The 256 bytes of UTF-8, of any text.

    Example:
      >>> tokenizer = of_bytes()
      >>> tokenizer.encode("é!").tolist()
      [195, 169, 33]
      >>> tokenizer.decode([195, 169, 33])
      'é!'
    """

    def encode(text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def decode(ids: ArrayLike) -> str:
        return np.asarray(ids, np.uint8).tobytes().decode(errors="replace")

    return Tokenizer("bytes", encode, decode, np.ones(256, np.int32))


def characters(text: str) -> Tokenizer:
    """The characters of a text, in the order of Unicode.

    Example:
      >>> characters("to be").encode("bet").tolist()
      [1, 2, 4]
    """
    letters = sorted(set(text))
    if not letters:
        raise ValueError("a text without characters has no tokens; give another one")
    places = {letter: i for i, letter in enumerate(letters)}

    def encode(text: str) -> np.ndarray:
        unknown = set(text) - places.keys()
        if unknown:
            raise ValueError(
                f"the vocabulary of {len(letters)} characters has no "
                f"{min(unknown)!r}; leave it out, or encode by bytes"
            )
        return np.array([places[letter] for letter in text], np.int32)

    def decode(ids: ArrayLike) -> str:
        return "".join(letters[i] for i in np.ravel(np.asarray(ids)))

    nbytes = np.array([len(letter.encode()) for letter in letters], np.int32)
    return Tokenizer("characters", encode, decode, nbytes)


def from_file(path: str | os.PathLike[str], *, lossy: bool = False) -> Tokenizer:
    """Reads tokenizer.json of the library `tokenizers`, which must be installed.

    Truncation, padding and dropout are turned off, and special tokens have no bytes.

    Args:
      lossy: Takes texts that do not come back from their ids, such as those with
        unknown words, which `encode` refuses otherwise. No token has bytes then.
    """
    place = Path(path).expanduser()
    library = optional("tokenizers", f"the tokenizer {place}")
    remedy = "save it again, by tokenizer.save(path)"
    # the library raises plain exceptions
    with reading(place, "a tokenizer.json", remedy, errors=(Exception,)):
        made = library.Tokenizer.from_str(place.read_text(encoding="utf-8"))
        made.no_truncation()
        made.no_padding()
        if hasattr(made.model, "dropout"):
            made.model.dropout = None
        facts = json.loads(made.to_str())
    vocabulary = made.get_vocab(with_added_tokens=True)
    added = {each["content"]: each["special"] for each in facts["added_tokens"]}
    steps = ("normalizer", "pre_tokenizer", "decoder")
    by_bytes = '"ByteLevel"' in json.dumps([facts.get(step) for step in steps])
    fallback = facts["model"].get("byte_fallback", False)
    sizes = np.zeros(1 + max(vocabulary.values()), np.int32)
    for token, i in vocabulary.items():
        size = _bytes_of(token, by_bytes, fallback)
        sizes[i] = len(token.encode()) if token in added else size
    nbytes = sizes.copy()
    nbytes[[i for token, i in vocabulary.items() if lossy or added.get(token)]] = 0

    def encode(text: str) -> np.ndarray:
        ids = np.array(made.encode(text, add_special_tokens=False).ids, np.int32)
        if not lossy:
            back = made.decode(ids.tolist(), skip_special_tokens=False)
            _check_same(place.name, text, back)
            check_bytes(place.name, text, sizes[ids])
        return ids

    def decode(ids: ArrayLike) -> str:
        return made.decode(np.ravel(np.asarray(ids)).tolist())

    return Tokenizer(place.name, encode, decode, nbytes, place)


def _bytes_of(token: str, by_bytes: bool, fallback: bool) -> int:
    """The bytes of a token of a vocabulary, whose letters may stand for bytes."""
    if fallback and re.fullmatch("<0x[0-9A-F]{2}>", token):
        return 1
    return len(token) if by_bytes else len(token.replace(SPACE, " ").encode())


def _check_same(name: str, text: str, back: str) -> None:
    """Raises `ValueError` unless a text comes back, maybe with a blank in front."""
    text, back = text.removeprefix(" "), back.removeprefix(" ")
    if text != back:
        pairs = enumerate(zip(f"{text}\0", f"{back}\0", strict=False))
        at = max(0, next(i for i, (a, b) in pairs if a != b) - SHOWN // 2)
        given, found = (each[at : at + SHOWN] for each in (text, back))
        raise ValueError(f"{name} loses text: {given!r} becomes {found!r}; {REMEDY}")


def check_bytes(name: str, text: str, sizes: np.ndarray) -> None:
    """Raises `ValueError` unless tokens, if all are text, have the bytes of a text."""
    size = len(text.encode())
    if sizes.all() and sizes.sum() not in (size, size + 1):  # with a blank in front
        raise ValueError(
            f"the tokens of {name} have {sizes.sum()} bytes, the text {size}; {REMEDY}"
        )


NAMED: dict[str, Callable[[Iterable[str]], Tokenizer]] = {
    "bytes": lambda texts: of_bytes(),
    "characters": lambda texts: characters("".join(texts)),
}
