"""Tokenizers: texts to token ids and back, and how many bytes each token stands for.

    tokenizer = data.tokenizers.characters(text)
    ids = tokenizer.encode("To be")

`data.from_text` takes one, or the name of one.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.files import reading
from fedjax_muon.versions import optional

SPACE = "\u2581"  # of SentencePiece
SHOWN = 24  # letters of a text in errors


class Tokenizer(NamedTuple):
    """A vocabulary of V tokens."""

    name: str
    encode: Callable[[str], np.ndarray]  # text -> ids, int32 [n]
    decode: Callable[[ArrayLike], str]  # ids -> text
    # int32 [V], the UTF-8 bytes of each token; 0 of one that is no text, and of all if
    # there shall be no bits per byte
    nbytes: np.ndarray

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

    Truncation, padding and dropout of merges are turned off. A blank that is put in
    front of a text is no part of it, and special tokens have no bytes.

    Args:
      lossy: Takes texts that do not come back from their ids, as with lower-case
        letters, words that are unknown, or dropped blanks. `encode` refuses them
        otherwise. No token has bytes then, and models no bits per byte.
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
    size_of = _sizes(facts)
    sizes = np.zeros(1 + max(vocabulary.values()), np.int32)
    nbytes = np.zeros_like(sizes)
    for token, i in vocabulary.items():
        sizes[i] = len(token.encode()) if token in added else size_of(token)
        nbytes[i] = 0 if lossy or added.get(token) else sizes[i]

    def encode(text: str) -> np.ndarray:
        ids = np.array(made.encode(text, add_special_tokens=False).ids, np.int32)
        if not lossy:
            back = made.decode(ids.tolist(), skip_special_tokens=False)
            _check_kept(place.name, text, back, int(sizes[ids].sum()))
        return ids

    def decode(ids: ArrayLike) -> str:
        return made.decode(np.ravel(np.asarray(ids)).tolist())

    return Tokenizer(place.name, encode, decode, nbytes)


def _sizes(facts: Mapping[str, Any]) -> Callable[[str], int]:
    """The bytes of a token of a vocabulary, whose letters may stand for bytes."""
    model, steps = facts["model"], ("normalizer", "pre_tokenizer", "decoder")
    how = json.dumps([facts.get(step) for step in steps], ensure_ascii=False)
    if '"ByteLevel"' in how:
        return len
    begin = model.get("continuing_subword_prefix") or ""
    end = model.get("end_of_word_suffix") or ""

    def size_of(token: str) -> int:
        if model.get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", token):
            return 1
        if end and token.endswith(end):
            token = token.removesuffix(end) + " "
        token = token.removeprefix(begin)
        return len((token.replace(SPACE, " ") if SPACE in how else token).encode())

    return size_of


def _check_kept(name: str, text: str, back: str, count: int) -> None:
    """Raises `ValueError` unless a text comes back from its ids, with all bytes."""
    remedy = (
        "so bits per byte would be false; use another tokenizer, or "
        "data.tokenizers.from_file(path, lossy=True), which has none"
    )
    size, pair = len(text.encode()), [text.removeprefix(" "), back.removeprefix(" ")]
    if pair[0] != pair[1]:
        letters = enumerate(zip(*pair, strict=False))
        same = next((i for i, (a, b) in letters if a != b), min(map(len, pair)))
        at = max(0, same - SHOWN // 2)
        given, found = (each[at : at + SHOWN] for each in pair)
        raise ValueError(f"{name} loses text: {given!r} becomes {found!r}, {remedy}")
    if count not in (size, size + 1):
        raise ValueError(
            f"{name}: its tokens have {count} bytes, the text {size}, {remedy}"
        )


NAMED: dict[str, Callable[[Iterable[str]], Tokenizer]] = {
    "bytes": lambda texts: of_bytes(),
    "characters": lambda texts: characters("".join(texts)),
}
