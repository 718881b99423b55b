"""Figure 4 (a) of Liu et al.: condition numbers, memory, time."""

import csv

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers import results
from experiments.studies import condition_numbers as study

pytestmark = pytest.mark.slow


def test_condition_numbers_are_of_matrices_and_averaged_geometrically():
    draw = np.random.default_rng(0)
    dense, kernel = draw.normal(size=(7, 4)), draw.normal(size=(3, 3, 2, 5))
    params = {"a": dense, "b": kernel, "bias": draw.normal(size=4)}
    spread = lambda x: np.sqrt(np.linalg.eigvalsh(x.T @ x)[[0, -1]])
    (low, high), (lower, higher) = spread(dense), spread(kernel.reshape(18, 5))
    want = np.sqrt(high / low * higher / lower)
    assert study.condition_number(params) == pytest.approx(want, rel=1e-9)


def test_states_are_counted():
    params = {"matrix": jnp.zeros((8, 4)), "bias": jnp.zeros(4)}
    counter = 4  # bytes of the steps that Adam counts
    assert study.state_bytes("fedavg", params) == 0
    assert study.state_bytes("local_adamw", params) == 2 * 4 * (32 + 4) + counter
    # a momentum of matrices, two moments of vectors
    assert study.state_bytes("local_muon", params) == 4 * (32 + 2 * 4) + counter


def test_it_runs_and_its_claims_are_judged(tmp_path, monkeypatch, capsys):
    run_dir = tmp_path / "runs" / "fedmuon_004" / "figure_4-smoke"
    study.main(scale="smoke", output=run_dir)
    with (run_dir / "result.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(study.RATES) * len(study.MEASURES)
    assert all(np.isfinite(float(line["score"])) for line in lines)
    assert (
        "python -m experiments.studies.condition_numbers"
        in (run_dir / "result.md").read_text()
    )
    assert (run_dir / "result.png").exists()
    results.collect(tmp_path / "runs", tmp_path / "results")
    found = {claim.claim: f.ours for claim, f in results.judged(tmp_path / "results")}
    assert set(found) == {
        "matrices are better conditioned under Muon than under SGD and AdamW: weights",
        "matrices are better conditioned under Muon than under SGD and AdamW: updates",
        "Muon's state takes less memory than AdamW's",
        "Muon takes about 5 % more time than AdamW (criterion: at most 10 %)",
    }
    assert "Local AdamW, 4.9" in found["Muon's state takes less memory than AdamW's"]
