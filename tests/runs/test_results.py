"""What calls return and directories have: the same objects, in one table of rows."""

import importlib
from functools import partial

import pytest

import fedjax_muon as fm
from fedjax_muon.runs import results

TINY = fm.problems.classification(
    clients=6, model=partial(fm.problems.mlp, hidden=(4,)), divide=fm.partition.iid
)
SIZES = {"cohort": 3, "local_steps": 2, "batch_size": 8, "progress": False}
HOW = {"rounds": 4, "evaluate_every": 2, **SIZES}


def test_a_comparison_that_is_loaded_is_the_one_that_was_returned(tmp_path):
    place, axes = tmp_path / "both", {"local_steps": (1, 2)}
    methods = {"one": fm.fedavg(lr=0.1), "lost": fm.fedavg(lr=1e30)}
    made = fm.compare(methods, TINY, seeds=(0, 3), grid=axes, directory=place, **HOW)
    read = fm.load_run(place)
    assert str(read) == str(made)
    assert read.diverged == made.diverged != {}
    assert [*made.runs] == [*read.runs] == ["one, local_steps=1", "one, local_steps=2"]
    assert read.rows == made.rows
    rows = [row for row in read.rows if row["method"] == "one"]
    places = [(k, seed, at) for k in (1, 2) for seed in (0, 3) for at in (0, 2, 4)]
    assert [(row["local_steps"], row["seed"], row["round"]) for row in rows] == places
    read.plot(tmp_path / "curves.png")
    assert fm.load_run(place / "one-local_steps=1/seed3").seed == 3


def test_a_comparison_that_was_interrupted_has_its_runs_so_far(tmp_path, monkeypatch):
    def stops(job, *others):
        if job.name == "FedMuon":
            raise KeyboardInterrupt
        return results_of(job, *others)

    module = importlib.import_module("fedjax_muon.runs.compare")
    results_of = module.run
    monkeypatch.setattr(module, "run", stops)
    place, methods = tmp_path / "both", [fm.fedavg(lr=0.1), fm.fedmuon(lr=0.1)]
    with pytest.raises(KeyboardInterrupt):
        fm.compare(methods, TINY, seeds=(0,), directory=place, **HOW)
    read = fm.load_run(place)
    assert [row["method"] for row in read.rows] == 3 * ["FedAvg"]
    assert [row[0] for row in read.table().rows] == ["FedAvg"]


def test_a_search_and_the_graph_of_agents_are_loaded_too(tmp_path):
    how = {"rounds": 4, "directory": tmp_path, "seeds": (0,), "progress": False}
    made = fm.compare([fm.decentralized.dsgd], TINY, grid={"lr": (0.1, 0.2)}, **how)
    read = fm.load_run(tmp_path)
    assert read.graph.edges == made.graph.edges
    (label,) = made.sweeps
    assert str(read.sweeps[label]) == str(made.sweeps[label])
    assert read.rates == made.rates


def test_a_sweep_that_is_loaded_has_every_cell_and_no_method(tmp_path):
    grid = {"lr": (0.1, 1e30)}
    how = {**HOW, "directory": tmp_path, "seeds": (0, 1), "extend": False}
    made = fm.sweep({"mine": fm.fedavg}, TINY, grid, **how)
    read = fm.load_run(tmp_path)
    assert str(read) == str(made)
    assert read.rows == made.rows == read["mine"].rows
    rates = {(row["lr"], row["seed"]) for row in read.rows}
    assert rates == {(lr, seed) for lr in (0.1, 1e30) for seed in (0, 1)}
    with pytest.raises(ValueError, match=r"no method; give \{'lr': 0.1\} to yours"):
        assert read["mine"].best_method


def test_parts_of_a_sweep_on_several_machines_are_one(tmp_path):
    grid = {"lr": (0.1, 0.2)}
    for seed in (0, 1):
        how = {**HOW, "directory": tmp_path / str(seed), "extend": False}
        fm.sweep([fm.fedavg], TINY, grid, seeds=(seed,), **how)
    read, both = (
        fm.load_run(tmp_path),
        fm.sweep([fm.fedavg], TINY, grid, seeds=(0, 1), extend=False, **HOW),
    )
    assert str(read) == str(both)
    assert len(read.rows) == len(both.rows) == 12


def test_rows_are_a_table_of_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    made = fm.train(fm.fedavg(lr=0.1), TINY, **HOW)
    assert isinstance(made.frame(), pandas.DataFrame)
    assert made.frame().to_dict("records") == made.rows
    with pytest.raises(ValueError, match="the run has no directory; give one to train"):
        assert made.words


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"along": 3}'])
def test_a_damaged_note_of_a_comparison_is_one_line(tmp_path, text):
    (tmp_path / results.COMPARISON).write_text(text)
    with pytest.raises(ValueError, match=r"^\S+comparison.json: expected a comparison"):
        fm.load_run(tmp_path)
