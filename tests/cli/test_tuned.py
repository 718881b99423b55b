"""Learning rates of `fedjax-muon compare`, and the README's table."""

import csv
import json
import re
from pathlib import Path

import pytest
from command import run

from experiments.studies.learning_rates import EXPONENTS, SCHEDULES, rate
from fedjax_muon.runs import config
from fedjax_muon.runs.tuned import TUNED


@pytest.mark.parametrize("problem", TUNED)
def test_tuned_learning_rates_are_the_best_of_their_grid(problem):
    """As experiments.studies.learning_rates printed it."""
    place = Path(__file__).parents[2] / "results"
    text = (place / f"learning_rates_{problem}.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    score = f"validation_{config.DEFAULTS[problem].score.lower()}"
    assert {row["algorithm"] for row in rows} == set(TUNED[problem])
    least = {(rate(e), schedule) for e in EXPONENTS for schedule in SCHEDULES}
    for name, tuned in TUNED[problem].items():
        own = [row for row in rows if row["algorithm"] == name]
        mine = {(row["lr"], row["lr_schedule"]): row for row in own}
        assert least <= mine.keys()  # the same budget for every method
        chosen = mine[tuned]
        assert chosen["best"]
        ended = [row for row in mine.values() if not row["diverged"]]
        assert chosen[score] == max(row[score] for row in ended)
        rates = [lr for lr, _ in mine]
        assert min(rates) < tuned.lr < max(rates)


@pytest.mark.slow
def test_the_readme_has_the_accuracies_of_two_methods(tmp_path):
    """Other processors round differently: half a point is five of 1,080 examples."""
    table = (Path(__file__).parents[2] / "README.md").read_text()
    run("compare", "fedavg", "scaffold", "--output", tmp_path / "run")
    with (tmp_path / "run" / "summary.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            printed = re.search(rf"│ {row['method']} +│ ([0-9.]+) ±", table)
            assert printed, row["method"]
            found = 100 * float(row["score_mean"])
            assert found == pytest.approx(float(printed[1]), abs=0.5)


@pytest.mark.slow
def test_a_schedule_for_all_replaces_the_tuned_ones(planned):
    names = ("fedavg", "scaffold")
    words = ("compare", *names, "fedcm")
    tuned = planned(*words)
    schedule = lambda what, name: what.cell(name, 0).config.lr_schedule
    for name in names:
        assert schedule(tuned, name) == TUNED["classification"][name].lr_schedule
    assert schedule(tuned, "fedcm") is None
    for given in SCHEDULES:
        what = planned(*words, "--lr-schedule", given)
        assert {schedule(what, name) for name in (*names, "fedcm")} == {given}
        assert what.lr == tuned.lr
