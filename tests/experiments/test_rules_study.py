"""The study of local rules."""

import numpy as np
import pytest

from experiments.studies import rules as study, tuned

pytestmark = pytest.mark.slow


def test_the_table_compares_with_muon(tmp_path, monkeypatch):
    alone = study.SCALES["digits"]._replace(algorithms=("FedAvg",))
    monkeypatch.setattr(study, "SCALES", {"digits": alone})
    monkeypatch.setattr(study, "RULES", {k: study.RULES[k] for k in ("SGD", "Muon")})
    study.main("digits", rounds=2, seeds=(0, 1), output=tmp_path)
    rows = tuned.read(tmp_path / "digits.jsonl")
    assert len(rows) == 2 * 5 * 2  # rules, rates, seeds
    lr, sgd = tuned.chosen(rows, study.Setting("digits", "FedAvg", "SGD"))
    _, muon = tuned.chosen(rows, study.Setting("digits", "FedAvg", "Muon"))
    page = (tmp_path / "digits.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("| SGD |")]
    _, _, rate, accuracy, apart, _ = (cell.strip(" *") for cell in line.split("|"))
    assert float(rate) == pytest.approx(lr, rel=0.05)
    assert accuracy.startswith(f"{sgd.mean():.1f} ±")
    assert apart.startswith(f"{np.mean(sgd - muon):+.1f} ±")
    assert (tmp_path / "digits.png").stat().st_size > 5000
