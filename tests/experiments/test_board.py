"""The board: its search, its runs, rows of others, and its page from kept runs."""

import functools
import json
import math
import re
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

import fedjax_muon as fm
from experiments.board import (
    __main__ as command,
    calls,
    lines as kept,
    page,
    protocol,
)
from experiments.board.row import Row, check_row
from experiments.board.rows import ROWS
from experiments.board.standings import holm, p_value, tables
from experiments.board.tracks import TRACKS, guarded
from fedjax_muon.core.recipe import numbers_of
from fedjax_muon.privacy import Poisson, report
from fedjax_muon.privacy.client_privacy import client_spec
from fedjax_muon.runs.search import MOST_RATES, Trial, best, ends, following

pytestmark = pytest.mark.slow
KEPT = Path("results/board")


# ------------------------------------------------------------------- the search


def searched(score, options, trials):
    """All trials of a search, by their scores."""
    scores = {}
    while asked := following(scores, options, trials):
        for point in asked:
            assert point not in scores
            scores[point] = score(point)
    return scores


@pytest.mark.parametrize("options", [1, 2])
def test_the_best_point_lies_between_others(options):
    rng, open_ends = np.random.default_rng(0), 0
    for _ in range(300):
        at = rng.uniform(-10, 10), rng.uniform(-1.5, 1.5)
        noise = iter(rng.normal(scale=0.05, size=100))
        scores = searched(functools.partial(bowl, at, noise), options, 14)
        assert len(scores) == 14
        found = best(scores)
        assert abs(found.rate - at[0]) <= 4
        assert options == 1 or abs(found.other - at[1]) <= 1
        open_ends += bool(ends(scores, options))
    assert open_ends <= 3 * (options - 1)  # far starts use up the trials


def bowl(at, noise, point):
    rate, other = at
    far = ((point.rate - rate) / 4) ** 2 + (point.other - other) ** 2
    return next(noise) - far


def test_the_order_of_the_trials():
    rising = [*searched(lambda p: p.rate if p.rate <= 8 else -99, 1, 9)]
    assert [p.rate for p in rising] == [0, -4, 4, 8, 12, 6, 10, 7, 9]
    # the other option is tried at the best rate, before finer rates
    flat = [*searched(lambda p: -abs(p.rate) - abs(p.other), 2, 7)]
    assert flat[3:] == [Trial(0, -1), Trial(0, 1), Trial(-2), Trial(2)]
    # a factor of 3 is near enough: (3, -1) is not tried after (4, -1)
    close = searched(lambda p: -abs(p.rate - 3) - 5 * abs(p.other), 2, 14)
    assert Trial(4, -1) in close
    assert best(close) == Trial(3)
    assert Trial(3, -1) not in close


def test_at_most_nine_rates_that_are_factors_of_three_apart():
    scores = searched(lambda p: p.rate, 1, 40)
    coarse = [p.rate for p in scores if p.rate % 4 == 0 and p.rate <= 28]
    assert sorted(coarse) == [*range(-4, 32, 4)]
    assert len(coarse) == MOST_RATES
    few = searched(lambda p: p.rate, 1, 5)
    assert ends(few, 1) == ["highest rate"]
    side = searched(lambda p: p.other, 2, 8)
    assert ends(side, 2) == ["lowest rate", "highest rate", "end of the other option"]


def test_the_values_of_points():
    space = {"lr": 0.1, "mu": 0.01}
    assert Trial(4, -1).values(space) == {"lr": 0.3, "mu": 0.00333}
    assert Trial(-2).values({"lr": 0.1}) == {"lr": 0.0577}


def test_diverged_trials_are_worse_than_all_others():
    about = {"row": "a", "stage": "trial", "seed": 100}
    pairs = (0.1, 0.2, False), (0.3, 0.9, True)
    lines = [
        about | {"hyper": {"lr": lr}, "validation": score, "diverged": bad, "seed": s}
        for lr, score, bad in pairs
        for s in (100, 101)
    ]
    scores = protocol.points_of(lines, {"lr": 0.1}, 1)
    assert scores == {Trial(0): 0.2, Trial(4): -math.inf}
    unfinished = protocol.points_of(lines[:3], {"lr": 0.1}, 1)
    assert [*unfinished] == [Trial(0)]


# ------------------------------------------------------------------- the tests


def test_the_paired_test_and_its_correction():
    rng = np.random.default_rng(0)
    one, two = rng.normal(0.4, 1, 10), rng.normal(0, 1, 10)
    expected = stats.ttest_rel(one, two, alternative="greater").pvalue
    assert p_value(one - two) == pytest.approx(expected)
    assert p_value(np.zeros(5)) == 1
    # by hand: 0.01 <= 0.05 / 4, 0.02 > 0.05 / 3, and so no larger one is rejected
    assert holm([0.02, 0.01, 0.03, 0.9]) == [False, True, False, False]
    assert holm([0.016, 0.01, 0.024, 0.9]) == [True, True, True, False]


# ------------------------------------------------------------------------ rows


def test_every_row_has_a_space_and_every_track_its_baseline():
    for name, row in ROWS.items():
        check_row(name, row)
        assert set(row.tracks) <= TRACKS.keys()
    for name, track in TRACKS.items():
        rows = [row for row in ROWS if name in ROWS[row].tracks]
        assert track.baseline in rows
        labels = [ROWS[row].label for row in rows]
        assert len(set(labels)) == len(labels) >= 7


BAD = {
    "the space must": Row("A", fm.fedavg, {"rate": 0.1}),
    "got {'lr': -1.0}": Row("A", fm.fedavg, {"lr": -1.0}),
    "at most one other": Row("A", fm.fedprox, {"lr": 0.1, "mu": 1.0, "b": 1.0}),
    "no argument 'mu'": Row("A", lambda lr: fm.fedavg(lr), {"lr": 0.1, "mu": 1.0}),
    "must be a Row": fm.fedavg,
}


@pytest.mark.parametrize(("message", "row"), BAD.items())
def test_what_is_no_row(message, row):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_row("mine", row)
    with pytest.raises(ValueError, match="letters"):
        check_row("a b", ROWS["fedavg"])


# no prologue and no states; states; a prologue
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedmuon"])
def test_private_rows_have_epsilon_8(name):
    track, row = TRACKS["private"], ROWS[name]
    problem = track.problem(None)
    settings = track.simulation(row, problem).settings
    assert numbers_of(settings.algorithm)["clip_norm"] == 0.3
    plain = row.method(lr=0.1)
    params = problem.task.init(jax.random.key(0))
    room = len(settings.cohort.draw(jax.random.key(0), 100, 20)[0])
    spec = client_spec(
        Poisson(100, 20, room),
        rounds=30,
        noise_multiplier=settings.algorithm.recipe.arguments["noise_multiplier"],
        delta=1e-3,
        prologue=bool(plain.prologue),
        private_states=bool(jax.tree.leaves(plain.init_client(params))),
    )
    assert 7.9 < report(spec).epsilon <= 8
    assert guarded(30, bool(plain.prologue), name == "scaffold").sampling == (
        spec.sampling
    )


def test_a_norm_for_every_field():
    track = TRACKS["private"]
    problem = track.problem(None)
    algorithm = track.simulation(ROWS["fedmuon_apart"], problem).settings.algorithm
    fields = algorithm.recipe.arguments["fields"]
    assert len(fields) == 2
    assert "params" in fields


def test_rates_fall_by_a_cosine():
    seen = []

    def method(lr, mu):
        if not seen:  # later ones are traced
            seen.append([float(lr(t)) for t in (0, 5, 10)])
        return fm.fedprox(lr=lr, mu=mu)

    row = Row("A", method, {"lr": 0.2, "mu": 0.1})
    track = TRACKS["digits"]._replace(fits=None, rounds=10)
    track.simulation(row, track.problem(None))
    np.testing.assert_allclose(seen[0], [0.2, 0.1, 0], atol=1e-6)


def test_rows_with_other_sizes_send_as_many_bytes():
    track = TRACKS["digits"]
    problem = track.problem(None)
    sent = []
    for name in ("diloco", "diloco_30"):
        rounds = track.rounds_of(ROWS[name], problem)
        simulation = track.simulation(ROWS[name], problem)
        sent.append(sum(simulation.meter.bytes_after(rounds, None)))
    assert rounds == 50
    assert sent[0] == sent[1]


def test_stragglers_train_for_the_same_time():
    track = TRACKS["stragglers"]
    problem = track.problem(None)
    for name in ("fedavg_waiting", "fedavg_buffered"):
        simulation = track.simulation(ROWS[name], problem)
        rounds = track.rounds_of(ROWS[name], problem)
        key = protocol.start_key(0)
        key = simulation.program.create(simulation.data, simulation.run, key)[1]
        timing = simulation.meter.timing(key)
        assert timing.seconds(rounds) <= 400 < timing.seconds(rounds + 1)


# --------------------------------------------------------------------- the ring


@pytest.fixture
def small_ring(monkeypatch):
    """The ring on examples of a linear rule, for 20 rounds."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(22_500, 8)).astype(np.float32)
    y = (x.sum(1) + rng.normal(size=len(x)) > 2).astype(np.int32)
    train, test = slice(20_000), slice(20_000, None)
    data = fm.data.Dataset(x[train], y[train], x[test], y[test], ("low", "high"))
    monkeypatch.setattr(fm.data, "load", lambda *args: data)
    monkeypatch.setattr(page.standings, "ROWS", {"dsgd": ROWS["dsgd"]})
    few = TRACKS["ring"]._replace(rounds=20, trials=3, seeds=2)
    monkeypatch.setitem(TRACKS, "ring", few)
    return data


@pytest.mark.parametrize("name", ["dsgd", "dsgda"])
def test_the_ring_scores_the_auc_of_the_mean_agent(small_ring, name):
    track, row = TRACKS["ring"], ROWS[name]
    simulation = track.simulation(row, track.problem(None))
    state, _ = simulation.train_rounds(simulation.init(jax.random.key(0)), 20)
    score = float(simulation.evaluate(state)["test_auc"])
    mean = jax.tree.map(lambda leaf: leaf.mean(0), state.params)
    model = mean.x.model if name == "dsgda" else mean
    logits = fm.models.MLP(2, (32,)).apply({"params": model}, small_ring.x_test)
    expected = roc_auc_score(small_ring.y_test, logits[:, 1] - logits[:, 0])
    assert score == pytest.approx(expected, abs=1e-6)
    assert score > 0.8


def test_a_row_of_the_ring(small_ring, tmp_path):
    command.main("run", "ring", row="dsgd", output=tmp_path)
    (table,) = tables(tmp_path)
    assert [each.label for each in table.rows] == ["D-SGD"]
    head, _, line = page.table_of(table)
    assert head == "| method | options | score | rounds | MB |"
    assert line.startswith("| D-SGD | lr=")


# ------------------------------------------------------------------ whole rows


def test_a_row_again_is_bitwise_identical(short, tmp_path, capsys):
    command.main("run", "digits", row="fedavg", output=tmp_path / "one")
    path = tmp_path / "one" / "digits.jsonl"
    whole = path.read_text()
    assert len(whole.splitlines()) == 1 + 4 * 2 + 2
    # interrupted anywhere, it goes on
    for number in (0, 1, 4, 9):
        path.write_text("".join(whole.splitlines(keepends=True)[:number]))
        command.main("run", "digits", row="fedavg", output=tmp_path / "one")
        assert path.read_text() == whole
    with pytest.raises(SystemExit):
        command.main("run", "digits", row="fedavgg", output=tmp_path)
    assert "did you mean fedavg?" in capsys.readouterr().err


def test_two_processes_keep_each_run_once(short, tmp_path):
    track, row = TRACKS["digits"], ROWS["fedavg"]
    path, problem = tmp_path / "digits.jsonl", track.problem(None)
    slow, quick = (kept.finish(path, "fedavg", row, track, problem) for _ in range(2))
    next(slow)
    assert len([*quick]) == 4 * 2 + 2 - 1
    whole = path.read_text()
    assert len([*slow]) == 4 * 2 + 2 - 1
    assert path.read_text() == whole


def test_a_row_by_other_rules_is_not_continued(short, tmp_path, monkeypatch):
    command.main("run", "digits", row="fedavg", output=tmp_path)
    monkeypatch.setattr(kept, "rules", lambda: "others")
    with pytest.raises(SystemExit):
        command.main("run", "digits", row="fedavg", output=tmp_path)


def test_an_attacked_run_has_its_worst_score(short):
    track, name = TRACKS["attackers"], "fedavg_mean"
    problem = track.problem(None)
    runs = protocol.Runs(name, ROWS[name], track, problem)
    values = track.space(ROWS[name])
    whole = runs.final(values, 0)
    alone = []
    for variant in track.variants:
        one = track._replace(variants=(variant,))
        alone.append(protocol.Runs(name, ROWS[name], one, problem).final(values, 0))
    scores = [line["score"] for line in alone]
    assert whole["score"] == min(scores)
    assert whole["variant"] == track.variants[scores.index(min(scores))]
    assert len(set(scores)) > 1


# ------------------------------------------------------------------- the page


@pytest.mark.parametrize("name", ["fedmuon", "scaffold"])
def test_the_page_follows_from_the_kept_runs(name):
    lines = [*map(json.loads, (KEPT / "digits.jsonl").read_text().splitlines())]
    final = [line for line in lines if line["stage"] == "final"]
    own = [line for line in final if line["row"] == name]
    base = [line["score"] for line in final if line["row"] == "fedavg"]
    scores, first = [100 * line["score"] for line in own], []
    for line in own:  # megabytes up to 95% of FedAvg's score
        pairs = zip(line["scores"], line["bytes"], strict=True)
        first.append(next(b for s, b in pairs if s >= 0.95 * np.mean(base)) / 1e6)
    half = stats.t.ppf(0.975, 9) * np.std(scores, ddof=1) / np.sqrt(10)
    text = page.PAGE.read_text().partition(f"## {TRACKS['digits'].title}")[2]
    (line,) = [t for t in text.splitlines() if t.startswith(f"| {ROWS[name].label} |")][
        :1
    ]
    _, _, options, score, _, megabytes, *_ = (c.strip(" *") for c in line.split("|"))
    assert options == f"lr={own[0]['hyper']['lr']:g}"
    apart = np.subtract(scores, np.multiply(100, base))
    wide = stats.t.ppf(0.975, 9) * np.std(apart, ddof=1) / np.sqrt(10)
    assert score.replace("*", "") == (
        f"{np.mean(scores):.1f} ± {half:.1f} ({np.mean(apart):+.1f} ± {wide:.1f})"
    )
    assert megabytes == f"{np.mean(first):.3g}"


def test_the_page_has_the_tables_of_the_kept_runs():
    found, text = tables(KEPT), page.PAGE.read_text()
    resized = [x for x in found if any(each.resized for each in x.rows)]
    assert [x.name for x in resized] == ["digits", "tokens"]
    others = [page.table_of(x, resized=True) for x in resized]
    for lines in (page.summary(found), *map(page.table_of, found), *others):
        assert "\n".join(lines) in text


@pytest.mark.parametrize("name", sorted(TRACKS.keys() - {*page.NOT_COUNTED}))
def test_the_call_of_the_best_row_trains(name):
    """It is on the page, makes the method that has run, and trains for a round."""
    (table,) = [each for each in tables(KEPT) if each.name == name]
    assert "\n".join(calls.lines(name, table.best)) in page.PAGE.read_text()
    typed = eval(calls.call(name, table.best), {"fm": fm, "optax": optax})
    row = ROWS[table.best.row]
    first = kept.finals(kept.lines_of(KEPT / f"{name}.jsonl", table.best.row))[0]
    other = {k: v for k, v in (row.space | first["hyper"]).items() if k == row.option}
    falling = optax.cosine_decay_schedule(first["hyper"]["lr"], table.best.planned)
    ran = row.method(lr=falling, **other)
    assert typed.recipe.call() == ran.recipe.call()
    graph = {"graph": "ring"} if name == "ring" else {}
    sizes = {"cohort": 5} if name != "ring" else {}
    problem = fm.problems.classification("digits", clients=6, **graph)
    simulation = fm.simulate(typed, problem, **sizes)
    state, _ = simulation.train_round(simulation.init(jax.random.key(0)))
    assert float(simulation.evaluate(state)["test_accuracy"]) > 0


@pytest.mark.parametrize("track", ["digits", "fashion", "heart", "plays"])
def test_options_are_what_one_types(track):
    """`fm.NAME(options)` is the method that has run."""
    for line in kept.read(KEPT / f"{track}.jsonl"):
        if line["stage"] != "final" or line["seed"]:
            continue
        row = ROWS[line["row"]]
        name = line["row"].removesuffix("_30")
        name = "fedmuon_align" if row.fixed else name
        words = [word.split("=") for word in row.words(line["hyper"]).split(", ")]
        given = {option: float(text) for option, text in words}
        typed = numbers_of(getattr(fm, name)(**given))
        other = {k: v for k, v in line["hyper"].items() if k != "lr"}
        ran = numbers_of(row.method(lr=line["hyper"]["lr"], **other))
        assert typed == ran
        assert line["hyper"]["lr"] in given.values()


def test_twins_and_other_sizes_are_marked():
    (digits,) = [table for table in tables(KEPT) if table.name == "digits"]
    twins = {(x.label, *x.twins) for x in digits.rows if x.twins}
    assert twins == {
        ("FedAvg-M", "FedCM"),
        ("FedMuon(alignment), weight 0", "Local Muon(averaged momentum)"),
    }
    marked = {x.row for x in digits.rows if x.resized}
    assert marked == {row for row in ROWS if row.endswith("_30")}
    text = page.PAGE.read_text()
    assert "| FedMuon, 30 steps of all clients † |" in text
    assert "| FedAvg-M (= FedCM) |" in text


def test_no_headline_counts_the_hospitals():
    (heart,) = [table for table in tables(KEPT) if table.name == "heart"]
    numbers = {heart.spread(each.apart, signed=True) for each in heart.rows}
    for name in ("README.md", "docs/index.md", "docs/choose.md"):
        text = Path(name).read_text()
        assert not [x for x in numbers if x in text or x.lstrip("+") in text]
    assert "Heart" not in (KEPT / "summary.svg").read_text()


def test_the_summary_says_what_its_rows_show():
    found = {table.name: table for table in tables(KEPT)}
    wins = [
        t.like("FedMuon").wins for n, t in found.items() if n not in ("heart", "ring")
    ]
    words = f"FedMuon is ahead of FedAvg on {sum(wins)} of {len(wins)} tracks"
    assert page.headline([*found.values()]) == words
    assert words in (KEPT / "summary.svg").read_text()
    assert f"![{words}" in page.PAGE.read_text()
    assert f"{found['private'].like('FedMuon').apart.mean():.1%}"[:-1] == "-30.7"
    assert "◂ -30.7" in (KEPT / "summary.svg").read_text()
    labels = {name: [x.label for x in page.shown(t)] for name, t in found.items()}
    assert labels["private"] == ["FedMuon", "DP-FedMuon", "FedAvg(momentum)"]
    assert labels["ring"] == ["DeMuon", "SUDA-Muon(ED)", "Gradient tracking"]
    # rows with other sizes are no competitors
    assert labels["tokens"] == ["FedMuon", "MuLoCo", "DiLoCo"]


def test_under_attack_methods_compare_with_the_same_aggregation():
    (attacked,) = [table for table in tables(KEPT) if table.name == "attackers"]
    assert attacked.like("FedAvg") is attacked.baseline
    assert attacked.like("FedMuon").label == "FedMuon, trimmed mean"
    assert attacked.like("FedMuon, multi-Krum").label == "FedMuon, multi-Krum"
    assert attacked.like("FedDyn") is None


def test_kept_rows_follow_the_rules():
    digest = kept.rules()
    for name, track in TRACKS.items():
        path = KEPT / f"{name}.jsonl"
        for row in {line["row"] for line in kept.read(path)} if path.exists() else ():
            lines = kept.lines_of(path, row)
            assert lines[0]["rules"] == digest
            score = page.standings.SCORES[page.standings.SCORE_OF.get(name, 2)]
            known = ROWS.get(row)
            if known and len(kept.finals(lines)) == track.seeds:
                assert protocol.asked(lines, known, track, score.sign) == []
