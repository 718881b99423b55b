"""The documentation: its Python runs, and it agrees with the package."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedjax_muon
from fedjax_muon import core
from fedjax_muon.decentralized import gossip

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXECUTED = [
    *(DOCS / "how_to").glob("*.md"),
    *(DOCS / "algorithms").glob("*.md"),
    DOCS / "getting_started.md",
]


def blocks(path: Path) -> list[str]:
    """The Python of a page."""
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.M)


PAGES = {
    str(path.relative_to(DOCS)): code for path in EXECUTED if (code := blocks(path))
}


@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_python_shown_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    names = {"__name__": "shown"}  # a block uses what those before it have made
    for code in PAGES[page]:
        exec(compile(code, page, "exec"), names)


def test_the_interfaces_shown_are_those_of_the_package():
    names: dict[str, Any] = {}
    for code in blocks(DOCS / "design.md"):
        exec(compile(code, "design.md", "exec"), names)
    for shown, real in (
        ("Exchange", core.Exchange),
        ("Algorithm", core.Algorithm),
        ("Objective", core.Objective),
        ("Gossip", gossip.Gossip),
        ("Estimator", gossip.Estimator),
    ):
        fields = names[shown]._fields
        assert fields == real._fields[: len(fields)]


def test_versions_of_the_project_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == fedjax_muon.__version__
    assert f"## {fedjax_muon.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert citation["license"] in (ROOT / "pyproject.toml").read_text()


def test_results_of_papers_have_titles_in_their_order():
    names = runpy.run_path(str(DOCS / "_site" / "navigation.py"))
    title = names["title_of"](
        "# minimax_000, figure_3_of_16: unequal: 16 steps\n\nText"
    )
    assert title == "Figure 3 of 16: unequal: 16 steps"
    assert names["title_of"]("# Audits of privacy") is None
    paths = ["p/figure_10.md", "p/figure_2.md", "p/table_1.md", "p/figure_1.md"]
    numbers = [Path(path).stem for path in sorted(paths, key=names["in_order"])]
    assert numbers == ["figure_1", "figure_2", "figure_10", "table_1"]
    nav = [{"Results": ["a.md", "b.md"]}]
    assert names["titled"](nav, {"b.md": "B"}) == [{"Results": ["a.md", {"B": "b.md"}]}]


def test_patterns_of_the_navigation_take_every_page_once():
    names = runpy.run_path(str(DOCS / "_site" / "navigation.py"))
    nav = ["index.md", {"Results": ["claims*.md", "results/*.md", "a.md", "*.md"]}]
    pages = ["b.md", "claims.md", "results/deep/x.md", "results/y.md"]
    filled = names["expanded"](nav, pages)
    results = ["claims.md", "results/y.md", "a.md", "b.md"]
    assert filled == ["index.md", {"Results": results}]
    assert pages == ["results/deep/x.md"]  # which the strict build complains of
    none = names["expanded"](nav, [])
    assert none == ["index.md", {"Results": ["a.md"]}]
    assert names["named"](nav)[:2] == ["index.md", "claims*.md"]
