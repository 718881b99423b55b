"""Grids of hyperparameters, tables, and the style of figures."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from scipy import stats

from fedjax_muon.runs import plots, style, summary, tables
from fedjax_muon.runs.summary import Point, Summary
from fedjax_muon.runs.tables import Cells, latex
from tests.support.grids import BY_HAND, assert_reported, by_hand, table, values


def point(lr, *runs, diverged=0):
    return Point({"lr": lr}, runs, diverged)


def run(validation, loss=1.0, test=0.5, start=0.9):
    """A run whose validation accuracy falls or rises to `validation`."""
    columns = {"round": [0, 2], "validation_accuracy": [start, validation]}
    columns |= {"validation_loss": [9.0 * start, loss], "test_accuracy": [0.1, test]}
    return {name: np.array(column) for name, column in columns.items()}


def test_the_best_point_is_the_best_on_validation_after_the_last_round():
    draw = np.random.default_rng(0).uniform
    made = lambda row: [run(v, test=draw(), start=draw()) for v in row]
    for _ in range(30):
        means = draw(size=(4, 3))
        points = [point(lr, *made(row)) for lr, row in enumerate(means)]
        assert summary.best(points) is points[np.argmax(means.mean(1))]


def test_equals_on_validation_are_told_apart_by_its_loss():
    low, high, nan = run(0.5, 0.2, 0.1), run(0.5, 0.4, 0.9), run(0.5, np.nan, 0.9)
    for order in itertools.permutations([low, high, nan]):
        points = [point(lr, ending) for lr, ending in enumerate(order)]
        expected = points[[ending is low for ending in order].index(True)]
        assert summary.best(points) is expected
    first, better = point(1, low), point(3, run(0.51, 7.0, 0.1))
    assert summary.best([first, point(2, low)]) is first
    assert summary.best([first, better]) is better
    # points without a validation score are not chosen
    undefined, first = point(0, run(0.9), run(np.nan)), point(1, run(0.2))
    assert summary.best([undefined, first]) is first
    assert summary.best([undefined]) is None


@pytest.mark.slow
def test_the_best_is_best_on_validation_and_never_diverged(tmp_path):
    labels = {"fedavg": "FedAvg", "scaffold": "SCAFFOLD", "fedmuon": "FedMuon"}
    every = labels | {"stem": "STEM (all clients)"}
    place = by_hand(tmp_path / "sweep", BY_HAND, every)
    assert_reported(place, every)
    summary = {row["method"]: row for row in table(place / "summary.csv")}
    for label in labels.values():
        assert summary[label]["hyper"] == "lr=0.2", label
    assert summary["STEM (all clients)"]["status"] == "diverged"


@pytest.mark.slow
def test_a_sweep_in_which_everything_diverged_is_reported(tmp_path):
    place = by_hand(tmp_path / "sweep", {"stem": BY_HAND["stem"]}, {"stem": "STEM"})
    (line,) = values(place / "summary.csv")
    assert line == ["STEM", "diverged", *[""] * 8]
    ends = [line[2:] for line in values(place / "points.csv")]
    assert ends == [["diverged", 1, 0, *[""] * 6]] * 2
    assert (place / "grids.png").exists()


def test_edges_are_of_hyper_parameters_with_several_values():
    hyper = [{"lr": lr, "align": a} for lr in (1.0, 0.1, 0.01) for a in (0.5, 1.0)]
    grid = [Point(given | {"decay": 0.1}, [], 0) for given in hyper]
    at_edge = [summary.edges(grid, one) for one in grid]
    assert at_edge == [["lr", "align"]] * 2 + [["align"]] * 2 + [["lr", "align"]] * 2
    best = grid[2]._replace(runs=[run(0.5)])
    named = tables.swept([(summarized("A"), best, ["align"])], [], 0.5, "", 1)
    assert named.rows[0][1] == "lr=0.1 align=0.5 decay=0.1 (edge: align)"


def summarized(method, accuracy=0.5, spread=0.02, megabytes=3.0, rounds=4.0):
    return Summary(method, accuracy, spread, rounds, megabytes, 1234567.0, 1.0)


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved."""
    saved: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **how: saved.append(self))
    return saved


def bars(container):
    """The centres and the half lengths of error bars."""
    line, _, (segments,) = container.lines
    ends = [s for s in segments.get_segments() if len(s) == 2]  # else it has no length
    return line.get_xydata(), np.ptp(np.array(ends), axis=1) / 2


def test_the_ranking_has_a_line_for_every_method(figures, tmp_path):
    rows = [summarized("A", 0.8, 0.1, 5.0), summarized("B", 0.7, np.nan, np.nan)]
    rows.append(summarized("C", 0.6, 0.02, 0.5))
    plots.ranking(rows, tmp_path / "ranking.png", seeds=3)
    accuracy, traffic = figures[0].axes
    drawn = map(bars, accuracy.containers)
    centres, spans = map(np.concatenate, zip(*drawn, strict=True))
    np.testing.assert_allclose(centres, [[0.8, 0], [0.7, 1], [0.6, 2]])
    width = stats.t.ppf(0.975, 2) / np.sqrt(3)
    np.testing.assert_allclose(spans[:, 0], [0.1 * width, 0, 0.02 * width])
    assert [label.get_text() for label in accuracy.get_yticklabels()] == list("ABC")
    assert accuracy.xaxis.get_major_formatter()(0.8) == "80"
    assert accuracy.yaxis_inverted()  # the first is the highest
    marks = np.concatenate([line.get_xydata() for line in traffic.lines])
    np.testing.assert_allclose(marks, [[5, 0], [np.nan, 1], [0.5, 2]])
    assert traffic.get_xscale() == "log"


GRID = {
    "aligned": [
        Point({"lr": lr, "align": align}, [run(0, test=t), run(0, test=t + 0.2)], 0)
        for lr, align, t in ((1.0, 0, 0.3), (1.0, 1, 0.4), (0.1, 0, 0.5), (0.1, 1, 0.6))
    ],
    "alone": [Point({}, [run(0)], 0)],
    "fragile": [
        point(0.1, run(0, test=0.2), run(0, test=0.4)),
        point(1.0, run(0, test=0.9), diverged=1),
        point(10.0, diverged=2),
    ],
    "from nothing": [point(lr, run(0, test=0.2)) for lr in (0.0, 0.5)],
}


def test_grids_have_a_panel_for_each_method_with_a_grid(figures, tmp_path):
    plots.grids(GRID, tmp_path / "grids.png", title="title")
    panels = {axis.get_title(): axis for axis in figures[0].axes if axis.get_visible()}
    assert list(panels) == ["aligned", "fragile", "from nothing"]
    assert {axis.get_xlabel() for axis in panels.values()} == {"lr"}
    aligned = panels["aligned"]
    names = [text.get_text() for text in aligned.get_legend().get_texts()]
    assert names == ["align=0", "align=1"]
    for number, container in enumerate(aligned.containers):
        centres, _ = bars(container)
        means = [[0.1, 0.6 + 0.1 * number], [1, 0.4 + 0.1 * number]]
        np.testing.assert_allclose(centres, means)  # in the order of learning rates
        below, above = container.lines[2][0].get_segments()[0][:, 1]
        assert (below, above) == (0.0, 1.0)  # possible accuracies
    crosses = [line for line in panels["fragile"].lines if line.get_marker() == "x"]
    assert [line.get_xydata().tolist() for line in crosses] == [[[1, 0.03], [10, 0.03]]]
    centres, _ = bars(panels["fragile"].containers[0])
    np.testing.assert_allclose(centres, [[0.1, 0.3], [1, np.nan], [10, np.nan]])
    assert panels["fragile"].get_legend() is None
    scales = [axis.get_xscale() for axis in panels.values()]
    assert scales == ["log", "log", "linear"]  # zero has no place on the former


# ------------------------------------------------- tests of the style of figures

NAMES = ("FedAvg", "FedMuon", "FedMuon(alignment)", "MuLoCo", "SCAFFOLD", "My method")


def random_run(seed: int) -> dict[str, np.ndarray]:
    rng, rounds = np.random.default_rng(seed), np.arange(4)
    sent = dict.fromkeys(("bytes_down", "bytes_up"), 1e6 * rounds)
    scores = {"test_accuracy": np.sort(rng.random(4)), "train_loss": rng.random(4)}
    return {"round": rounds, **sent, **scores}


def colors_of(axis) -> list[str]:
    """Colors of the lines of an axis, without that of the target."""
    lines = [line for line in axis.get_lines() if len(line.get_xdata()) != 2]
    return [to_hex(line.get_color()) for line in lines]


def test_a_method_has_one_color_in_the_figures_of_all_commands(figures, tmp_path):
    runs = {name: [random_run(i), random_run(i + 9)] for i, name in enumerate(NAMES)}
    plots.curves(runs, tmp_path / "comparison.png", target=0.5)
    shown = list(reversed(NAMES))  # the order does not matter
    ranked = [Summary(name, 0.5, 0.1, 1, 2.0, 1.0, 1.0) for name in shown]
    plots.ranking(ranked, tmp_path / "ranking.png")
    both = [random_run(0), random_run(1)]
    grid = [Point({"lr": lr}, both, 0) for lr in (0.1, 0.2, 0.3)]
    plots.grids(dict.fromkeys(NAMES, grid), tmp_path / "grids.png")

    expected = [style.line_of(name).color for name in NAMES]
    compared, ranking, grids = figures
    assert colors_of(compared.axes[0]) == colors_of(compared.axes[2]) == expected
    assert colors_of(ranking.axes[0]) == expected[::-1]
    panels = [axis for axis in grids.axes if axis.get_visible()]
    assert [colors_of(panel)[0] for panel in panels] == expected


def test_every_method_has_a_line_of_its_own():
    lines = style.known().values()
    greys = [line for line in lines if line.color in style.GREYS]
    colors = [line.color for line in lines if line not in greys]
    assert len(set(colors)) == len(colors) == 35
    assert len(set(greys[:24])) == 24  # of all combinations
    for line in greys:
        assert len({line.color[i : i + 2] for i in (1, 3, 5)}) == 1


def test_lines_of_a_figure_differ():
    labels = [*NAMES, "FedMuon, lr=0.1", "FedMuon, lr=0.3"]
    labels += ["Mz nethod", "T = 0", "T = 1"]
    drawn = style.styles(labels)
    assert len({(how["color"], str(how["ls"])) for how in drawn.values()}) == len(drawn)
    assert drawn["FedMuon, lr=0.3"]["color"] == drawn["FedMuon"]["color"]
    assert drawn["My method"]["color"] == style.OWN


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "pdf"])
def test_the_same_figure_has_the_same_bytes(tmp_path, suffix, monkeypatch):
    for second in (0, 1):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(86_400 * second))
        path = tmp_path / f"{second}.{suffix}"
        plots.curves({"FedMuon": [random_run(0)]}, path, target=0.5)
    first, second = (tmp_path / f"{n}.{suffix}" for n in (0, 1))
    assert first.read_bytes() == second.read_bytes()
    if suffix == "svg":  # it is for pages of any color
        assert "#ffffff" not in first.read_text()


ODD = "$5_$10 to $x$"  # matplotlib takes dollars for formulas, and fails at the first


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: plots.curves({ODD: [random_run(0)]}, path, title=ODD),
        lambda path: plots.ranking([summarized(ODD, 0.8, 0.1, 5.0)], path, title=ODD),
        lambda path: plots.label_counts(np.ones((2, 2), int), [ODD, ODD], path),
        lambda path: plots.along(
            {ODD: {1.0: [0.5], 8.0: [0.7]}}, path, axis="e", title=ODD
        ),
        lambda path: plots.grids({ODD: GRID["aligned"]}, path, title=ODD),
    ],
)
def test_texts_of_users_are_no_formulas(draw, tmp_path):
    draw(tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert f">{ODD}</text>" in drawn
    assert ">$\\mathdefault" not in drawn  # powers of ten are formulas


def test_labels_do_not_cover_each_other():
    """Those of ticks are left out; others move apart, as little as possible."""
    labels = style.tick_labels([1e-4, 3e-4, 5e-4, 8e-4, 1e-3], logarithmic=True)
    assert labels == ["0.0001", "0.0003", "0.0005", "", "0.001"]
    np.testing.assert_allclose(style.apart([0.1, 0.5, 0.9], 0.2), [0.1, 0.5, 0.9])
    np.testing.assert_allclose(style.apart([0.5, 0.5, 0.5], 0.1), [0.4, 0.5, 0.6])
    np.testing.assert_allclose(style.apart([0.0, 0.0, 0.9], 0.1), [0.0, 0.1, 0.9])
    np.testing.assert_allclose(style.apart([0.98, 1.0], 0.1), [0.9, 1.0])


# --------------------------------------------------------------- tables in LaTeX

EXPECTED = r"""% digits: accuracy in %; mean
\begin{tabular}{lr}
\toprule
algorithm & accuracy, \% \\
\midrule
my\_rule \& \{Muon\} & 89.90 $\pm$ 0.25 \\
a\textbackslash{}b\#\$\textasciitilde{}\textasciicircum{} & $<$1 \\
\bottomrule
\end{tabular}
"""


def test_a_table_with_all_that_latex_takes_for_a_command():
    rows = [("my_rule & {Muon}", "89.90 ± 0.25"), ("a\\b#$~^", "<1")]
    columns = ("algorithm", "accuracy, %")
    assert latex(Cells("digits", "accuracy in %;\nmean", columns, rows)) == EXPECTED
