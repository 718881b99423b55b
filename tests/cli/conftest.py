"""Jobs that are planned and recorded, and not run."""

import pytest
from command import run

from fedjax_muon.cli import commands
from fedjax_muon.runs import directory


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """What a command would run."""
    asked: list = []
    for name in ("_train", "_compare", "_sweep"):
        monkeypatch.setattr(commands, name, lambda what, *_: asked.append(what))

    def plan(*words):
        place = tmp_path / str(len(asked))
        run(*words, "--output", place)
        assert directory.read(place) == asked[-1]
        return asked[-1]

    return plan
