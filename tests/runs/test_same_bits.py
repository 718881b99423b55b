"""A cell has the same numbers to the bit, whichever command runs it.

Programs in which a number is a constant round 1 - 0.99 otherwise than those in which it
is an argument.
"""

import functools

import pytest

from fedjax_muon import data
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import compare, train
from fedjax_muon.runs.build import parts_of, simulation_of, start_key
from fedjax_muon.runs.config import Comparison, Config, Run
from fedjax_muon.simulation.sweep import Cell, sweep

pytestmark = pytest.mark.slow

SEEDS = (3, 4)
SIZES = {"num_clients": 6, "cohort_size": 3, "local_steps": 4, "batch_size": 8}
RATES = {"newton_schulz_steps": 2, "lr_schedule": "cosine", "dropout": 0.2}
CONFIG = Config(**SIZES, **RATES, hidden=(8,), rounds=8, evaluate_every=2)


@pytest.fixture(scope="module")
def held_out():
    """The examples that a sweep trains on, and those it validates on."""
    return data.hold_out(data.load("digits"), 0.1)


@pytest.fixture(scope="module")
def alone(held_out, tmp_path_factory):
    """The rows of `train`, by the name of the method."""

    @functools.cache
    def rows(name):
        run_dir = tmp_path_factory.mktemp("train")
        run = Run(name, {"lr": 0.1}, SEEDS[1], CONFIG)
        train.train(run, simulation_of(run, held_out[0]), run_dir)
        found = rows_of(run_dir)
        assert len(found) == 5
        return found

    return rows


def rows_of(run_dir):
    columns = metrics_csv.read(run_dir / "metrics.csv")
    del columns["seconds"]
    count = len(columns["round"])
    return [{name: v[i] for name, v in columns.items()} for i in range(count)]


@pytest.mark.parametrize("name", ["fedmuon_align", "fedlada"])
def test_compare_runs_what_train_runs(name, alone, held_out, tmp_path):
    job = Comparison((name,), {name: 0.1}, {}, SEEDS, CONFIG)
    compare.run(job, held_out[0], tmp_path)
    assert rows_of(tmp_path / name / f"seed{SEEDS[1]}") == alone(name)


@pytest.mark.parametrize(
    ("name", "grid", "seeds"),
    [
        ("fedmuon_align", [{}], SEEDS[1:]),
        ("fedmuon_align", [{}, {"lr": 0.03}], SEEDS),
        # grids of other hyper-parameters, first their defaults
        ("fedmuon_align", [{"align": 0.5}, {"align": 0.25}], SEEDS),
        ("fedmuon_align", [{"momentum": 0.98}, {"momentum": 0.9}], SEEDS),
        ("fedlada", [{}], SEEDS[1:]),
        ("fedlada", [{"b2": 0.99}, {"b2": 0.9}], SEEDS),
    ],
)
def test_a_sweep_runs_what_train_runs(name, grid, seeds, alone, held_out):
    rest, validation = held_out
    begin = lambda seed: (start_key(seed), parts_of(CONFIG, rest, seed))
    cells = [Cell({"lr": 0.1} | point, *begin(s)) for point in grid for s in seeds]
    how = {"rounds": CONFIG.rounds, "evaluate_every": CONFIG.evaluate_every}
    simulation = simulation_of(Run(name, {}, seeds[0], CONFIG), rest)
    groups = sweep(simulation, cells, validation=validation, **how)
    outcomes = [outcome for group in groups for outcome in group]
    own = outcomes[len(seeds) - 1].rows  # the first point on the last seed
    rows = alone(name)
    assert [{column: row[column] for column in rows[0]} for row in own] == rows
    others = [outcome.rows[-1]["train_loss"] for outcome in outcomes]
    assert len(set(others)) == len(cells)
