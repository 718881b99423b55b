"""Numbers of docs/choose.md against the tables that it links to."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "choose.md"
LINK = re.compile(r"\]\((\.\./results/[^)#]+)\)")
NUMBER = re.compile(r"(?<![\w.])\d*\.\d+|(?<![\w.])\d+(?![\w.])")
PAIR = re.compile(r"(\d+\.\d+)\s±\s(\d+\.\d+)")
DECIMAL = re.compile(r"(?<![\w.(])\d+\.\d+(?!\w)")
BLOCKS = [
    block
    for part in re.split(r"\n\n|\n(?=[|-])", PAGE.read_text())
    if LINK.search(block := " ".join(part.split()))
]


def has(line: str, text: str) -> bool:
    """Whether a line has a number that rounds to a text, perhaps in percent."""
    half = 0.5 * 10.0 ** -len(text.partition(".")[2]) + 1e-9
    found = [float(n) for n in NUMBER.findall(line.replace(",", ""))]
    return any(
        abs(scale * n - float(text)) <= half for n in found for scale in (1, 100)
    )


def unfounded(block: str, tables: list[str]) -> list[str]:
    """Returns the numbers of a text that are not in any line of its tables."""
    lines = [line for table in tables for line in table.splitlines()]
    pairs = PAIR.findall(block)
    singles = DECIMAL.findall(PAIR.sub("", block))
    groups = [*pairs, *((single,) for single in singles)]
    return [
        " ± ".join(group)
        for group in groups
        if not any(all(has(line, n) for n in group) for line in lines)
    ]


@pytest.mark.parametrize("block", BLOCKS)
def test_numbers_are_those_of_the_linked_tables(block):
    tables = [(PAGE.parent / link).read_text() for link in LINK.findall(block)]
    assert unfounded(LINK.sub("", block), tables) == []


def test_there_are_blocks_and_other_numbers_are_found():
    assert len(BLOCKS) > 15
    tables = ["| a | 98.04 | 0.62 |\n| b | 0.9712 | 0.011 |"]
    assert unfounded("98.0 ± 0.6 %, 97.1 ± 1.1 %, 0.97", tables) == []
    assert unfounded("98.1 ± 0.6 %, 97.1 ± 0.6 %, 0.96", tables) == [
        "98.1 ± 0.6",
        "97.1 ± 0.6",
        "0.96",
    ]
