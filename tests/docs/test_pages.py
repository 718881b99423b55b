"""The pages: what they show runs, and what they say is so."""

import ast
import importlib
import re
import runpy
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import yaml
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
from swept import share_programs

import fedjax_muon
from fedjax_muon import core, decentralized, minimax
from fedjax_muon.algorithms import ALL
from fedjax_muon.cli import main
from fedjax_muon.compression import compressors
from fedjax_muon.core import tree
from fedjax_muon.decentralized import gossip
from fedjax_muon.decentralized.private import PRIVATE

pytestmark = pytest.mark.slow


# -------------------- The documentation: its Python runs, and it agrees with the package

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


SHOWN = {
    str(path.relative_to(DOCS)): code for path in EXECUTED if (code := blocks(path))
}


@pytest.mark.parametrize("page", sorted(SHOWN))
def test_the_python_shown_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    names = {"__name__": "shown"}  # a block uses what those before it have made
    for code in SHOWN[page]:
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


# -------------------- Every method is on one page of the documentation, with its true costs and options

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


# -------------------- Numbers of docs/choose.md against the tables that it links to

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


# -------------------- Errors that the page of frequent errors quotes are those of the code

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


# -------------------- The tutorial: commands and Python run as they are printed, in one directory

STEPS = sorted((Path(__file__).parents[2] / "docs" / "tutorial").glob("[1-9]*.md"))
FENCE = re.compile(r'^```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```', re.DOTALL | re.M)
NOT_HERE = ("pip install ", "python3 -m venv ")  # done before the tests


def numberless(printed: str) -> list[str]:
    """The words of an output; its numbers are those of one machine."""
    text = re.sub(r"[\d.,]+", "0", printed)
    return re.sub(r"\s*\|\s*", " | ", text).split()


def run_command(line: str) -> None:
    """What a shell would do with a line of a page."""
    if not line.startswith(NOT_HERE):
        program, *words = shlex.split(line)
        assert program == "fedjax-muon", line
        main(words)


def run_page(page: Path, capsys) -> None:
    """Runs the blocks of a page in their order; outputs are those of the page."""
    names = {"__name__": page.stem}
    printed = None
    for language, title, code in FENCE.findall(page.read_text()):
        if language == "bash":
            for line in code.splitlines():
                run_command(line)
        elif title:
            Path(title).write_text(code)
            importlib.invalidate_caches()  # a module that was not there before
        elif language == "python":
            capsys.readouterr()
            exec(compile(code, page.name, "exec"), names)
            printed = capsys.readouterr().out
        else:
            assert language == "text", page
            assert numberless(printed) == numberless(code), page


def test_the_tutorial_runs_from_its_first_to_its_last_step(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert len(STEPS) == 5
    for page in STEPS:
        run_page(page, capsys)
    sys.modules.pop("my_method", None)


@pytest.mark.parametrize("line", ["rm -r runs", "fedjax-muon trian"])
def test_a_wrong_line_would_be_found(line):
    with pytest.raises((AssertionError, SystemExit)):
        run_command(line)


# -------------------- The study of docs/how_to/cluster.md, whose module workers import

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
