"""Boards of a few short rows."""

import pytest

from experiments.board import __main__ as command, page
from experiments.board.rows import ROWS
from experiments.board.tracks import TRACKS


@pytest.fixture
def short(monkeypatch):
    """Digits and attackers for 5 rounds, with few rows, trials and seeds."""
    few = {name: ROWS[name] for name in ("fedavg", "fedavg_mean", "dsgd")}
    for module in (command, page.standings):
        monkeypatch.setattr(module, "ROWS", few)
    for name in ("digits", "attackers"):
        few = TRACKS[name]._replace(rounds=5, trials=4, seeds=2, fits=None)
        monkeypatch.setitem(TRACKS, name, few._replace(evaluations=2))
