"""The paper's figures as configs, and a small one played from SST-2's files."""

import contextlib
import io

import numpy as np
import pytest
import tyro

from experiments import minimax_000
from fedjax_muon import history, minimax

WORDS = ("dull", "tedious", "bland"), ("warm", "bright", "lovely")  # of both labels


@pytest.fixture
def sst2(tmp_path):
    """Files like SST-2's, of a language in which one word decides."""
    rng = np.random.default_rng(0)
    place = tmp_path / "data" / "glue" / "SST-2"
    place.mkdir(parents=True)
    for name, count in (("train", 900), ("dev", 120)):
        labels = rng.integers(0, 2, count)
        lines = [f"a {rng.choice(WORDS[k])} film\t{k}" for k in labels]
        (place / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines, ""]))
    return tmp_path / "data"


def play(*words):
    tyro.cli(minimax_000.main, args=[str(word) for word in words])


@pytest.mark.parametrize("figure", minimax_000.FIGURES)
def test_figures_are_the_papers(figure):
    what = minimax_000.sweep(figure, "paper")
    config = what.config
    assert (config.num_clients, config.cohort_size, config.batch_size) == (8, 8, 64)
    assert config.rnn == (300, 4096, 2)
    assert config.problem == "auc"
    assert config.local_steps == {"2": 16, "6": 16}.get(figure[-1], 4)
    if figure.startswith("figure_3"):
        assert (config.partition, config.positives) == ("ratios", None)
        assert config.ratios == (0.05, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25)
    else:
        assert (config.partition, config.positives) == ("iid", 0.1)
    assert set(what.algorithms) == set(minimax.ALL)
    for grid in what.grids.values():
        assert (min(grid["lr"]), max(grid["lr"])) == (1e-3, 1e-1)


@pytest.mark.parametrize("size", ["small", "paper"])
def test_figures_take_equally_many_local_steps(size):
    sweeps = [minimax_000.sweep(f, size) for f in minimax_000.FIGURES]
    assert len({w.config.rounds * w.config.local_steps for w in sweeps}) == 1


def test_a_small_one_from_local_files(sst2, tmp_path):
    place = tmp_path / "run"
    words = ("--size", "smoke", "--data-dir", sst2, "--output", place)
    with contextlib.redirect_stdout(io.StringIO()):
        play("figure_3", *words, "--algorithms", "local_sgda")
    rows = history.read(place / "cells" / "local_sgda.csv")
    assert rows["round"].tolist() == list(range(9))
    assert ((rows["test_auc"] > 0) & (rows["test_auc"] < 1)).all()
    assert {p.name for p in place.iterdir()} >= {"summary.md", "curves.png"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--algorithms", "fedmuon_d"), "did you mean fedmuon_da"),
        (("--dataset", "sst9"), "unknown data set 'sst9'"),
        (("--dataset", "digits"), "the model rnn does not fit digits"),
    ],
)
def test_refusals(words, message, sst2, tmp_path, capsys):
    """As everywhere: one line, status 2, nothing made."""
    place = tmp_path / "run"
    with pytest.raises(SystemExit) as stop:
        play("figure_1", "--data-dir", sst2, "--output", place, *words)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert not place.exists()
