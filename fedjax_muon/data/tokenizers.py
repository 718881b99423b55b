"""Tokenizers: texts to token ids and back, and how many bytes each token stands for.

    tokenizer = data.tokenizers.characters(text)
    ids = tokenizer.encode("To be")

`data.from_text` takes one, or the name of one.
"""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.files import reading
from fedjax_muon.versions import optional

SPACE = "\u2581"  # of SentencePiece


class Tokenizer(NamedTuple):
    """A vocabulary of V tokens."""

    name: str
    encode: Callable[[str], np.ndarray]  # text -> ids, int32 [n]
    decode: Callable[[ArrayLike], str]  # ids -> text
    # int32 [V], the UTF-8 bytes of each token; 0 of one that is no text
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


def from_file(path: str | os.PathLike[str]) -> Tokenizer:
    """Reads tokenizer.json of the library `tokenizers`, which must be installed."""
    place = Path(path).expanduser()
    library = optional("tokenizers", f"the tokenizer {place}")
    remedy = "save it again, by tokenizer.save(path)"
    # the library raises plain exceptions
    with reading(place, "a tokenizer.json", remedy, errors=(Exception,)):
        made = library.Tokenizer.from_str(place.read_text(encoding="utf-8"))
        facts = json.loads(made.to_str())
    vocabulary = made.get_vocab(with_added_tokens=True)
    special = {each["content"] for each in facts["added_tokens"] if each["special"]}
    by_bytes = '"ByteLevel"' in json.dumps(
        [facts.get("pre_tokenizer"), facts.get("decoder")]
    )
    nbytes = np.zeros(1 + max(vocabulary.values()), np.int32)
    for token, i in vocabulary.items():
        nbytes[i] = 0 if token in special else _bytes_of(token, by_bytes)

    def encode(text: str) -> np.ndarray:
        ids = made.encode(text, add_special_tokens=False).ids
        return np.array(ids, np.int32)

    def decode(ids: ArrayLike) -> str:
        return made.decode(np.ravel(np.asarray(ids)).tolist())

    return Tokenizer(place.name, encode, decode, nbytes)


def _bytes_of(token: str, by_bytes: bool) -> int:
    """The bytes of a token of a vocabulary, whose letters may stand for bytes."""
    is_byte = token.startswith("<0x") and token.endswith(">") and len(token) == 6
    if by_bytes or is_byte:
        return 1 if is_byte else len(token)
    return len(token.removeprefix("##").replace(SPACE, " ").encode())


NAMED: dict[str, Callable[[Iterable[str]], Tokenizer]] = {
    "bytes": lambda texts: of_bytes(),
    "characters": lambda texts: characters("".join(texts)),
}
