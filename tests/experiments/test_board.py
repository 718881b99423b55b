"""The board: its rules, and its page from kept runs."""

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

import fedjax_muon as fm
from experiments.board import __main__ as command, entries, page, protocol
from experiments.board.tracks import TRACKS
from fedjax_muon.core.recipe import numbers_of
from fedjax_muon.privacy import Poisson, report
from fedjax_muon.privacy.client_privacy import client_spec

pytestmark = pytest.mark.slow
KEPT = Path("results/board")


def test_every_method_has_six_trials():
    for track in TRACKS.values():
        names = [*entries.entries_of(track)]
        assert len(names) >= 10
        assert track.baseline in names
        for name in names:
            trials = entries.entry_of(name, track).trials(track)
            assert len({trial.words for trial in trials}) == 6
    odd = entries.Entry("fedavg", "sgd", axis={"server_lr": (1.0, 0.5, 0.3, 0.1)})
    with pytest.raises(ValueError, match="has 4 points"):
        odd.trials(TRACKS["digits"])


@pytest.mark.parametrize("method", ["fedavg", "fedmuon"])
def test_the_page_follows_from_the_kept_runs(method):
    lines = (KEPT / "digits.jsonl").read_text().splitlines()
    final = [row for row in map(json.loads, lines) if row["stage"] == "final"]
    own = [row for row in final if row["method"] == method]
    base = [row["score"] for row in final if row["method"] == "fedavg"]
    scores, first = [100 * row["score"] for row in own], []
    for row in own:  # megabytes up to 95% of FedAvg's score
        pairs = zip(row["scores"], row["bytes"], strict=True)
        first.append(next(b for s, b in pairs if s >= 0.95 * np.mean(base)) / 1e6)
    half = stats.t.ppf(0.975, 4) * np.std(scores, ddof=1) / np.sqrt(5)
    text = page.PAGE.read_text().partition(TRACKS["digits"].title)[2]
    label = entries.ENTRIES[method].label
    (line,) = [t for t in text.splitlines() if t.startswith(f"| {label} | lr")][:1]
    _, _, trial, score, _, megabytes, *_ = (c.strip(" *") for c in line.split("|"))
    rates = {"fedavg": (0.03, 0.3), "fedmuon": (0.01, 0.1)}[method]
    assert ("(edge)" in trial) == (own[0]["hyper"]["lr"] in rates)
    assert score == f"{np.mean(scores):.1f} ± {half:.1f}"
    assert megabytes == f"{np.mean(first):.3g}"


@pytest.mark.parametrize(("weight", "column"), [("0.25", 2), ("0.5", 3)])
def test_alignment_is_compared_by_seed(weight, column):
    rows = map(json.loads, (KEPT / "fashion.jsonl").read_text().splitlines())
    scores = {
        (row["method"], row["seed"]): 100 * row["score"]
        for row in rows
        if row["stage"] == "final"
    }
    name = f"fedmuon_align_{weight}"
    apart = [scores[name, s] - scores["fedmuon_align_0", s] for s in range(5)]
    half = stats.t.ppf(0.975, 4) * np.std(apart, ddof=1) / np.sqrt(5)
    text = page.PAGE.read_text().partition("## Does alignment help")[2]
    (line,) = [t for t in text.splitlines() if TRACKS["fashion"].title in t]
    # significant, and so bold
    assert line.split(" | ")[column].strip(" |") == (
        f"**{np.mean(apart):+.1f} ± {half:.1f}**"
    )


# no prologue and no states; states; a prologue
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedmuon"])
def test_private_methods_have_epsilon_8(method):
    track = TRACKS["private"]
    entry, problem = entries.entry_of(method, track), track.problem(None)
    trial = entry.trials(track)[0]
    setup = protocol.simulation_of(entry, trial, track, problem, 0).settings
    assert "clip_norm" in numbers_of(setup.algorithm)
    plain = entry.algorithm(trial, track.rounds)
    params = problem.task.init(jax.random.key(0))
    room = len(setup.cohort.draw(jax.random.key(0), 100, 20)[0])
    spec = client_spec(
        Poisson(100, 20, room),
        rounds=30,
        noise_multiplier=setup.algorithm.recipe.arguments["noise_multiplier"],
        delta=1e-3,
        prologue=bool(plain.prologue),
        private_states=bool(jax.tree.leaves(plain.init_client(params))),
    )
    assert 7.9 < report(spec).epsilon <= 8


@pytest.fixture
def small_ring(monkeypatch):
    """The ring on examples of a linear rule, for 20 rounds."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(22_500, 8)).astype(np.float32)
    y = (x.sum(1) + rng.normal(size=len(x)) > 2).astype(np.int32)
    train, test = slice(20_000), slice(20_000, None)
    data = fm.data.Dataset(x[train], y[train], x[test], y[test], ("low", "high"))
    monkeypatch.setattr(fm.data, "load", lambda name, data_dir: data)
    monkeypatch.setitem(TRACKS, "ring", TRACKS["ring"]._replace(rounds=20))
    monkeypatch.setattr(protocol, "TUNING_SEEDS", (100,))
    monkeypatch.setattr(protocol, "SEEDS", (0, 1))
    return data


@pytest.mark.parametrize("method", ["dsgd", "dsgda"])
def test_the_ring_scores_the_auc_of_the_mean_agent(small_ring, method):
    track = TRACKS["ring"]
    entry, problem = entries.entry_of(method, track), track.problem(None)
    trial = entry.trials(track)[0]
    simulation = protocol.simulation_of(entry, trial, track, problem, 0)
    state, _ = simulation.train_rounds(simulation.init(jax.random.key(0)), 20)
    score = float(simulation.evaluate(state)["test_auc"])
    mean = jax.tree.map(lambda leaf: leaf.mean(0), state.params)
    model = mean.x.model if method == "dsgda" else mean
    logits = fm.models.MLP(2, (32,)).apply({"params": model}, small_ring.x_test[2000:])
    expected = roc_auc_score(small_ring.y_test[2000:], logits[:, 1] - logits[:, 0])
    assert score == pytest.approx(expected, abs=1e-6)
    assert score > 0.8


def test_a_row_of_the_ring(small_ring, tmp_path):
    command.main("ring", method="dsgd", output=tmp_path)
    rows = [*map(json.loads, (tmp_path / "ring.jsonl").read_text().splitlines())]
    assert len(rows) == 6 + 2
    assert not any(row["diverged"] for row in rows)
    assert len({row["validation"] for row in rows}) == len(rows)
    (one,) = page.standings("ring", rows)
    head, _, line = page.table([one])
    assert head == "| method | trial | score, % | rounds | MB |"
    assert line.startswith("| D-SGD | lr ")


def test_a_row_again_is_bitwise_identical(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(TRACKS, "digits", TRACKS["digits"]._replace(rounds=5))
    monkeypatch.setattr(protocol, "SEEDS", (0, 1))
    for name in ("one", "two"):
        command.main("digits", method="fedavg", output=tmp_path / name)
    command.main("digits", method="fedavg", output=tmp_path / "two")  # is there already
    one, two = ((tmp_path / n / "digits.jsonl").read_text() for n in ("one", "two"))
    assert one == two
    assert len(one.splitlines()) == 6 * 2 + 2
    with pytest.raises(SystemExit):
        command.main("digits", method="stem", output=tmp_path)
    assert (
        "no declared space on the board; add it to ENTRIES" in capsys.readouterr().err
    )


def test_front_pages_have_numbers_of_the_board():
    found = page.differences(page.ranked(KEPT))
    assert len(found) == 7
    for name in ("README.md", "docs/index.md"):
        shown = re.findall(r"[+-]\d+\.\d ± \d+\.\d", Path(name).read_text())
        signed = [page.signed(apart).strip("*") for _, apart in found.values()]
        assert sorted(shown) == sorted(signed)
