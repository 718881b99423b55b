"""What `fedjax-muon sweep` refuses, and directories of sweeps that were damaged."""

import pytest
from cases import slow_but
from command import refused
from grids import BY_HAND, by_hand

from fedjax_muon.cli import commands
from fedjax_muon.runs import config

BAD = {
    "unknown algorithm 'fedavgg'; did you mean fedavg": "--algorithms fedavgg",
    "the grid of fedavg: lr must lie in [0, infinity), got -1": "--grid lr=0.1,-1",
    "of fedavg: lr must lie in [0, infinity), got -2": "--grid lr=-2 "
    "--lr-schedule cosine",
    "the grid of fedavg: lr must lie in [0, infinity), got nan": "--grid lr=nan",
    "names 'align', which is no number that fedavg takes; it takes lr,": "--grid "
    "lr=0.1 align=0.5",
    "the grid names 'synced', which is no number that fedmuon takes": "--algorithms "
    "fedmuon --grid synced=0,1",
    "NAME=NUMBER,NUMBER,...; got 'lr=abc'": "--grid lr=abc",
    "NAME=NUMBER,NUMBER,...; got 'lr='": "--grid lr=",
    "NAME=NUMBER,NUMBER,...; got 'lr'": "--grid lr",
    "the grid of lr has a value twice": "--grid lr=0.1,1e-1",
    "the grid names 'lr' twice": "--grid lr=0.1 lr=0.2",
    "NAME=NUMBER,NUMBER,...; got none": "--grid",
    "algorithms must be one or more, each once": "--algorithms fedavg,fedavg",
    "algorithms must be one or more, each once, got ()": "--algorithms",
    "seeds must be one or more, each once, got (1, 1)": "--seeds 1,1",
    "seeds must be one or more, each once, got ()": "--seeds",
    "share must be in (0, 1), got 0.0": "--validation 0",
    "share must be in (0, 1), got 1.0": "--validation 1",
    "cells_at_once must be at least 1, got 0": "--cells-at-once 0",
    "share must lie in (0, 1], got 0": "--compressor top_k --compressor-share 0",
    "bits must be an integer from 1 to 8, got 9": "--compressor quantize "
    "--compressor-bits 9",
    "no message has a part 'moment'; there are momentum, params": "--compressor svd "
    "--algorithms fedmuon_align --compressed-parts moment",
    "error_feedback need a compressor": "--error-feedback 1",
    "compressed_parts and error_feedback need": "--compressed-parts momentum",
    "a seed must lie in [0, 2^32), got 4294967296": "--seeds 0,4294967296",
    "a seed must lie in [0, 2^32), got -1": "--seeds=-1",
    "a class that has 139 of 1437 examples": "--validation 0.001",
    "feedback must lie in [0, 1], got 2": "--compressor top_k --error-feedback 2",
}


@pytest.mark.parametrize("message", slow_but(4, BAD))
def test_bad_input_is_refused_in_one_line_before_anything_is_made(
    message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "_sweep", lambda *_: pytest.fail("not refused"))
    default = () if "--algorithms" in BAD[message] else ("--algorithms", "fedavg")
    assert message in refused(capsys, "sweep", *default, *BAD[message].split())
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def made(tmp_path):
    """A finished sweep."""
    return by_hand(tmp_path / "sweep", {"fedavg": BY_HAND["fedavg"]})


@pytest.mark.slow
def test_a_config_whose_grids_are_of_other_algorithms_is_refused(made, capsys):
    path = made / "config.json"
    path.write_text(path.read_text().replace('"fedavg": {', '"scaffold": {'))
    assert "grids must be those of fedavg, got scaffold" in refused(
        capsys, "resume", made
    )
    with pytest.raises(ValueError, match="grids must be those of stem, got "):
        config.Sweep(("stem",), {}, (0,), 0.1, None, config.Config())


@pytest.mark.slow
def test_an_unfinished_sweep_is_not_drawn(made, capsys):
    (made / "cells" / "fedavg.csv").unlink()
    what = f"{made} is not finished; continue with: fedjax-muon resume {made}"
    assert what in refused(capsys, "plot", made)
