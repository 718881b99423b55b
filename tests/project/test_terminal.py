"""What is printed: users' text stands for itself, on terminals of every width."""

import io
import re
import time
from functools import partial
from pathlib import Path

import jax
import pytest
from rich.console import Console
from rich.table import Table

from fedjax_muon import terminal
from fedjax_muon.runs import tables
from fedjax_muon.simulation import training
from fedjax_muon.terminal import Progress, plain_console, shown
from tests.support import federation

ROOT = Path(__file__).parents[2] / "fedjax_muon"
HOSTILE = "[/d] [red]:smile:"  # tags and an emoji of rich's markup


def test_users_text_is_not_read_as_markup():
    printed = io.StringIO()
    console = plain_console(file=printed, width=80)
    cells = tables.Cells(HOSTILE, HOSTILE, ("algorithm",), [(HOSTILE,)])
    console.print(HOSTILE, style="red")
    console.print(tables.for_terminal(cells))
    printed.isatty = lambda: True
    with shown(console, Progress(1, HOSTILE)) as progress:
        progress.advance(1)
    assert printed.getvalue().count(HOSTILE) >= 5


@pytest.mark.parametrize(
    ("columns", "terminal", "width"),
    [("0", True, 80), ("1", True, 40), ("100", True, 100), ("100", False, 100)],
)
def test_tables_have_a_width_that_holds_them(columns, terminal, width, monkeypatch):
    assert {len(line) for line in table(monkeypatch, columns, terminal)} == {width}


@pytest.mark.parametrize("columns", ["", "0"])
def test_tables_in_files_are_not_cut(columns, monkeypatch):
    assert any(WORDS in line for line in table(monkeypatch, columns, terminal=False))


WORDS = "b " * 100


def table(monkeypatch, columns, terminal):
    """The lines of a table that is wider than any terminal."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", "1")  # which does not make a terminal of a file
    printed = io.StringIO()
    printed.isatty = lambda: terminal
    plain_console(file=printed, color_system=None).print(Table("a" * 10, WORDS))
    return printed.getvalue().splitlines()


@pytest.fixture
def lines(monkeypatch):
    """The lines of a run without a terminal, which are looked for all the time."""
    monkeypatch.setattr(terminal, "LOOK", 0.001)

    def written(run):
        printed = io.StringIO()
        with shown(plain_console(file=printed), Progress(100, "FedAvg")) as progress:
            run(progress, lambda: time.sleep(0.1))
        return printed.getvalue().splitlines()

    return written


def test_without_a_terminal_every_tenth_of_the_rounds_is_a_line(lines):
    def run(progress, wait):
        progress.skip(40)
        for rounds in (5, 5, 5, 30):
            progress.advance(rounds, {"test_accuracy": progress.done / 100})
            wait()

    at = [re.sub(r"\d+ s left", "1 s left", line) for line in lines(run)]
    assert at == [
        "FedAvg: 45 of 100 rounds, test accuracy 0.4, 1 s left",
        "FedAvg: 55 of 100 rounds, test accuracy 0.5, 1 s left",
        "FedAvg: 85 of 100 rounds, test accuracy 0.55, 1 s left",
    ]


def test_a_long_round_gives_signs_of_life(lines, monkeypatch):
    monkeypatch.setattr(terminal, "SECONDS", 0.05)
    first, *_ = lines(lambda progress, wait: wait())
    assert first == "FedAvg: 0 of 100 rounds, 0 s so far"


def test_seconds_left_are_those_of_new_rounds():
    progress = Progress(100)
    progress.skip(50)
    progress.advance(10)
    progress.began = time.monotonic() - 20
    assert progress.line() == "train: 60 of 100 rounds, 80 s left"


def test_nothing_else_makes_consoles():
    made = re.compile(r"\b(Console|TextColumn)\(|rich import print|from_markup")
    files = [path for path in ROOT.rglob("*.py") if made.search(path.read_text())]
    assert files == [ROOT / "terminal.py"]


# ----------------------------------------------------------- progress of `train`


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(scope="module")
def plain():
    return federation.federation()


@pytest.fixture
def screen(monkeypatch):
    opened = Terminal()
    how = {"file": opened, "force_terminal": True, "color_system": None, "width": 80}
    monkeypatch.setattr(terminal, "Console", partial(Console, **how))
    return opened


def train(simulation, **options) -> None:
    state = simulation.init(jax.random.key(0))
    training.run(simulation, state, rounds=4, evaluate_every=2, **options)


def test_a_terminal_shows_the_rounds_unless_they_are_not_wanted(plain, screen):
    train(plain, progress=False)
    assert screen.getvalue() == ""
    train(plain)
    assert "4/4 rounds" in screen.getvalue()


def test_a_training_that_ends_early_shows_how_far_it_came(plain, screen):
    train(plain, callbacks=[lambda state, record: record["round"] == 2])
    assert "2/4 rounds" in screen.getvalue()
    assert "4/4 rounds" not in screen.getvalue()


@pytest.mark.parametrize("colors", ["", "1"])
def test_scripts_get_lines_apart_from_their_own_output(
    plain, capsys, monkeypatch, colors
):
    monkeypatch.setenv("FORCE_COLOR", colors)
    monkeypatch.setattr(terminal, "SECONDS", 0.01)
    monkeypatch.setattr(terminal, "LOOK", 0.001)
    pause = lambda state, record: time.sleep(0.2)  # longer than a look takes
    for progress in (True, False):
        train(plain, progress=progress, callbacks=[pause])
        printed = capsys.readouterr()
        assert printed.out == ""
        assert ("fedavg: 2 of 4 rounds" in printed.err) == progress
