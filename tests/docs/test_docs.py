"""The documentation: its Python runs, and it agrees with package and results."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from swept import share_programs

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


CHOOSE = Path(__file__).parents[2] / "docs" / "choose.md"
LINK = re.compile(r"\]\((\.\./results/[^)#]+)\)")
NUMBER = re.compile(r"(?<![\w.])\d*\.\d+|(?<![\w.])\d+(?![\w.])")
PAIR = re.compile(r"(\d+\.\d+)\s±\s(\d+\.\d+)")
DECIMAL = re.compile(r"(?<![\w.(])\d+\.\d+(?!\w)")
BLOCKS = [
    block
    for part in re.split(r"\n\n|\n(?=[|-])", CHOOSE.read_text())
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
    tables = [(CHOOSE.parent / link).read_text() for link in LINK.findall(block)]
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


CLUSTER = Path(__file__).parents[2] / "docs" / "how_to" / "cluster.md"


def test_the_study_shown_runs_on_two_processes(tmp_path, tmp_path_factory, monkeypatch):
    share_programs(tmp_path_factory, monkeypatch)
    page = CLUSTER.read_text()
    study, run = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.M)
    (tmp_path / "study.py").write_text(study)
    (tmp_path / "run.py").write_text(run)
    command = [sys.executable, "run.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = page.split("It prints the test accuracy")[1].split("```")[1]
    accuracies = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    expected = [ast.literal_eval(line) for line in shown.split("\n")[1:-1]]
    assert len(accuracies) == len(expected) == 4
    for found, printed in zip(accuracies, expected, strict=True):
        assert abs(found[0] - printed[0]) < 0.02  # other versions round otherwise
