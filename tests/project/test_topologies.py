"""Benchmarks of accelerators: their cases, their records, and the script for a GPU."""

import json
import os
import subprocess
from pathlib import Path
from unittest import mock

import jax
import pytest

from benchmarks import topologies, topology_cases
from fedjax_muon import algorithms, decentralized, minimax

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks/gpu.sh"
CASES = [case for group in topology_cases.GROUPS.values() for case in group()]
FOUND = {"chips": 4, "seconds": 2.5, "chip_memory": 16e9, "flops": 1.0, "nbytes": 1.0}
FOUND |= {"least_seconds": 0.002, "exchanges": 1}
FOUND["memory"] = {"arguments": 10**9, "results": 0, "work": 10**9, "code": 0}
FOUND["collectives"] = [
    {"kind": "all-reduce", "operations": 1, "nbytes": 4 * 10**6, "in_loops": 0},
    {"kind": "all-gather", "operations": 2, "nbytes": 10**6, "in_loops": 1},
]


def test_every_method_is_compiled_for_one_chip_and_for_many():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    for topology in topology_cases.CHIP, topology_cases.POD:
        mine = [case for case in CASES if case.group == "methods"]
        found = {case.algorithm for case in mine if case.topology == topology}
        assert found == {*algorithms.ALL, *minimax.ALL, *decentralized.ALL}


@pytest.mark.parametrize("algorithm", ["fedmuon_da", "dm_hsgd", "gradient_tracking"])
def test_a_case_has_the_shapes_of_its_data(algorithm):
    case = next(case for case in CASES if case.algorithm == algorithm)
    dataset = topology_cases.dataset_of(case.config)
    simulation = topology_cases.prepare(case)
    shape = (28, 28, 1) if algorithm == "gradient_tracking" else (123,)
    assert dataset.x_train.shape[1:] == shape
    with_arrays = topology_cases.with_data(case, dataset)
    form = lambda one: jax.tree.map(lambda x: (x.shape, x.dtype), one.clients)
    assert form(simulation) == form(with_arrays)
    assert simulation.clients.max_size == with_arrays.clients.max_size
    assert isinstance(simulation.clients.x, jax.ShapeDtypeStruct)


def compiler(*answers):
    """In place of a process with a compiler, and of its class."""
    worker = mock.Mock()
    worker.return_value, worker.compile.side_effect = worker, answers
    return worker


def test_finished_cases_are_not_compiled_again(monkeypatch, tmp_path, capsys):
    late = {"error": f"{topologies.LATE} of 1 minutes"}
    monkeypatch.setattr(topologies, "GROUPS", {"methods": lambda: CASES[:3]})
    first = compiler(FOUND, late, FOUND)
    monkeypatch.setattr(topologies, "Worker", first)
    topologies.main(["--output", str(tmp_path)])
    assert first.end.call_count == 2  # the one that was late, and the last
    rows = topologies.read(tmp_path / "matrix.jsonl")
    assert [row.get("error") for row in rows] == [None, late["error"], None]
    monkeypatch.setattr(topologies, "Worker", compiler())
    topologies.main(["--output", str(tmp_path)])
    monkeypatch.setattr(topologies, "Worker", compiler(FOUND))
    topologies.main(["--output", str(tmp_path), "--again"])
    rows = topologies.read(tmp_path / "matrix.jsonl")
    assert len(rows) == 3
    assert not any("error" in row for row in rows)
    table = (tmp_path / "matrix.md").read_text()
    assert (
        "| fedavg | mlp, 256, vmapped | v5e:1x1 | 2.5 | 2 of 16 GB | 2 ms | "
        "1 all-reduce, 4 MB, 2 all-gather (1 in loops), 1 MB |" in table
    )
    capsys.readouterr()
    with pytest.raises(SystemExit):
        topologies.main(["shapes"])
    assert "no group 'shapes'; there are methods" in capsys.readouterr().err


def test_the_script_runs_its_parts(tmp_path):
    environment = os.environ | {"OUT": str(tmp_path), "SMALL": "1", "PYTHON": "python"}
    run = lambda *parts: subprocess.run(
        [SCRIPT, *parts], env=environment, capture_output=True, text=True
    )
    done = run("install")
    assert done.returncode == 0, done.stderr
    part = json.loads((tmp_path / "parts.jsonl").read_text())
    assert (part["part"], part["status"]) == ("install", 0)
    assert run("everything").returncode == 2
    named = SCRIPT.read_text().split("PART ...]        all parts")[1]
    for name in ("oracles", "checks", "race", "race_large", "table_2", "figure_1"):
        assert f"\n{name}() {{" in named
