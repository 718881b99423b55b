"""The progress of `train`: a bar on a terminal, lines on standard error elsewhere."""

import io
from functools import partial

import federation
import jax
import pytest
from rich.console import Console

from fedjax_muon.engine import terminal as shown_on
from fedjax_muon.simulation import training


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(scope="module")
def plain():
    return federation.federation()


@pytest.fixture
def terminal(monkeypatch):
    screen = Terminal()
    how = {"file": screen, "force_terminal": True, "color_system": None, "width": 80}
    monkeypatch.setattr(shown_on, "Console", partial(Console, **how))
    return screen


def train(simulation, **options) -> None:
    state = simulation.init(jax.random.key(0))
    training.train(simulation, state, rounds=4, evaluate_every=2, **options)


def test_a_terminal_shows_the_rounds_unless_they_are_not_wanted(plain, terminal):
    train(plain, progress=False)
    assert terminal.getvalue() == ""
    train(plain)
    assert "4/4 rounds" in terminal.getvalue()


def test_a_training_that_ends_early_shows_how_far_it_came(plain, terminal):
    train(plain, callbacks=[lambda state, record: record["round"] == 2])
    assert "2/4 rounds" in terminal.getvalue()
    assert "4/4 rounds" not in terminal.getvalue()


@pytest.mark.parametrize("colors", ["", "1"])
def test_scripts_get_lines_apart_from_their_own_output(
    plain, capsys, monkeypatch, colors
):
    monkeypatch.setenv("FORCE_COLOR", colors)
    monkeypatch.setattr(shown_on, "SECONDS", 0.01)
    monkeypatch.setattr(shown_on, "LOOK", 0.001)
    for progress in (True, False):
        train(plain, progress=progress)
        printed = capsys.readouterr()
        assert printed.out == ""
        assert ("train: 2 of 4 rounds" in printed.err) == progress
