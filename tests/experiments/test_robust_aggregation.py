"""The study of robust aggregation."""

import numpy as np
import pytest

from experiments.studies import robust_aggregation as study, tuned

pytestmark = pytest.mark.slow


def test_runs_are_appended_and_not_repeated(tmp_path, monkeypatch, capsys):
    settings = [
        study.Setting("FedAvg", "mean", "none", 0),
        study.Setting("FedAvg", "clipping", "ALIE", 4),
    ]
    monkeypatch.setattr(study, "settings", lambda: iter(settings))
    output = tmp_path / "digits.jsonl"
    study.main(part=1, parts=2, rounds=1, seeds=(0, 1), output=output)
    assert not output.with_suffix(".md").exists()
    study.main(rounds=1, seeds=(0, 1), output=output)
    rows = tuned.read(output)
    assert len(rows) == 2 * 3 * 2  # settings, rates, seeds
    assert [row["aggregator"] for row in rows[:: 3 * 2]] == ["clipping", "mean"]
    assert len(capsys.readouterr().out.splitlines()) == 2
    page = output.with_suffix(".md").read_text()
    _, own = tuned.chosen(rows, settings[1])
    assert f"{own.mean():.1f} ±" in page.split("## ALIE, 4 of 20 clients")[1]
    assert output.with_suffix(".png").stat().st_size > 5000


def test_the_rate_is_chosen_by_validation():
    setting = study.Setting("FedAvg", "mean", "none", 0)
    scores = {0.03: ((0.9, 0.5), (0.8, 0.6)), 0.1: ((0.4, 0.9), (0.6, 0.9))}
    rows = [
        setting._asdict() | {"lr": lr, "seed": seed, "accuracy": a, "validation": v}
        for lr, pairs in scores.items()
        for seed, (a, v) in enumerate(pairs)
    ]
    lr, accuracies = tuned.chosen(rows, setting)
    assert lr == 0.1
    np.testing.assert_allclose(accuracies, [40, 60])
    assert tuned.chosen(rows, setting._replace(aggregator="clipping")) is None
