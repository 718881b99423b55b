"""What is printed: users' text stands for itself, on terminals of every width."""

import io
import re
from pathlib import Path

import pytest
from command import run
from rich.table import Table

from fedjax_muon.engine.terminal import plain_console, progress_bar
from fedjax_muon.reporting import tables

ROOT = Path(__file__).parents[2] / "fedjax_muon"
HOSTILE = "[/d] [red]:smile:"  # tags and an emoji of rich's markup


def test_users_text_is_not_read_as_markup():
    printed = io.StringIO()
    console = plain_console(file=printed, width=80)
    cells = tables.Cells(HOSTILE, HOSTILE, ("algorithm",), [(HOSTILE,)])
    console.print(HOSTILE, style="red")
    console.print(tables.for_terminal(cells))
    with progress_bar(console) as bar:
        bar.update(bar.add_task(HOSTILE, total=1), description=HOSTILE)
    assert printed.getvalue().count(HOSTILE) >= 5


def test_a_directory_that_looks_like_a_tag_is_one(capsys):
    run("data", "--data-dir", "[/d]")
    assert "[/d]" in capsys.readouterr().out


@pytest.mark.parametrize(("columns", "width"), [("0", 80), ("1", 40), ("100", 100)])
def test_tables_have_a_width_that_holds_them(columns, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    printed = io.StringIO()
    table = Table("a" * 10, "b " * 100)
    plain_console(file=printed).print(table)
    assert {len(line) for line in printed.getvalue().splitlines()} == {width}


def test_nothing_else_makes_consoles():
    made = re.compile(r"\b(Console|TextColumn)\(|rich import print|from_markup")
    files = [path for path in ROOT.rglob("*.py") if made.search(path.read_text())]
    assert files == [ROOT / "engine/terminal.py"]
