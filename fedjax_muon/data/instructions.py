"""Prompts with answers, for language models that follow instructions.

    dataset = data.from_jsonl("chats.jsonl", window=512, tokenizer="tokenizer.json")

A line is {"prompt": ..., "answer": ...}, or {"messages": [{"role", "content"}, ...]}.
Models read all of it, and predict the answers alone.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedjax_muon.core import check_choice, check_count, check_range
from fedjax_muon.data.dataset import Dataset, check
from fedjax_muon.data.token_windows import tokenizer_of
from fedjax_muon.data.tokenizers import Tokenizer
from fedjax_muon.data.user_files import held_out, name_of
from fedjax_muon.files import reading

ROLES = ("system", "user", "assistant")
ANSWERS = "assistant"  # the role whose words are predicted
REMEDY = "give a larger window, or long='drop'"
Long = Literal["refuse", "drop"]


class Piece(NamedTuple):
    """A part of a text, and whether it is an answer."""

    text: str
    predicted: bool


Template = Callable[[Sequence[tuple[str, str]]], list[Piece]]  # of (role, content)


def chatml(messages: Sequence[tuple[str, str]]) -> list[Piece]:
    """The template of Qwen2 and SmolLM2.

    An answer ends in "<|im_end|>", which is predicted, so that the model stops.

    Example:
      >>> pieces = chatml([("user", "Hi"), ("assistant", "Hello")])
      >>> [piece.text for piece in pieces if piece.predicted]
      ['Hello<|im_end|>']
    """
    pieces, before = list[Piece](), ""
    for role, content in messages:
        before += f"<|im_start|>{role}\n"
        if role == ANSWERS:
            pieces += [Piece(before, False), Piece(f"{content}<|im_end|>", True)]
            before = "\n"
        else:
            before += f"{content}<|im_end|>\n"
    return [*pieces, Piece(before, False)]


def from_jsonl(
    path: str | os.PathLike[str],
    *,
    window: int = 512,
    tokenizer: str | os.PathLike[str] | Tokenizer = "bytes",
    owner: str | None = None,
    template: Template = chatml,
    long: Long = "refuse",
    test_share: float = 0.1,
) -> Dataset:
    """Reads prompts and answers from a file with a JSON object in every line.

    Args:
      window: T, the number of tokens that an example may have. Shorter ones are padded.
      tokenizer: "bytes", "characters", the path of a tokenizer.json, or a `Tokenizer`.
      owner: Field that says who wrote an example; each owner is a client.
      template: Function of the messages, pairs of a role and a text, that returns the
        pieces of the example.
      long: What becomes of examples with more tokens than a window: "refuse" or "drop"
        them. None are cut, since their answers would then lack an end.
      test_share: Share of the examples that is held out.

    Returns:
      Windows int32 [n, window + 1]. Tokens of prompts and of padding are ~id, negative
      numbers, which models read but do not predict.

    Raises:
      ValueError: For a prompt without an answer, with its line, and so on.

    Example:
      >>> dataset = from_jsonl("chats.jsonl", window=128)  # doctest: +SKIP
    """
    check_count("window", window, 2)
    check_range("test_share", test_share, 0, 1, open_low=True, open_high=True)
    check_choice("long", long, get_args(Long))
    file = Path(path).expanduser()
    lines = [*_lines(file, owner)]
    pieces = [template(messages) for _, messages, _ in lines]
    texts = {"": "".join(p.text for each in pieces for p in each)}
    made = tokenizer_of(tokenizer, texts)
    rows, owners = list[np.ndarray](), list[str]()
    for (line, _, whose), each in zip(lines, pieces, strict=True):
        parts = [(made.encode(p.text), p.predicted) for p in each if p.text]
        ids = np.concatenate([ids if scored else ~ids for ids, scored in parts])
        if len(ids) > window + 1 and long == "refuse":
            raise ValueError(
                f"{file}, line {line}: expected at most {window + 1} tokens, found "
                f"{len(ids)}; {REMEDY}"
            )
        if len(ids) <= window + 1:
            rows.append(np.pad(ids, (0, window + 1 - len(ids)), constant_values=~0))
            owners.append(whose)
    if len(rows) < 2:
        raise ValueError(f"{file}: expected two or more examples that fit; {REMEDY}")
    names, numbers = np.unique(owners, return_inverse=True)
    of = numbers.astype(np.int32)
    kept, held = held_out(np.zeros(len(rows), int), of, test_share, ())
    x = np.array(rows, np.int32)
    return check(
        Dataset(
            x[kept],
            of[kept],
            x[held],
            of[held],
            tuple(map(str, names)),
            made.vocabulary,
            None if owner is None else of[kept],
            None if owner is None else of[held],
            tokenizer=made,
            held_out=True,
            name=name_of(file),
        )
    )


def _lines(
    file: Path, owner: str | None
) -> "list[tuple[int, list[tuple[str, str]], str]]":
    """The number, the messages and the owner of every line that is not blank."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    found = []
    with file.open(encoding="utf-8-sig") as text:
        for number, line in enumerate(text, 1):
            if not line.strip():
                continue
            place = f"{file}, line {number}"
            with reading(Path(place), "a JSON object", "correct it", found=""):
                value = dict(json.loads(line))
            whose = "all" if owner is None else value.get(owner)
            if not isinstance(whose, str | int):
                raise ValueError(f"{place}: {owner!r} is missing; say whose it is")
            found.append((number, _messages(place, value), str(whose)))
    if not found:
        raise ValueError(f"{file} has no lines; give prompts with answers")
    return found


def _messages(place: str, value: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs of a role and a text, of which one is an answer."""
    if "messages" in value:
        several = value["messages"] if isinstance(value["messages"], list) else []
        of = [m if isinstance(m, dict) else {} for m in several]
        pairs = [(m.get("role"), m.get("content")) for m in of]
    else:
        pairs = [("user", value.get("prompt")), (ANSWERS, value.get("answer"))]
    found = list[tuple[str, str]]()
    for role, content in pairs:
        if role not in ROLES or not isinstance(content, str):
            known = "prompt and answer, or messages with a role of " + ", ".join(ROLES)
            raise ValueError(f"{place}: expected the texts of {known}")
        found.append((str(role), content))
    if not any(role == ANSWERS and content.strip() for role, content in found):
        raise ValueError(
            f"{place}: the prompt has no answer; leave the line out, or write one"
        )
    return found
