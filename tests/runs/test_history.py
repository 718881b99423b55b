"""What remains of a run: the CSV, what several of them say together, the figures."""

import csv
import functools
import os
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from fedjax_muon.runs import (
    fairness,
    intervals,
    metrics_csv,
    plots,
    plotting,
    style,
    summary,
    tables,
)
from tests.support.error_lines import one_line

ROW = {"round": 0, "bytes_down": 2**40, "bytes_up": 7, "dropped": 0, "loss": 0.1}


def rows(*rounds):
    """Rows that differ, with numbers that only full precision brings back."""
    return [ROW | {"round": r, "loss": np.sqrt(2) / (r + 1)} for r in rounds]


def written(path, *rounds):
    for row in rows(*rounds):
        metrics_csv.append(path, row)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.csv"


def test_what_is_written_is_read_back_to_the_bit(path):
    columns = metrics_csv.read(written(path, 0, 10, 20))
    assert list(columns) == list(ROW)
    for name, column in columns.items():
        expected = [row[name] for row in rows(0, 10, 20)]
        assert column.dtype == (np.float64 if name == "loss" else np.int64)
        assert column.tolist() == expected


def test_a_row_is_on_disk_when_append_returns(path, monkeypatch):
    synced = []
    sync = lambda number: synced.append(os.fstat(number).st_size)
    monkeypatch.setattr(os, "fsync", sync)
    for row in rows(0, 1, 2):
        metrics_csv.append(path, row)
        assert synced[-1] == path.stat().st_size  # all of it was flushed before
    assert len(synced) == 3


def test_no_rows_are_empty_columns(path):
    path.write_text("round,loss,dropped\r\n")
    columns = metrics_csv.read(path)
    sizes = {name: column.size for name, column in columns.items()}
    assert sizes == {"round": 0, "loss": 0, "dropped": 0}
    assert columns["round"].dtype == np.int64


def test_a_last_line_that_was_cut_off_is_left_out(path):
    whole = written(path, 0, 10, 20).read_bytes()
    last = whole.rindex(b"20,")
    assert len(whole) - last > 30
    contents = [whole[:-end] for end in range(1, 31)]
    for content in [*contents, whole[:last] + b"20,5\n"]:  # too few values
        path.write_bytes(content)
        assert metrics_csv.read(path)["round"].tolist() == [0, 10], content


def test_other_files_and_damage_in_the_middle_are_refused(path):
    lines = written(path, 0, 10, 20).read_text().splitlines(keepends=True)
    damaged = lambda line: "".join([*lines[:2], line, lines[3]])
    other = "no column 'round'; it is not a metrics"
    for content, message in (
        *(("", other), ("loss,accuracy\n1,2\n", other), ("hello\n", other)),
        (damaged("10,5\n"), r"line 3 of .* has 2 values for 5 columns"),
        (damaged("10,5,x,0,1\n"), "'x'"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            metrics_csv.read(path)


def test_a_file_that_is_not_text_is_refused_in_one_line(path):
    path.write_bytes(written(path, 0, 10).read_bytes() + b"20,\xff,0,1,0.5\n")
    with one_line("expected columns of numbers in UTF-8", path):
        metrics_csv.read(path)


def test_a_file_with_a_field_that_is_too_long_is_refused_in_one_line(path):
    whole = written(path, 0, 10).read_bytes()
    path.write_bytes(whole.replace(b"10,", b"1" * 200_000 + b","))
    for read in (metrics_csv.read, metrics_csv.rows_of):
        with one_line("expected columns of numbers in UTF-8", path):
            read(path)


FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", " =1", "\n=1", "＝1+1"]


@pytest.mark.parametrize("cell", FORMULAS)
def test_no_cell_is_a_formula(cell, path):
    """Of names of clients, methods and metrics, which others may choose."""
    metrics_csv.append(path, {"reason": cell, cell: "no answer"})
    with path.open(newline="") as file:
        rows = [*csv.reader(file)]
    assert rows == [["reason", f"'{cell}"], [f"'{cell}", "no answer"]]


def test_numbers_as_text_stay_numbers():
    row = {"a": "-1", "b": -1, "c": "+1e-5", "d": "-", "e": "-inf", "f": "lr=0.1"}
    text = metrics_csv.text_of([row], header=False)
    assert text == "-1,-1,+1e-5,-,-inf,lr=0.1\r\n"


def run(accuracy, down, up, seconds, every=5):
    columns = {"bytes_down": down, "bytes_up": up, "test_accuracy": accuracy}
    columns = {k: np.array(v) for k, v in (columns | {"seconds": seconds}).items()}
    rounds, losses = every * np.arange(len(accuracy)), 2 - np.array(accuracy)
    return {"round": rounds, "train_loss": losses, **columns}


# Two seeds of one method: means 0.1, 0.5, 0.75, 0.7. One seed of another, with a
# prologue of 100 + 200 bytes.
FAST = [
    run([0.1, 0.4, 0.7, 0.8], [0, 1e6, 2e6, 3e6], [0, 5e5, 1e6, 15e5], [0, 1, 2, 4]),
    run([0.1, 0.6, 0.8, 0.6], [0, 1e6, 2e6, 3e6], [0, 5e5, 1e6, 15e5], [0, 2, 4, 8]),
]
SLOW = [run([0.2, 0.3, 0.6], [100, 1100, 2100], [200, 2200, 4200], [0, 3, 5])]
METHODS = {"fast": FAST, "slow": SLOW}


def test_the_target_is_a_share_of_the_best_mean():
    assert summary.target_score(METHODS) == pytest.approx(0.9 * 0.75)
    assert summary.target_score({"slow": SLOW}) == pytest.approx(0.9 * 0.6)
    # of an AUC it counts from guessing
    ranked = [run | {"test_auc": run["test_accuracy"]} for run in FAST]
    assert summary.target_score({"fast": ranked}) == pytest.approx(0.5 + 0.9 * 0.25)


def test_curves_and_summaries_by_hand():
    curve = summary.mean_curve(FAST, "test_accuracy")
    np.testing.assert_allclose(curve, [0.1, 0.5, 0.75, 0.7])
    fast, slow = summary.summarize(METHODS, target=0.5)
    near = lambda *values: [pytest.approx(value, nan_ok=True) for value in values]
    # the score's mean and deviation, which is the root of (0.1^2 + 0.1^2) / (2 - 1);
    # rounds and megabytes to the target; bytes of a round, without prologue; seconds
    expected = near(0.7, np.sqrt(0.02), 5, 1.5, 4.5e6 / 15, 6)
    assert fast == summary.Summary("fast", *expected)
    expected = near(0.6, np.nan, 10, 6300 / 1e6, 6000 / 10, 5)
    assert slow == summary.Summary("slow", *expected)


def test_a_target_is_not_reached_or_reached_at_the_start():
    fast, slow = summary.summarize(METHODS, target=0.7)
    assert fast.rounds_to_target == 10
    assert np.isnan([slow.rounds_to_target, slow.megabytes_to_target]).all()
    (fast,) = summary.summarize({"fast": FAST}, target=0.1)
    assert (fast.rounds_to_target, fast.megabytes_to_target) == (0, 0)


def test_summaries_as_a_file(tmp_path):
    summaries = summary.summarize(METHODS, target=0.7)
    rates = {"fast": "0.1", "slow": "0.3 cosine", "lost": "9"}
    path = tmp_path / "summary.csv"
    lost = {"lost": "diverged (round 5)"}
    summary.write(summaries, path, diverged=lost, columns={"lr": rates})
    header, *lines, last = path.read_text().splitlines()
    method, *fields = summary.Summary._fields
    assert header.split(",") == [method, "status", "lr", *fields]
    assert last == "lost,diverged (round 5),9" + "," * len(fields)
    for line, (name, *numbers) in zip(lines, summaries, strict=True):
        first, status, lr, *rest = line.split(",")
        assert (first, status, lr) == (name, "finished", rates[name])
        np.testing.assert_array_equal([float(value) for value in rest], numbers)


def test_a_loss_that_ends_above_its_start_is_said():
    losses = lambda *values: {"train_loss": np.array(values)}
    assert summary.risen_loss(losses(2.0, 9.0, 1.9)) == ""
    words = "the training loss rose from 2 to 9; try a lower learning rate"
    assert summary.risen_loss(losses(2.0, 1.0, 9.0)) == words
    private = summary.risen_loss({"test_loss": np.array([1, 2])})
    assert private.startswith("the test loss rose from 1 to 2; the noise may be too la")
    few = {"round": np.array([0, 10]), "answered": np.array([0, 3])}
    words = "only 0.3 clients answered per round; sample more clients"
    assert summary.risen_loss(losses(1.0, 2.0) | few).startswith(words)


def test_runs_of_different_lengths_have_no_mean():
    summary.check_rounds(METHODS)
    shorter = {name: column[:2] for name, column in FAST[0].items()}
    with pytest.raises(ValueError, match="runs of fast were evaluated at different"):
        summary.check_rounds({"slow": SLOW, "fast": [FAST[0], shorter]})
    begun = {name: column[:0] for name, column in FAST[0].items()}
    with one_line("fast has no rounds yet"):
        summary.check_rounds({"slow": SLOW, "fast": [begun]})


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved."""
    saved: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **how: saved.append(self))
    return saved


def ends_of(axis):
    """The bars beside an axis."""
    beside = [line for line in axis.lines if not line.get_clip_on()]
    return [line.get_ydata() for line in beside if list(line.get_xdata()) == [1, 1]]


def test_bars_at_the_ends_of_curves_are_intervals(figures, tmp_path):
    apart = [
        {**run, "train_loss": run["train_loss"] * x}
        for run, x in zip([*FAST, FAST[0]], (1, 9, 1), strict=True)
    ]
    plots.curves({"fast": apart, "slow": SLOW}, tmp_path / "curves.png")
    accuracy, traffic, loss = figures[0].axes
    each = np.array([run["test_accuracy"][-1] for run in apart])
    half = stats.t.ppf(0.975, 2) * stats.sem(each)
    low, high = np.maximum(each.mean() - half, 0), np.minimum(each.mean() + half, 1)
    for axis in (accuracy, traffic):
        (ends,) = [each for each in ends_of(axis) if np.isfinite(each).all()]
        inside = np.clip([low, high], *axis.get_ylim())
        np.testing.assert_allclose(ends, inside)
    # no loss is below those of the seeds
    (ends,) = [each for each in ends_of(loss) if np.isfinite(each).all()]
    assert ends[0] >= min(run["train_loss"][-1] for run in apart)
    drawn = traffic.lines[0].get_xdata()  # nothing was sent before round 0
    np.testing.assert_allclose(drawn, [np.nan, 1.5, 3, 4.5])
    assert not any(axis.collections for axis in figures[0].axes)  # no bands


def test_names_are_beside_each_panel_in_its_own_order(figures, tmp_path):
    plots.curves({"slow": SLOW, "fast": FAST}, tmp_path / "curves.png", target=0.5)
    accuracy, traffic, loss = figures[0].axes
    for axis, order in ((accuracy, 1), (traffic, 1), (loss, -1)):
        names = [text for text in axis.texts if text.get_text() in ("slow", "fast")]
        assert [text.get_text() for text in names] == ["fast", "slow"][::order]
        heights = [text.xyann[1] for text in names]
        assert heights[0] > heights[1] + 0.05
    assert accuracy.get_ylabel() == "test accuracy, %"
    assert accuracy.yaxis.get_major_formatter()(0.963) == "96.3"
    assert "target 50.00" in [text.get_text() for text in accuracy.texts]
    assert figures[0].legends == []


def test_looks_are_texts_and_colors_of_the_user(figures, tmp_path):
    looks = {"slow": "Baseline", "fast": ("Ours", "black")}
    plots.curves({"slow": SLOW, "fast": FAST}, tmp_path / "curves.png", looks=looks)
    slow, fast = figures[0].axes[0].lines[:2]
    assert (slow.get_label(), slow.get_color()) == ("Baseline", style.OWN)
    assert (fast.get_label(), fast.get_color()) == ("Ours", "#000000")
    assert {"Baseline", "Ours"} <= {t.get_text() for t in figures[0].axes[0].texts}
    for wrong, words in (
        ({"fats": "Ours"}, "looks names 'fats', which is not one of slow, fast"),
        ({"fast": ("Ours", "blak")}, "looks['fast'] must be a label, or a label and"),
        ({"fast": ("Ours", "red", 1)}, "looks['fast'] must be a label, or a label and"),
        ({"fast": "slow"}, "labels must differ, got slow, slow"),
    ):
        with one_line(re.escape(words)):
            style.looks_of(["slow", "fast"], wrong)


def test_your_own_methods_are_in_front_of_those_of_the_library():
    drawn = style.styles(["FedAvg", "mine", "FedMuon", "mine, lr=0.1"])
    own = drawn.pop("mine"), drawn.pop("mine, lr=0.1")
    assert {how["color"] for how in own} == {style.OWN}
    assert own[0]["ls"] != own[1]["ls"]
    assert all(how["zorder"] > 2 for how in own)  # 2 is that of all lines
    known = {line.color for line in style.known().values()}
    assert style.OWN not in known
    assert not any("zorder" in how for how in drawn.values())


@pytest.mark.parametrize(
    ("values", "scale", "labels"),
    [
        ((12.0, 14.0), "linear", None),
        ((3.0, 31.0), "log", ["1", "2", "5", "10", "20", "50"]),
        ((1.0, 8.0), "log", ["1", "2", "3", "4", "6", "8"]),
        ((0.1, 90.0), "log", ["0.1", "1", "10", "100"]),
        ((1e-5, 1.0), "log", ["10⁻⁵", "10⁻⁴", "10⁻³", "10⁻²", "10⁻¹", "10⁰"]),
        ((1e-12, 1.0), "log", ["10⁻¹²", "10⁻¹⁰", "10⁻⁸", "10⁻²", "10⁰"]),
    ],
)
def test_ticks_of_logarithmic_axes_have_one_style(values, scale, labels):
    axis = Figure().subplots()
    style.logarithmic(axis, values)
    assert axis.get_xscale() == scale
    shown = [text.get_text() for text in axis.get_xticklabels()]
    assert labels is None or set(labels) <= set(shown)
    if labels and labels[0].startswith("10⁻"):
        assert all(text.startswith("10") for text in shown)


def test_options_of_runs_are_brief_in_labels():
    of = functools.partial(plotting.in_short, "lr")
    assert of("0.1") == "lr=0.1"
    assert of("1e-05") == "lr=1e-05"
    assert of("__main__.mine") == of("<function mine at 0x7f3c>") == "lr=mine"
    assert of("a.b.<locals>.<lambda>") == "lr=function"
    assert of("optax.cosine_decay[0.1, 20]") == "lr=cosine_decay[0.1, 20]"
    long = "fedjax_muon.models.small.MLP(classes=10, features=(64, 64))"
    assert plotting.in_short("model", long) == "model=MLP"
    run = {"method.algorithm": "fedjax_muon.algorithms.fedmuon.fedmuon"}
    texts = [long, long.replace("64, 64", "8, 8"), long]
    labels = plotting.distinct_labels([run | {"problem.model": x} for x in texts])
    assert labels == [f"FedMuon, model=MLP ({n})" for n in (1, 2, 1)]


def test_accuracies_of_clients_have_intervals_inside_the_frame(figures, tmp_path):
    seeds = [0.5, 0.6, 0.7]
    runs = [
        {f"{fairness.PREFIX}{name}": np.array([x]) for name in fairness.COLUMNS}
        for x in seeds
    ]
    fairness.figure({"slow": runs, "fast": runs[:1]}, tmp_path / "fairness.png")
    (axis,) = figures[0].axes
    assert axis.get_ylim() == (1.5, -0.5)  # half a row around the first and the last
    assert len(axis.containers) == 6
    half = 100 * stats.t.ppf(0.975, 2) * stats.sem(seeds)
    _, _, (segments,) = axis.containers[0].lines
    np.testing.assert_allclose(segments.get_segments()[0][:, 0], [60 - half, 60 + half])


def test_one_seed_has_no_deviation():
    assert tables.percent(0.95, np.nan) == "95.00"
    assert tables.percent(0.95, 0.01) == "95.00 ± 1.00"
    summaries = summary.summarize({"slow": SLOW}, 0.5)
    words = {"rates": {"slow": "0.1"}, "diverged": {}}
    table = tables.compared(summaries, 0.5, "title", 1, **words)
    assert table.rows[0][2] == "60.00"
    assert table.caption.startswith("accuracy on the test set: 1 seed; target")


def test_two_seeds_are_thin_lines():
    axis, two = Figure().subplots(), [[1.0, 2.0], [3.0, 5.0]]
    mean = intervals.curve(axis, [0, 1], two, color="k")
    np.testing.assert_allclose(mean, [2.0, 3.5])
    (seeds,) = axis.collections
    for segment, seed in zip(seeds.get_segments(), two, strict=True):
        np.testing.assert_allclose(segment, [[0, seed[0]], [1, seed[1]]])
    assert "thin lines: the seeds" in intervals.note(2)


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_widths_are_students(seeds):
    values = np.random.default_rng(0).normal(size=(seeds, 4))
    about = values.mean(0), stats.sem(values, axis=0)
    low, high = stats.t.interval(0.95, seeds - 1, *about)
    half = intervals.half_width(values)
    np.testing.assert_allclose(2 * half, high - low)
    np.testing.assert_allclose(half, intervals.factor(seeds) * values.std(0, ddof=1))


def test_one_seed_has_no_interval_and_bars_end_at_possible_values():
    assert np.isnan(intervals.factor(1))
    assert np.isnan(intervals.half_width([[1.0, 2.0]])).all()
    assert intervals.note(1) == ""
    found = intervals.bars([0.9, 0.1, 0.5], [0.3, 0.2, np.nan], 0.0, 1.0)
    np.testing.assert_allclose(found, [[0.3, 0.1, 0], [0.1, 0.2, 0]])
