"""Every method is on one page of the documentation, with its true costs and options."""

import re
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from method_tables import (
    COSTS,
    GOSSIP_COSTS,
    OPTIONS,
    PAGES,
    as_markdown,
    cost_rows,
    option_rows,
    tables,
)

from fedjax_muon import decentralized, minimax
from fedjax_muon.algorithms import ALL
from fedjax_muon.compression import compressors
from fedjax_muon.core import tree
from fedjax_muon.decentralized.private import PRIVATE

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "docs" / "algorithms"
TEXTS = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.md"))}


def table_of(page: str, header: list[str]) -> list[list[str]]:
    """The rows below that header; there is one such table on a page."""
    (found,) = [table for table in tables(TEXTS[page]) if table[0] == header]
    return found[2:]


def costs_header(page: str) -> list[str]:
    return GOSSIP_COSTS if page in ("decentralized", "private") else COSTS


def names(page: str) -> list[str]:
    return [row[0].strip("`") for row in table_of(page, costs_header(page))]


def test_every_method_is_on_exactly_one_page():
    on = {page: names(page) for page in PAGES}
    three = Counter(on["muon"] + on["averaging"] + on["adaptive"])
    assert three == Counter(list(ALL))
    assert Counter(on["minimax"]) == Counter(list(minimax.ALL))
    assert Counter(on["decentralized"]) == Counter(list(decentralized.ALL))
    assert Counter(on["private"]) == Counter(list(PRIVATE))


@pytest.mark.parametrize("page", PAGES)
def test_costs_and_options_are_those_of_the_code(page):
    for header, rows in (
        (costs_header(page), cost_rows(page)),
        (OPTIONS, option_rows(page)),
    ):
        wanted = [rows[name] for name in names(page)]
        text = "\n".join(as_markdown(header, wanted))  # what to put there
        assert table_of(page, header) == wanted, text


@pytest.mark.parametrize("page", PAGES)
def test_every_section_says_when_and_what_departs(page):
    sections = re.split(r"^## ", TEXTS[page], flags=re.MULTILINE)[1:]
    with_updates = [s for s in sections if "$$" in s]
    assert len(with_updates) >= 2
    for section in with_updates:
        assert "**When.**" in section, section.splitlines()[0]
        assert "**Departs from the paper.**" in section, section.splitlines()[0]


def test_compressors_send_what_the_table_says():
    (table,) = [t for t in tables(TEXTS["compression"]) if t[0][0] == "compressor"]
    matrix = jax.ShapeDtypeStruct((64, 32), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    for code, _, numbers in table[2:]:
        compressor = eval(code.strip("`"), dict(vars(compressors)))
        sent = jax.eval_shape(compressor.encode, matrix, key)
        assert tree.nbytes(sent) == 4 * int(numbers), code
