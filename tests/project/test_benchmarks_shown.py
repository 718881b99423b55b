"""What was measured, as a table and as a figure."""

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import figure

pytestmark = pytest.mark.slow

KERNELS = (
    {"contender": "fedjax_muon", "wall_seconds": 0.01234, "times_that": 1.1},
    {"contender": "optax", "wall_seconds": 0.04},
)


def test_the_table_has_medians_of_all_that_have_a_time(tmp_path, capsys):
    sizes = {"clients": 4, "cohort": 1, "steps": 2, "whole": False}
    row = {"workload": "cifar100_resnet18", "contender": "fedjax_muon", **sizes}
    rows = [
        row | {"algorithm": "fedavg", "wall_seconds": 2.345678},
        row | {"algorithm": "fedmuon", "wall_seconds": 123.4},
        row | {"algorithm": "fedavg", "wall_seconds": 2.1, "contender": "pfl"},
        row | {"algorithm": "fedavg", "error": "none", "contender": "Flower"},
        {"cpu": "a head"},
        {"workload": "local_step", "contender": "fedjax_muon", "wall_seconds": 1.0},
        *({"workload": "newton_schulz", "case": "2 x 3", **r} for r in KERNELS),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    command.main(["table", str(path)])
    assert capsys.readouterr().out.splitlines() == [
        "| workload | fedjax_muon | pfl | FedMuon |",
        "|---|---:|---:|---:|",
        "| ResNet-18 on CIFAR-100, 50 local steps of batch 50 (here 1 of 4 clients, 2 "
        "steps) | 2.35 | **2.1** | 123 |",
        "",
        "| five Newton-Schulz steps, ms | fedjax_muon | optax | ratio to products |",
        "|---|---:|---:|---:|",
        "| 2 x 3 | 12.3 | 40 | 1.1 |",
    ]
    with pytest.raises(ValueError, match="no file nothing"):
        command.main(["table", "nothing"])


def test_dots_are_times_relative_to_fedavg():
    row = {"workload": "w1", "algorithm": "fedavg"}
    rows = [
        row | {"contender": "PyTorch loop", "wall_seconds": 2.0},
        row | {"contender": "fedjax_muon", "wall_seconds": 4.0},
        row | {"contender": "Flower", "error": "none"},
        {"workload": "newton_schulz", "contender": "fedjax_muon", "wall_seconds": 0.5},
    ]
    assert figure.workloads(rows) == {
        "w1\n4 s": [("PyTorch loop, FedAvg", 0.5, False), ("FedAvg", 1.0, True)],
    }
    with pytest.raises(ValueError, match="nothing to draw"):
        figure.draw([rows[0], rows[3]], Path("dots.png"))
