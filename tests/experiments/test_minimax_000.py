"""The figures as the paper has them, and one run on SST-2's files."""

import numpy as np
import pytest
from published import allow_small

from experiments.papers import frame, minimax_000
from fedjax_muon import minimax
from fedjax_muon.reporting import metrics_csv

pytestmark = pytest.mark.slow

WORDS = ("dull", "tedious", "bland"), ("warm", "bright", "lovely")  # of both labels


@pytest.fixture
def sst2(tmp_path, monkeypatch):
    """Files like SST-2's, of a language in which one word decides."""
    allow_small(monkeypatch, "sst2")
    rng = np.random.default_rng(0)
    folder = tmp_path / "data" / "glue" / "SST-2"
    folder.mkdir(parents=True)
    for name, count in (("train", 900), ("dev", 120)):
        labels = rng.integers(0, 2, count)
        lines = [f"a {rng.choice(WORDS[k])} film\t{k}" for k in labels]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines, ""]))
    return tmp_path / "data"


@pytest.mark.parametrize("figure", minimax_000.ITEMS)
def test_figures_are_the_papers(figure):
    panels = minimax_000.ITEMS[figure].panels("full")
    assert list(panels) == ["sst2", "sentiment140", "yelp_polarity_reviews"]
    for panel in panels.values():
        config = panel.sweep.config
        assert (config.num_clients, config.cohort_size, config.batch_size) == (8, 8, 64)
        assert config.rnn == (300, 4096, 2)
        assert config.problem == "auc"
        assert config.local_steps == {"2": 16, "6": 16}.get(figure[-1], 4)
        if figure.startswith("figure_3"):
            assert (config.partition, config.positives) == ("ratios", None)
            assert config.ratios == (0.05, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25)
        else:
            assert (config.partition, config.positives) == ("iid", 0.1)
        assert set(panel.sweep.algorithms) == set(minimax.ALL)
        for grid in panel.sweep.grids.values():
            assert (min(grid["lr"]), max(grid["lr"])) == (1e-3, 1e-1)


@pytest.mark.parametrize("scale", ["cpu", "full"])
def test_figures_take_equally_many_local_steps(scale):
    panels = [item.panels(scale)["sst2"] for item in minimax_000.ITEMS.values()]
    configs = [panel.sweep.config for panel in panels]
    assert len({config.rounds * config.local_steps for config in configs}) == 1


def test_a_small_one_from_local_files(sst2, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(minimax_000, "FEWER", {"local_sgda": {"lr": (0.3,)}})
    monkeypatch.setattr(minimax_000, "SEEDS", (0,))
    real = frame.sized
    tiny = lambda config, scale, **cpu: real(config, scale, **cpu, rounds=2)
    monkeypatch.setattr(minimax_000, "sized", tiny)
    run_dir = tmp_path / "run"
    given = frame.Arguments("figure_3", "cpu", sst2)
    frame.run("minimax_000", given, minimax_000.ITEMS, run_dir)
    rows = metrics_csv.read(run_dir / "sst2" / "cells" / "local_sgda.csv")
    assert rows["round"].tolist() == [0, 2]
    assert ((rows["test_auc"] > 0) & (rows["test_auc"] <= 1)).all()
    assert (
        "| sst2, 4 steps, unequal shares | LocalSGDA"
        in (run_dir / "result.md").read_text()
    )
    assert "result.md, .csv" in capsys.readouterr().out
