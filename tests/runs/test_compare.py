"""Comparisons and sweeps of methods on a problem, in a directory or without one."""

import dataclasses
import inspect
import json
import math
import os
import re
import signal
from functools import partial
from importlib import import_module

import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon import partition, problems
from fedjax_muon.core import numbers_of
from fedjax_muon.core.schedules import cosine_decay
from fedjax_muon.decentralized import dsgd
from fedjax_muon.privacy import ClientPrivacy
from fedjax_muon.runs.cells import read_points
from fedjax_muon.runs.compare import compare, rate_of
from fedjax_muon.runs.methods import rated, settings_along
from fedjax_muon.runs.results import table_of
from fedjax_muon.runs.search import wider
from fedjax_muon.runs.simulate import OF_PROBLEM, promised
from fedjax_muon.runs.sweep import sweep
from fedjax_muon.runs.train import train
from tests.support.command import assert_same_but_for_seconds

SWEEP = import_module("fedjax_muon.runs.sweep")
SIZES = {"cohort": 3, "local_steps": 2, "batch_size": 8}
EVERY = {"rounds": 4, "evaluate_every": 2, "progress": False}
PROBLEM = problems.classification(
    clients=6, model=partial(problems.mlp, hidden=(4,)), train_share=0.3, alpha=1.0
)
GRID = (0.001, 0.01)  # far too small
METHODS = {"fedavg": fm.fedavg(lr=0.1), "fedmuon": fm.fedmuon(lr=0.01)}


def untimed(rows):
    return [{**row, "seconds": 0} for row in rows]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The best rate of fedavg, and both methods on two seeds."""
    place = tmp_path_factory.mktemp("compared")
    options = {**EVERY, **SIZES, "seeds": (0, 1), "grid": {"fedavg.lr": GRID}}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SWEEP, "MOST", 3)
        result = compare(METHODS, PROBLEM, directory=place / "new", **options)
    return place, result


# the last test losses, as first computed on a Xeon by the command line before this one
LOSSES = {"fedavg": (2.146223, 2.3308), "fedmuon": (2.471782, 2.324142)}


def test_a_comparison_has_the_numbers_that_it_had(compared):
    place, result = compared
    assert result.sweeps["fedavg"].chosen == {"lr": 0.03}
    for name, losses in LOSSES.items():
        last = [run["test_loss"][-1] for run in result.runs[name]]
        assert last == pytest.approx(losses, rel=2e-6)
    assert result.rates == {"fedavg": "0.03 (edge)", "fedmuon": "0.01"}
    ours = result.table()
    title = "digits, 6 clients by dirichlet (1), 3 per round, 2 local steps"
    assert str(ours).startswith(f"# {title}\n\n| algorithm | lr |")
    names = "summary.csv summary.tex comparison.png versions.json comparison.json"
    names += " fedavg fedmuon tuning"
    assert {path.name for path in (place / "new").iterdir()} == set(names.split())


def test_in_memory_the_numbers_are_the_same(compared):
    _, result = compared
    lr = {"fedavg": fm.fedavg(lr=0.03)}
    alone = compare(lr, PROBLEM, **EVERY, **SIZES, seeds=(0, 1))
    for known, run in zip(result.runs["fedavg"], alone.runs["fedavg"], strict=True):
        assert known.keys() == run.keys()
        for name in known.keys() - {"seconds"}:
            np.testing.assert_array_equal(known[name], run[name])


@pytest.fixture
def counted(monkeypatch):
    """Counts rounds that are trained, and ends a process after some."""
    from fedjax_muon.simulation import groups, training

    def killed():
        raise RuntimeError("killed")

    heard = {"rounds": 0, "at": None, "end": killed}
    whole = training.calls

    def calls(*arguments, **options):
        for call in whole(*arguments, **options):
            heard["rounds"] += call.rounds
            yield call
            if heard["at"] is not None and heard["rounds"] >= heard["at"]:
                heard["end"]()

    monkeypatch.setattr(training, "calls", calls)
    monkeypatch.setattr(groups, "calls", calls)
    return heard


def test_what_is_killed_in_a_search_or_a_run_goes_on(compared, tmp_path, counted):
    monkeypatch, place = pytest.MonkeyPatch(), tmp_path / "run"
    options = {**EVERY, **SIZES, "seeds": (0, 1), "grid": {"fedavg.lr": GRID}}
    monkeypatch.setattr(SWEEP, "MOST", 3)
    go = lambda: compare(METHODS, PROBLEM, directory=place, **options)
    try:
        for at in (6, 6, 6):  # in the wider grid, in the first run, in a later one
            counted["rounds"], counted["at"] = 0, at
            with pytest.raises(RuntimeError):
                go()
        counted["at"] = None
        result = go()
        counted["rounds"] = 0
        assert go().table() == result.table()
    finally:
        monkeypatch.undo()
    assert counted["rounds"] == 0
    for cell in ("fedavg/seed0", "fedmuon/seed1"):
        name = f"{cell}/metrics.csv"
        assert_same_but_for_seconds(place / name, compared[0] / "new" / name)


def test_an_interrupt_keeps_what_is_finished(tmp_path, counted):
    def interrupted():
        counted["at"] = None
        os.kill(os.getpid(), signal.SIGINT)

    grid = {"lr": (0.1, 0.3, 1.0)}
    how = {**EVERY, **SIZES, "extend": False, "cells_at_once": 1}
    go = lambda place: sweep([fm.fedavg], PROBLEM, grid, directory=place, **how)
    counted["at"], counted["end"] = 5, interrupted  # in the second of three cells
    with pytest.raises(KeyboardInterrupt, match="the same call with directory="):
        go(tmp_path / "stopped")
    known = read_points(tmp_path / "stopped" / "FedAvg")
    assert [point.hyper for point in known] == [{"lr": 0.1}]
    counted["rounds"] = 0
    result = go(tmp_path / "stopped")["FedAvg"]
    assert counted["rounds"] == 8
    whole = go(tmp_path / "whole")["FedAvg"]
    for one, other in zip(result.points, whole.points, strict=True):
        loss = [point.runs[0]["test_loss"] for point in (one, other)]
        np.testing.assert_array_equal(*loss)


def test_a_comparison_is_extended_and_others_are_refused(compared, tmp_path):
    how = {**EVERY, **SIZES, "seeds": (0,), "directory": tmp_path / "run"}
    methods = {"fedmuon": METHODS["fedmuon"]}
    short = compare(methods, PROBLEM, **{**how, "rounds": 3})
    assert short.runs["fedmuon"][0]["round"].tolist() == [0, 2, 3]
    long = compare(methods, PROBLEM, **how)
    known = compared[1].runs["fedmuon"][0]
    np.testing.assert_array_equal(
        long.runs["fedmuon"][0]["test_loss"], known["test_loss"]
    )
    rated = {**how, "grid": {"lr": (0.01, 0.02)}, "rounds": 2}
    rated["directory"] = tmp_path / "tuned"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SWEEP, "MOST", 1)
        chosen = [compare(methods, PROBLEM, **{**rated, "rounds": n}) for n in (1, 2)]
    first, second = (each.sweeps["fedmuon"].points[0].runs[0] for each in chosen)
    np.testing.assert_array_equal(first["round"], second["round"])
    with pytest.raises(ValueError, match="has a single run or a sweep; choose another"):
        compare(
            methods, PROBLEM, **{**how, "directory": tmp_path / "run/fedmuon/seed0"}
        )
    with pytest.raises(ValueError, match=r"its method.lr is 0.01, not 0.1; choose"):
        compare({"fedmuon": fm.fedmuon(lr=0.1)}, PROBLEM, **how)


def test_cells_of_a_sweep_are_single_runs(tmp_path):
    """Also of agents, who have another random graph for every seed."""
    problem = dataclasses.replace(PROBLEM)
    grid = {"lr": (0.05, 0.1)}
    how = {**EVERY, "batch_size": 4, "seeds": (3, 4), "extend": False}
    result = sweep([dsgd], problem, grid, **how)["D-SGD"]
    del how["seeds"], how["extend"]
    held_out = problem.with_validation()
    alone = train(dsgd(lr=0.1), held_out, seed=4, **how)
    cell = result.points[1].runs[1]
    for name, value in alone.records[-1].items():
        if name != "seconds":
            assert cell[name][-1] == value, name
    assert len({run["consensus"][-1] for run in result.points[0].runs}) == 2


def test_a_sweep_runs_what_is_missing_of_a_larger_one(tmp_path, counted):
    how = {**EVERY, **SIZES, "directory": tmp_path / "sweep", "extend": False}
    method = fm.compress(fm.fedprox(lr=0.1), fm.no_compression())  # numbers inside
    small = {"lr": (0.1,), "mu": (0.1,)}
    first = sweep({"one": method}, PROBLEM, small, seeds=(5,), **how)["one"]
    assert not (tmp_path / "sweep" / "ranking.png").exists()  # a seed has no interval
    counted["rounds"] = 0
    grid = {"lr": (0.1, 0.3), "mu": (0.1,)}
    result = sweep({"one": method}, PROBLEM, grid, seeds=(5, 6), **how)["one"]
    assert counted["rounds"] == 4  # of a group of three cells
    assert result.points[0].hyper == first.points[0].hyper == {"lr": 0.1, "mu": 0.1}
    loss = [each.points[0].runs[0]["test_loss"] for each in (first, result)]
    np.testing.assert_array_equal(*loss)
    assert numbers_of(result.best_method)["lr"] == result.best.hyper["lr"]
    names = "one points.csv summary.csv summary.md grids.png ranking.png curves.png"
    place = tmp_path / "sweep"
    assert {path.name for path in place.iterdir()} == set(names.split())
    names = "identity.json versions.json swept.json cells.csv"
    assert {path.name for path in (place / "one").iterdir()} == set(names.split())
    assert (place / "summary.csv").read_text().splitlines()[1].startswith("one,")
    both = {"one": first, "two": result}
    assert [row[0] for row in table_of(both).rows] in (["one", "two"], ["two", "one"])
    with pytest.raises(ValueError, match="its rounds is 4, not 5; choose another"):
        sweep({"one": method}, PROBLEM, grid, seeds=(5,), **{**how, "rounds": 5})


def test_every_method_of_a_sweep_is_traced_before_the_first_trains(counted, tmp_path):
    def broken(lr: fm.Hyper = 0.1) -> fm.Algorithm:
        def send(state, round):
            raise ValueError("this round cannot be traced")

        plain = fm.fedavg(lr=lr)
        return plain._replace(exchanges=(plain.exchanges[0]._replace(broadcast=send),))

    how = {**EVERY, **SIZES, "directory": tmp_path / "a"}
    methods = [fm.fedavg, fm.recorded(broken)]
    for go in (sweep, compare):
        with pytest.raises(ValueError, match="cannot be traced"):
            go(methods, PROBLEM, grid={"lr": (0.1, 0.3)}, **how)
    assert counted["rounds"] == 0
    assert not (tmp_path / "a").exists()


def test_a_grid_names_other_arguments_of_the_call_too(tmp_path):
    grid = {"problem.alpha": (0.5, 2.0), "local_steps": (1, 2)}
    how = {**EVERY, "cohort": 3, "batch_size": 8, "seeds": (0,)}
    place = tmp_path / "run"
    result = compare([fm.fedavg(lr=0.1)], PROBLEM, grid=grid, directory=place, **how)
    labels = [f"FedAvg, alpha={a}, local_steps={n}" for a in ("0.5", 2) for n in (1, 2)]
    assert [*result.runs] == labels
    assert result.title.endswith("; others in alpha, local_steps")
    assert {path.name for path in place.glob("*.png")} == {
        *("comparison.png", "alpha.png", "local_steps.png")
    }
    other = PROBLEM.varied(alpha=2.0)
    alone = train(
        fm.fedavg(lr=0.1), other, local_steps=1, **EVERY, cohort=3, batch_size=8
    )
    assert alone.records[-1]["test_loss"] == result.runs[labels[2]][0]["test_loss"][-1]
    swept = sweep([fm.fedavg], PROBLEM, {**grid, "lr": (0.1, 0.3)}, extend=False, **how)
    assert [*swept] == labels
    for said, wrong in {
        "unknown argument of the problem 'alhpa'": {"problem.alhpa": (1,)},
        "must have one or more values, got 1": {"local_steps": 1},
        "the grid names 'alpha', which is not a number of fedavg": {"alpha": (1.0,)},
    }.items():
        with pytest.raises(ValueError, match=said):
            compare([fm.fedavg(lr=0.1)], PROBLEM, grid=wrong, **how)


def test_values_of_an_axis_have_short_names_that_differ():
    named = lambda *values: [
        each.words for each in settings_along({"cohort": values}, PROBLEM, {})
    ]
    clocked = fm.buffered(6, 3, staleness=fm.staleness.polynomial(0.5))
    assert named(4, clocked) == ["cohort=4", "cohort=3 per step of 6 at work"]
    several = named(fm.sampled(4), fm.sampled(4, dropout=0.25))
    assert several[0].startswith("cohort=Sampled(size=4, draw=fixed_cohort, dropout=0")
    assert several[0] != several[1]
    with pytest.raises(ValueError, match="a grid has each value once"):
        named(4, 4)


def test_functions_have_tuned_rates_at_home_and_search_elsewhere(capsys):
    at_home = rated(fm.fedmuon, problems.classification(), {}, 10, search=True)
    assert rate_of(at_home.method) == "0.03 cosine"
    assert at_home.start is None
    elsewhere = rated(fm.fedmuon, PROBLEM, {}, 10, search=True)
    assert (rate_of(elsewhere.method), elsewhere.start) == ("0.03", 0.03)
    how = {**SIZES, "rounds": 2, "seeds": (0,), "evaluate_every": 2}
    result = compare([fm.fedavg, fm.fedprox(lr=0.1)], PROBLEM, **how)
    assert [*result.sweeps] == ["FedAvg"]
    tried = [point.hyper["lr"] for point in result.sweeps["FedAvg"].points]
    assert {0.1, 0.3, 0.9} <= {*tried}
    assert len(tried) <= SWEEP.MOST
    said = capsys.readouterr().err
    assert "6 to 16 runs of 2 rounds choose numbers of FedAvg; then 2 runs" in said
    assert re.search(r"this takes about \d+\.\d to \d+\.\d minutes", said)
    still = compare([fm.fedavg], PROBLEM, search=False, progress=False, **how)
    assert still.rates == {"FedAvg": "0.3"}


def test_settings_name_the_arguments_of_both_engines():
    known = {*inspect.signature(fm.federate).parameters}
    known |= {*inspect.signature(fm.decentralize).parameters}
    assert {*fm.runs.Settings.__annotations__} == known - {*OF_PROBLEM}


def test_a_cosine_knows_the_rounds_of_the_call():
    how = {**EVERY, **SIZES}
    one = train(fm.fedavg(lr=fm.cosine(0.1)), PROBLEM, **how)
    other = train(cosine_decay(fm.fedavg(), lr=0.1, rounds=4), PROBLEM, **how)
    assert untimed(one.records) == untimed(other.records)
    with pytest.raises(ValueError, match="cosine knows its rounds in train, compare"):
        fm.simulate(fm.fedavg(lr=fm.cosine(0.1)), PROBLEM, **SIZES)


def test_learning_rates_are_told_in_words():
    cosine = cosine_decay(fm.fedavg(), lr=0.1, rounds=4)
    told = {
        "0.3": fm.compress(fm.fedavg(lr=0.3), fm.top_k(0.1)),
        "0.1 cosine": cosine,
        "schedule": fm.fedavg(lr=lambda index: 0.1),
        "-": fm.fedavg(lr=0.1)._replace(recipe=None),
    }
    assert {words: rate_of(method) for words, method in told.items()} == {
        words: words for words in told
    }


def test_methods_that_need_all_clients_have_them_and_say_so():
    methods = {"stem": fm.stem(), "fedavg": fm.fedavg(lr=0.1)}
    how = {**EVERY, "rounds": 1, "seeds": (0,), "local_steps": 1, "batch_size": 8}
    problem = dataclasses.replace(PROBLEM, sizes={**PROBLEM.sizes, "cohort": 3})
    result = compare(methods, problem, **how)
    words = [result.rates[name].partition(" ")[2] for name in methods]
    assert words == ["(all clients)", ""]
    sent = [result.runs[name][0]["bytes_up"][-1] for name in methods]
    assert sent[0] > sent[1]
    with pytest.raises(ValueError, match=r"^stem: this algorithm is"):
        compare(methods, problem, cohort=3, **how)


def test_published_grids_are_swept_and_others_left_out_aloud(capsys):
    how = {**EVERY, **SIZES, "extend": False, "progress": True}
    swept = sweep([fm.fedexp, fm.fedavg_adam], PROBLEM, "paper", **how)
    assert [*swept] == ["FedAvg(Adam)"]
    assert [point.hyper["lr"] for point in swept["FedAvg(Adam)"].points] == [
        *fm.algorithms.ALL["fedavg_adam"].grid["lr"]
    ]
    assert "left out, without a published grid: FedExP" in capsys.readouterr().err
    with pytest.raises(ValueError, match="FedExP: no published grid is known"):
        sweep([fm.fedexp], PROBLEM, "paper", **how)


def test_what_diverges_is_called_so_and_the_others_go_on():
    methods = {"bad": fm.fedavg(lr=1e38), "good": METHODS["fedmuon"]}
    result = compare(methods, PROBLEM, **EVERY, **SIZES, seeds=(0,))
    assert [*result.runs] == ["good"]
    assert result.diverged["bad"].startswith("round ")
    assert "diverged (round" in str(result.table().rows)
    grid = {"lr": (1e37, 1e38)}
    result = sweep([fm.fedavg], PROBLEM, grid, **EVERY, **SIZES)["FedAvg"]
    assert result.best is None
    assert "diverged" in result.doubts
    still = sweep([fm.fedavg], PROBLEM, {"lr": (0.0, 0.1)}, **EVERY, **SIZES)["FedAvg"]
    assert len(still.points) == 2  # there is no factor of 3 from 0


PRIVACIES = [
    ClientPrivacy(clip_norm=0.5, cohort=3, rounds=4, delta=0.01, epsilon=epsilon)
    for epsilon in (8.0, 1.0)
]


@pytest.mark.filterwarnings(
    "ignore:messages have params", "ignore:the noise in the sum"
)
def test_several_epsilons_are_charged_together_or_not_at_all(tmp_path):
    how = {**EVERY, "local_steps": 2, "batch_size": 8, "privacy": PRIVACIES}
    how |= {"ledger": tmp_path / "ledger.json", "seeds": (3,)}
    methods = {"fedavg": fm.fedavg(lr=0.1)}
    with pytest.raises(ValueError, match="it would be"):
        compare(methods, PROBLEM, directory=tmp_path / "poor", budget=2.0, **how)
    assert not (tmp_path / "poor").exists()
    result = compare(methods, PROBLEM, directory=tmp_path / "run", **how)
    labels = ["fedavg, epsilon 8", "fedavg, epsilon 1"]
    assert [*result.runs] == labels
    for epsilon in (1, 8):
        assert (tmp_path / f"run/fedavg/epsilon{epsilon}/seed3/metrics.csv").exists()
    entries = json.loads((tmp_path / "ledger.json").read_text())["entries"]
    assert [entry["label"].partition(" on ")[0] for entry in entries] == [
        f"fedavg at epsilon {epsilon}" for epsilon in (8, 1)
    ]
    text = (tmp_path / "run" / "privacy.txt").read_text()
    assert text.count("-differential privacy for one client") == 2
    assert (tmp_path / "run" / "utility.png").exists()
    how |= {"privacy": PRIVACIES[:1] * 2, "directory": tmp_path / "twice"}
    with pytest.raises(ValueError, match="epsilons must differ"):
        compare(methods, PROBLEM, **how)


@pytest.mark.filterwarnings("ignore:messages have", "ignore:the noise in the sum")
def test_a_promise_has_the_rounds_and_the_cohort_of_the_call(tmp_path):
    how = {**EVERY, "local_steps": 2, "batch_size": 8}
    method, place = fm.fedavg(lr=0.1), tmp_path / "run"
    brief = ClientPrivacy(clip_norm=0.5, delta=0.01, epsilon=(8.0, 1.0))
    called = promised({"privacy": brief, "cohort": 3}, PROBLEM, 4)
    assert called == {"privacy": PRIVACIES}
    one = dataclasses.replace(brief, epsilon=8.0)
    assert (
        promised({"privacy": one, "cohort": 3}, PROBLEM, 4)["privacy"] == PRIVACIES[0]
    )
    place = tmp_path / "run"
    made = train(
        fm.fedavg(lr=0.1), PROBLEM, privacy=one, cohort=3, directory=place, **how
    )
    assert made.simulation.settings.privacy.rounds == 4
    for wrong, said in {
        brief: "train takes one promise and one epsilon",
        one: "give cohort a number, got Sampled",
    }.items():
        size = 3 if wrong is brief else fm.sampled(3)
        with pytest.raises(ValueError, match=said):
            train(method, PROBLEM, privacy=wrong, cohort=size, **how)
    with pytest.raises(ValueError, match="give the promise cohort, which train and"):
        fm.simulate(method, PROBLEM, privacy=one)
    with pytest.raises(ValueError, match="a run has one epsilon, got 8, 1"):
        fm.simulate(method, PROBLEM, privacy=brief)


def test_agents_are_compared_on_a_graph_and_clients_by_fairness(tmp_path):
    problem = dataclasses.replace(PROBLEM, tested=problems.division.alike)
    methods = {"a": fm.fedavg(lr=0.1), "b": dsgd(lr=0.1)}
    how = {**EVERY, "batch_size": 4, "seeds": (0,), "directory": tmp_path / "run"}
    result = compare(methods, problem, **how)
    assert (tmp_path / "run" / "graph.png").exists()
    assert result.graph.number_of_nodes() == 6


WRONG = {  # what is said: the arguments of `compare`
    "methods must be a list, such as": {"methods": fm.fedavg()},
    "fedavg is named twice": {"methods": [fm.fedavg, fm.fedavg]},
    "name the methods to compare": {"methods": []},
    "is a method for minimax problems": {"methods": [fm.minimax.sagda]},
    "seeds must be one or more numbers, each once": {"seeds": (1, 1)},
    "seeds must be one or more numbers, each once, got 3": {"seeds": 3},
    "the grid of lr must have one or more values": {"grid": {"lr": 0.1}},
    "log must be a list of names, got 'wandb'": {"log": "wandb"},
    "algorithm must be made by a function": {"methods": {"a": lambda: 3}},
    "the grid names 'fedfoo.lr', which is not a number": {"grid": {"fedfoo.lr": GRID}},
    "the grid names 'lrr', which is not a number": {"grid": {"lrr": (1, 2)}},
    "the grid of lr must have one or more numbers, each once, got (1, 1)": {
        "grid": {"lr": (1, 1)}
    },
    "lr must lie in": {"grid": {"lr": (-1.0, 1.0)}},
    "names of methods must differ in letters": {
        "methods": {"a b": fm.fedavg(), "a-b": fm.fedavg()}
    },
    "a ledger and a budget are for private": {"ledger": "ledger.json"},
    "which privacy does not cover": {"privacy": 1, "grid": {"fedavg.lr": GRID}},
    "alpha must lie in": {
        "problem": dataclasses.replace(
            PROBLEM,
            divided=lambda data, key: partition.dirichlet(data.y_train, 6, -1, key=key),
        )
    },
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_comparisons_are_refused_and_leave_nothing(said, tmp_path):
    given = {"methods": METHODS, "problem": PROBLEM, "directory": tmp_path / "run"}
    with pytest.raises((ValueError, TypeError), match=re.escape(said)) as refused:
        compare(**{**given, **EVERY, **WRONG[said]})
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_rates_go_on_by_factors_of_three_and_then_finer():
    lost = -math.inf
    assert wider(0.1, {0.1: lost, 0.3: lost}, 8) == [0.0333]  # all have diverged
    assert wider(0.01, {0.01: 1.0, 0.03: 3.0, 0.1: 2.0}, 8) == []
    assert wider(0.01, {0.01: 1.0, 0.03: 2.0, 0.1: 3.0}, 8) == [0.3]
    assert wider(0.01, {0.01: 1.0, 0.03: 2.0, 0.1: 3.0}, 3) == []
    # a gap in a grid is as it was given
    assert wider(0.001, {0.001: 1.0, 0.1: 3.0, 1.0: 2.0}, 8) == []
    inside = {0.01: 1.0, 0.03: 3.0, 0.09: 2.0}
    assert wider(0.03, inside, 8, finer=True) == [0.0173, 0.052]
