"""Errors that the page of frequent errors quotes are those of the code."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
QUOTED = re.findall(
    r"^``` {.text .error}\n(.*)\n```$", (ROOT / "docs/faq.md").read_text(), re.M
)
ONLY_VALUES = 12  # letters that a message must have beside what it is filled with


def pattern_of(node: ast.expr) -> str | None:
    """What a string of the code matches; its values may be any text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = [pattern_of(part) for part in node.values]
        return "".join("(?:.*)" if part is None else part for part in parts)
    return None


def messages() -> list[re.Pattern[str]]:
    """All strings of the package that are long enough for a message."""
    found = set()
    for path in (ROOT / "fedjax_muon").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            text = pattern_of(node) if isinstance(node, ast.expr) else None
            if text and len(re.sub(r"\(\?:\.\*\)|\W", "", text)) > ONLY_VALUES:
                found.add(text)
    return [re.compile(text) for text in found]


MESSAGES = messages()


def is_in_the_code(quoted: str) -> bool:
    return any(message.fullmatch(quoted) for message in MESSAGES)


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_quoted_error_is_in_the_code(quoted):
    assert is_in_the_code(quoted)


def test_another_error_would_be_found():
    assert len(QUOTED) > 12
    assert not is_in_the_code(QUOTED[0].replace("flips", "turns"))
    assert not is_in_the_code("something else is wrong")
