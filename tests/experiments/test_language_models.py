"""The study of language models."""

import numpy as np
import pytest

from experiments.studies import language_models as study, tuned

pytestmark = pytest.mark.slow
FEW = ("AdamW, data-parallel", "DiLoCo", "MuLoCo", "MuLoCo, 2 bits")


def test_the_table_has_the_runs_that_were_kept(tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text(99 * "to be or not to be, that is the question: ")
    for name, value in {"STEPS": 8, "WINDOW": 8, "BATCH": 8, "SEEDS": (0, 1)}.items():
        monkeypatch.setattr(study, name, value)
    monkeypatch.setattr(study, "LOCAL_STEPS", (4,))
    monkeypatch.setattr(study, "SHAPE", (8, 1, 2))
    monkeypatch.setattr(study, "WORKERS", (1, 4))
    some = {name: study.METHODS[name]._replace(rates=(0.01,)) for name in FEW}
    monkeypatch.setattr(study, "METHODS", some)
    monkeypatch.setattr(study, "PARALLEL", FEW[:1])
    for part in (0, 1):
        study.main(text=str(text), part=part, parts=2, output=tmp_path)
    kept = tmp_path / "text.txt.jsonl"
    before, rows = kept.read_text(), tuned.read(kept)
    assert len(rows) == 2 * (1 + 3 * 2)  # seeds; workers of the others
    assert {row["tokens"][-1] for row in rows} == {8 * 8 * 8}
    page = (tmp_path / "text.txt.md").read_text()
    setting = study.Setting("MuLoCo", 4, 4)
    last = study.ends(rows, setting)
    assert f"| MuLoCo | 4 | 4 | 0.01 | {last.mean():.3f} ±" in page
    less = study.ends(rows, setting._replace(method="DiLoCo")) - last
    assert f"better than DiLoCo, workers: 4, local steps: 4 | {less.mean():.3f}" in page
    sent = {row["method"]: row["bytes_up"][-1] for row in rows if row["workers"] == 4}
    assert sent["MuLoCo, 2 bits"] < sent["MuLoCo"] / 8
    assert (tmp_path / "text.txt.png").stat().st_size > 5000
    study.main(text=str(text), output=tmp_path)  # nothing is left to train
    assert kept.read_text() == before


def test_verdicts_follow_from_intervals():
    said = lambda *gains, **how: study._verdict("x", np.array(gains), **how)
    assert said(0.1, 0.11, 0.12).endswith("| confirmed |")
    assert said(-0.1, -0.11, -0.12).endswith("| refuted |")
    assert said(0.1, -0.1, 0.02).endswith("| not decided |")
    assert said(0.001, -0.002, 0.0, free=True).endswith("| confirmed |")
    assert said(-0.1, -0.11, -0.12, free=True).endswith("| refuted |")
