"""The study of clients of unequal speed."""

import numpy as np
import pytest

from experiments.studies import stragglers as study, tuned

pytestmark = pytest.mark.slow


def test_the_table_says_when_the_target_is_reached(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "SPREADS", (16,))
    monkeypatch.setattr(study, "METHODS", {"FedAvg": study.METHODS["FedAvg"]})
    low = {"digits": study.SCALES["digits"]._replace(target=0.2)}
    monkeypatch.setattr(study, "SCALES", low)
    study.main("digits", messages=60, seeds=(0, 1), output=tmp_path)
    rows = tuned.read(tmp_path / "digits.jsonl")
    assert len(rows) == 3 * 3 * 2  # modes, rates, seeds
    page = (tmp_path / "digits.md").read_text()
    seconds = {}
    for mode in study.MODES:
        setting = study.Setting("digits", 16, "FedAvg", mode)
        lr, scores = tuned.chosen(rows, setting)
        best = [row for row in tuned.of(rows, setting) if row["lr"] == lr]
        reached = [study.reached(row, 0.2, "virtual_seconds") for row in best]
        seconds[mode] = np.mean([row["virtual_seconds"][-1] for row in best])
        (line,) = [text for text in page.splitlines() if f"| {mode} |" in text]
        assert f"{scores.mean():.1f} ±" in line
        assert f"| {np.mean(reached):.1f} ±" in line
    assert seconds["buffered"] < seconds["synchronous"]
    assert seconds["deadline"] < seconds["synchronous"]
    assert (tmp_path / "digits.png").stat().st_size > 5000


def test_the_first_time_counts_and_a_missed_target_is_infinite():
    row = {"test_accuracy": [0.1, 0.6, 0.5, 0.7], "virtual_seconds": [0, 3, 5, 9]}
    assert study.reached(row, 0.6, "virtual_seconds") == 3
    assert study.reached(row, 0.65, "virtual_seconds") == 9
    assert study.reached(row, 0.8, "virtual_seconds") == np.inf
