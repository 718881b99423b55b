"""Published tables, trained again."""

import json

import numpy as np

from experiments.board import outside

LABELS = np.repeat(np.arange(10), 600)


def test_partitions_are_the_published_ones():
    parts = outside.two_classes(LABELS, 42)
    assert [len(set(LABELS[part])) for part in parts] == [2] * 10
    assert all(client in LABELS[part] for client, part in enumerate(parts))
    more = outside.dirichlet(LABELS, 42)
    assert len(more) == 16
    for each in (parts, more):
        np.testing.assert_array_equal(np.sort(np.concatenate(each)), np.arange(6000))


def test_the_polar_factor_is_exact_enough():
    draw = np.random.default_rng(0)
    left, _ = np.linalg.qr(draw.normal(size=(40, 12)))
    right, _ = np.linalg.qr(draw.normal(size=(12, 12)))
    matrix = (left * np.logspace(0, -5, 12)) @ right
    np.testing.assert_allclose(outside.polar(matrix), left @ right, atol=0.05)


def test_the_table_has_the_longest_runs(tmp_path):
    path, lines = tmp_path / "replication.jsonl", []
    for rounds, score, run in ((600, 0.5, 0), (1000, 0.8, 0), (1000, 0.9, 1)):
        row = {"method": "FedMuon", "rounds": rounds, "runs": 2, "run": run}
        row |= {"accuracy": score, "diverged": None, "seconds": 1.0, "device": "cpu"}
        row |= {"rounds_of_curve": [300, rounds], "curve": [score - 0.1, score]}
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines))
    outside.table(path)
    shown = "| 85 | 75.0 ± 7.1 (70.0, 80.0) | 89 | 85.0 ± 7.1 (80.0, 90.0) |"
    assert f"| FedMuon | 1,000 {shown}" in path.with_suffix(".md").read_text()
