"""Minimax: the paper's figures, one run on SST-2's files, the study of heavy tails."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published import allow_small

from experiments.papers import frame, minimax_000
from experiments.studies import minimax_tails
from fedjax_muon import minimax
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.tasks import quadratic
from fedjax_muon.tasks.heavy_tails import gaussian

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


def test_one_cell_by_hand():
    """Without noise LocalSGDA is plain descent and ascent on every client."""
    found = minimax_tails.curves("local_sgda", gaussian(0.0), (0.01, 0.02), 2, 3)
    assert found.shape == (2, 2, 3)
    for seed, key in enumerate(jax.random.split(jax.random.key(0), 2)):
        problem = quadratic.draw_quadratic(jax.random.split(key)[0], 8)
        Q, A, D, B, C = (np.float64(leaf) for leaf in problem)
        X, Y = np.zeros(B.shape[1:]), np.zeros(C.shape[1:])
        for round in range(3):
            ends = []
            for b, c in zip(B, C, strict=True):
                x, y = X, Y
                for _ in range(4):
                    gx, gy = Q @ x + b + A.T @ y, A @ x + c - D @ y
                    x, y = x - 0.02 * gx, y + 0.2 * gy
                ends.append((x, y))
            X, Y = (np.mean(values, axis=0) for values in zip(*ends, strict=True))
            response = np.linalg.pinv(D) @ (A @ X + C.mean(0))
            norm = np.linalg.norm(Q @ X + B.mean(0) + A.T @ response)
            np.testing.assert_allclose(found[1, seed, round], norm, rtol=1e-4)


def test_the_verdict_by_hand():
    flat = lambda *ends: np.broadcast_to(np.float64(ends)[:, None, None], (3, 2, 20))
    spoilt = flat(1.0, 9.0, 9.0).copy()
    spoilt[0, 1, -1] = np.nan  # one seed of the best rate
    results = {
        "fed_nsgda_m": flat(4.0, 1.0, 3.0),
        "fedmuon_da": flat(0.5, 2.0, 3.0),
        "local_sgdam": spoilt,
        "fedsgda_m": flat(5.0, 4.0, 8.0),
    }
    assert [minimax_tails.best(found) for found in results.values()] == [1, 0, 1, 1]
    assert minimax_tails.ratio(results) == pytest.approx(1 / 4)
    lines = minimax_tails.rows("some noise", results)
    assert "3e-05 | 1.000 | 1.000 | 1.000" in lines[0]
    assert "1e-05 (edge)" in lines[1]


def test_last_is_the_mean_of_a_tenth():
    found = jnp.arange(20.0)[None, None]
    assert minimax_tails.last(np.asarray(found)) == 18.5
