"""Tests of the style of figures."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from experiments import kept
from experiments.papers import paper_report
from fedjax_muon.reporting import axes, colors, plots, style
from fedjax_muon.reporting.comparison import Point, Summary

NAMES = ("FedAvg", "FedMuon", "FedMuon(alignment)", "MuLoCo", "SCAFFOLD", "My method")


def run(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    rounds = np.arange(4)
    return {
        "round": rounds,
        "bytes_down": 1e6 * rounds,
        "bytes_up": 1e6 * rounds,
        "test_accuracy": np.sort(rng.random(4)),
        "train_loss": rng.random(4),
    }


@pytest.fixture
def saved(monkeypatch):
    figures: list[Figure] = []
    keep = lambda self, path, **how: figures.append(self)
    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def colors_of(axis) -> list[str]:
    """Colors of the lines of an axis, without that of the target."""
    lines = [line for line in axis.get_lines() if len(line.get_xdata()) != 2]
    return [to_hex(line.get_color()) for line in lines]


def test_a_method_has_one_color_in_the_figures_of_all_commands(saved, tmp_path):
    runs = {name: [run(i), run(i + 9)] for i, name in enumerate(NAMES)}
    plots.curves(runs, tmp_path / "comparison.png", target=0.5)
    shown = list(reversed(NAMES))  # the order does not matter
    rows = [(paper_report.Row("all", name, "", runs[name], 0), "") for name in shown]
    kept.write(tmp_path / "a.json", paper_report.curves("title", "accuracy", rows))
    paper_report.draw(tmp_path / "a.json")
    ranked = [Summary(name, 0.5, 0.1, 1, 2.0, 1.0, 1.0) for name in shown]
    plots.ranking(ranked, tmp_path / "ranking.png")
    grid = [Point({"lr": lr}, [run(0), run(1)], 0) for lr in (0.1, 0.2, 0.3)]
    plots.grids(dict.fromkeys(NAMES, grid), tmp_path / "grids.png")

    expected = [colors.line_of(name).color for name in NAMES]
    compared, papers, ranking, grids = saved
    assert colors_of(compared.axes[0]) == colors_of(compared.axes[2]) == expected
    assert colors_of(papers.axes[0]) == colors_of(papers.axes[1]) == expected[::-1]
    assert colors_of(ranking.axes[0]) == expected[::-1]
    panels = [axis for axis in grids.axes if axis.get_visible()]
    assert [colors_of(panel)[0] for panel in panels] == expected


def test_lines_of_a_figure_differ():
    labels = [
        *NAMES,
        "FedMuon, lr=0.1",
        "FedMuon, lr=0.3",
        "Mz nethod",
        "T = 0",
        "T = 1",
    ]
    drawn = style.styles(labels)
    assert len({(how["color"], str(how["ls"])) for how in drawn.values()}) == len(drawn)
    assert drawn["FedMuon, lr=0.3"]["color"] == drawn["FedMuon"]["color"]
    assert drawn["My method"]["color"] in colors.GREYS
    assert len(set(colors.MUON.values())) == len(colors.MUON)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "pdf"])
def test_the_same_figure_has_the_same_bytes(tmp_path, suffix, monkeypatch):
    for second in (0, 1):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(86_400 * second))
        path = tmp_path / f"{second}.{suffix}"
        plots.curves({"FedMuon": [run(0)]}, path, target=0.5)
    first, second = (tmp_path / f"{n}.{suffix}" for n in (0, 1))
    assert first.read_bytes() == second.read_bytes()


def test_labels_are_moved_apart_as_little_as_possible():
    np.testing.assert_allclose(style.apart([0.1, 0.5, 0.9], 0.2), [0.1, 0.5, 0.9])
    np.testing.assert_allclose(style.apart([0.5, 0.5, 0.5], 0.1), [0.4, 0.5, 0.6])
    np.testing.assert_allclose(style.apart([0.0, 0.0, 0.9], 0.1), [0.0, 0.1, 0.9])
    np.testing.assert_allclose(style.apart([0.98, 1.0], 0.1), [0.9, 1.0])


def test_a_band_does_not_stretch_a_logarithmic_axis(saved, tmp_path):
    low, high = run(0), run(0)
    low = low | {"train_loss": np.array([1.0, 1e-2, 1e-9, 1e-9])}
    high = high | {"train_loss": np.array([1.0, 1e-2, 1e-2, 1e-2])}
    plots.curves({"FedMuon": [low, high]}, tmp_path / "curves.png")
    bottom, _ = saved[0].axes[2].get_ylim()
    assert 2e-3 < bottom < 5e-3


def test_labels_of_ticks_do_not_cover_each_other():
    labels = axes.tick_labels([1e-4, 3e-4, 5e-4, 8e-4, 1e-3], logarithmic=True)
    assert labels == ["0.0001", "0.0003", "0.0005", "", "0.001"]
