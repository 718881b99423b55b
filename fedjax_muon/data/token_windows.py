"""Texts as windows of tokens, for language models.

    dataset = data.from_text("letters/", window=128)
    text = dataset.tokenizer.decode(dataset.x_train[0])

The tokens of a document are cut into windows of `window` + 1 tokens, each of which
begins with the last token of the one before. So every token but the first is predicted
once, from the tokens before it in its window, and windows take the memory of the
tokens. A window is an example, and its label is the number of its document.
"""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from fedjax_muon.core import check_choice, check_count, check_range
from fedjax_muon.data import natural, tokenizers
from fedjax_muon.data.dataset import Dataset, check
from fedjax_muon.data.hugging_face import is_saved
from fedjax_muon.data.loading import files_of
from fedjax_muon.data.tokenizers import Tokenizer
from fedjax_muon.data.user_files import name_of
from fedjax_muon.files import named, visible
from fedjax_muon.versions import optional

Texts = Mapping[str, str]  # by the names of documents
PLAYS = "plays"
Short = Literal["refuse", "drop", "join"]


def from_text(
    source: str | os.PathLike[str] | Texts,
    *,
    window: int = 128,
    tokenizer: str | os.PathLike[str] | Tokenizer = "bytes",
    test_share: float = 0.1,
    column: str = "text",
    short: Short = "refuse",
) -> Dataset:
    """Reads texts as windows of tokens, x [n, window + 1].

    Several documents are the owners of their windows, so that each can be a client. A
    document's last windows are for testing. The few tokens that fill no window are
    left out.

    Args:
      source: A text file; a directory, in which every .txt file, at any depth, is a
        document; what Hugging Face's `save_to_disk` wrote, one per row; "plays",
        those speakers of Shakespeare's plays who fill two windows; or texts by the
        names of documents.
      window: T, the number of tokens that are predicted in a window.
      tokenizer: "bytes", "characters", the path of a tokenizer.json, or a `Tokenizer`.
      test_share: Share of every document's windows that is held out, at its end.
      column: Column of a Hugging Face dataset.
      short: What becomes of documents with fewer than two windows: "refuse" or "drop"
        them; "join" makes one text of all documents, as of the lines of a book.

    Returns:
      A dataset whose `tokenizer` decodes its windows.

    Raises:
      ValueError: If a document has fewer than two windows, if tokens lose text, and so
        on.

    Example:
      >>> letters = {"ann": "to be or not to be", "bob": "that is the question"}
      >>> dataset = from_text(letters, window=4)
      >>> dataset.tokenizer.decode(dataset.x_train[1])
      'e or '
    """
    check_count("window", window, 2)
    check_range("test_share", test_share, 0, 1, open_low=True, open_high=True)
    check_choice("short", short, get_args(Short))
    found = source if isinstance(source, Mapping) else _texts(source, column)
    texts = {name: _plain(name, text) for name, text in found.items()}
    if not texts:
        raise ValueError("there is no document; give at least one text")
    if short == "join":
        texts = {"joined": "\n".join(t.removesuffix("\n") for t in texts.values())}
    made = tokenizer_of(tokenizer, texts)
    tokens = {name: _ids(name, text, made) for name, text in texts.items()}
    enough = {name: ids for name, ids in tokens.items() if len(ids) > 2 * window}
    # you can't leave out speakers yourself
    if enough and (short == "drop" or source == PLAYS):
        tokens = enough
    _check_long(tokens, 2 * window + 1)
    train, test = list[np.ndarray](), list[np.ndarray]()
    for ids in tokens.values():
        windows = np.lib.stride_tricks.sliding_window_view(ids, window + 1)[::window]
        # of two windows or more, one is left for each
        held = min(max(1, round(test_share * len(windows))), len(windows) - 1)
        train.append(windows[:-held])
        test.append(windows[-held:])
    owners, held_owners = (
        np.repeat(np.arange(len(tokens)), list(map(len, parts))).astype(np.int32)
        for parts in (train, test)
    )
    several = len(tokens) > 1
    name = "your texts" if isinstance(source, Mapping) else name_of(Path(source))
    return check(
        Dataset(
            np.concatenate(train),
            owners,
            np.concatenate(test),
            held_owners,
            tuple(tokens),
            made.vocabulary,
            owners if several else None,
            held_owners if several else None,
            tokenizer=made,
            held_out=True,
            name=name,
        )
    )


def _plain(name: str, text: str) -> str:
    """A text without the mark at its start, which is not part of it."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a text, got {type(text).__name__}")
    if "\0" in text:
        raise ValueError(f"{name} has zero bytes and is not UTF-8; convert it first")
    return text.removeprefix("\ufeff")


def _ids(name: str, text: str, tokenizer: Tokenizer) -> np.ndarray:
    with named(name):
        ids = tokenizer.encode(text)
        tokenizers.check_bytes(tokenizer.name, text, tokenizer.nbytes[ids])
    return ids.astype(np.uint16 if tokenizer.vocabulary <= 2**16 else np.int32)


def _check_long(tokens: Mapping[str, np.ndarray], least: int) -> None:
    """Raises `ValueError` unless every document has as many tokens as two windows."""
    short = [name for name, ids in tokens.items() if len(ids) < least]
    if short:
        count = f"{len(short)} of {len(tokens)} documents are too short: "
        raise ValueError(
            f"{count if len(tokens) > 1 else ''}{short[0]} has "
            f"{len(tokens[short[0]])} tokens, but two windows, one of them for "
            f"testing, need {least}; lower window, or give short='drop' or 'join'"
        )


def tokenizer_of(
    tokenizer: str | os.PathLike[str] | Tokenizer, texts: Texts
) -> Tokenizer:
    """A tokenizer of a name or a path; that of characters has those of texts."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if not isinstance(tokenizer, str | os.PathLike):
        raise TypeError(
            f"tokenizer must be a name, a path or a Tokenizer, got {tokenizer!r:.60}"
        )
    if isinstance(tokenizer, str) and tokenizer in tokenizers.NAMED:
        return tokenizers.NAMED[tokenizer](texts.values())
    if not Path(tokenizer).expanduser().is_file():
        raise ValueError(
            f"there is no tokenizer {os.fspath(tokenizer)!r}; give "
            f"{', '.join(tokenizers.NAMED)}, or the path of a tokenizer.json"
        )
    return tokenizers.from_file(tokenizer)


def _texts(source: str | os.PathLike[str], column: str) -> Texts:
    """The documents of a source, by their names."""
    if source == PLAYS:
        return natural.texts_of_speakers(files_of(PLAYS).paths)
    place = Path(source).expanduser()
    if not place.exists():
        raise FileNotFoundError(
            f"there is no text {place}; give a text file, a directory of them, or "
            f"{PLAYS!r}"
        )
    if place.is_file():
        return {place.name: _text(place)}
    if is_saved(place):
        return _rows(place, column)
    every = [file for file in visible(place, "**/*") if file.is_file()]
    files = [file for file in every if file.suffix.lower() == ".txt"]
    if not files:
        raise ValueError(f"{place} has no .txt file; give a directory that has some")
    if others := [file for file in every if file.suffix.lower() != ".txt"]:
        warnings.warn(
            f"{place}: {len(others)} files do not end in .txt and are not read, such "
            f"as {others[0].relative_to(place)}",
            stacklevel=4,
        )
    names = [file.relative_to(place).with_suffix("").as_posix() for file in files]
    if len({*names}) < len(names):  # as of a.txt and a.TXT
        names = [file.relative_to(place).as_posix() for file in files]
    return {name: _text(file) for name, file in zip(names, files, strict=True)}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} is not UTF-8 from byte {error.start} on; convert it first, "
            "such as with iconv -t utf-8"
        ) from error


def _rows(place: Path, column: str) -> Texts:
    """The texts of a Hugging Face dataset; those of all its splits together."""
    library = optional("datasets", "what save_to_disk of Hugging Face wrote")
    saved = library.load_from_disk(str(place))
    splits = dict(saved) if isinstance(saved, dict) else {"": saved}
    if len(splits) > 1:
        warnings.warn(
            f"{place}: the rows of {', '.join(splits)} are all documents, whose ends "
            "are for testing; save one split to read only that",
            stacklevel=5,
        )
    texts: dict[str, str] = {}
    for name, split in splits.items():
        if column not in split.column_names:
            known = ", ".join(split.column_names)
            raise ValueError(f"{place} has no column {column!r}; it has {known}")
        kind = split.features[column]
        if "string" not in getattr(kind, "dtype", ""):
            raise ValueError(f"{place}: column {column!r} has no texts, but {kind}")
        # a row without a text is a blank one
        texts |= {f"{name}{i}": text or "" for i, text in enumerate(split[column])}
    return texts
