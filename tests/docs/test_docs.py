"""The documentation site: built strictly, complete, and its Python runs."""

import ast
import re
import runpy
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedjax_muon
from fedjax_muon import core
from fedjax_muon.decentralized import gossip

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


def build(place: Path) -> None:
    """The site as `mkdocs build --strict` leaves it, wherever it is called from."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    where = ["--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(place)]
    done = subprocess.run(
        [*command, *where], cwd=place.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def documented() -> dict[str, set[str]]:
    """Public functions and classes with a docstring, by the part they belong to."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "fedjax_muon").rglob("*.py"):
        inside = path.relative_to(ROOT).with_suffix("").parts
        if inside[-1] == "__main__" or inside == ("fedjax_muon", "__init__"):
            continue
        module = ".".join(part for part in inside if part != "__init__")
        for node in ast.parse(path.read_text()).body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef)
            if public and not node.name.startswith("_") and ast.get_docstring(node):
                found.setdefault(inside[1], set()).add(f"{module}.{node.name}")
    return found


def check_reference(site: Path) -> None:
    """All that is public and documented is there, and fields with their comments."""
    for part, names in documented().items():
        html = (site / "reference" / part / "index.html").read_text()
        there = set(re.findall(r'id="(fedjax_muon\.[\w.]+)"', html))
        assert names <= there, sorted(names - there)
        assert f'href="{part}/"' in (site / "reference" / "index.html").read_text()
    exchange = (site / "reference" / "core" / "index.html").read_text()
    assert "value that is averaged" in exchange  # a comment of a field
    methods = (site / "reference" / "algorithms" / "index.html").read_text()
    assert "the mean of all clients' controls" in unescape(methods)  # without docstring


def check_pages(site: Path) -> None:
    """Every page is built, and its formulas are marked as such."""
    pages = [path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")]
    for page in pages:
        folder = page.parent if page.name in ("README", "index") else page
        assert (site / folder / "index.html").exists(), page
    muon = (site / "algorithms" / "muon" / "index.html").read_text()
    assert muon.count('class="arithmatex"') > 20
    assert "$" not in re.sub(r"<script.*?</script>", "", muon, flags=re.DOTALL)


def check_links(site: Path) -> None:
    """Links out of the documentation lead to pages that were made for them."""
    html = (site / "studies" / "dpmixsgd" / "index.html").read_text()
    assert "source/experiments/papers/dpmixsgd_jobs.py/" in html
    model = (site / "how_to" / "model" / "index.html").read_text()
    assert "reference/transforms/#fedjax_muon.transforms.layout" in model
    shown = site / "source/experiments/papers/dpmixsgd_jobs.py" / "index.html"
    assert "robust logistic regression" in shown.read_text()
    contributing = (site / "contributing" / "index.html").read_text()
    assert 'href="../how_to/algorithm/"' in contributing
    assert 'href="../changelog/"' in contributing


def test_the_site_is_built_strictly_and_complete(tmp_path):
    site = tmp_path / "site"
    build(site)  # once: it takes five seconds
    check_reference(site)
    check_pages(site)
    check_links(site)


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
