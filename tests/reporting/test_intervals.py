"""Intervals of means over seeds, against scipy's and by simulation."""

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from fedjax_muon.reporting import intervals


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_widths_are_students(seeds):
    values = np.random.default_rng(0).normal(size=(seeds, 4))
    low, high = stats.t.interval(
        0.95, seeds - 1, values.mean(0), stats.sem(values, axis=0)
    )
    half = intervals.half_width(values)
    np.testing.assert_allclose(2 * half, high - low)
    np.testing.assert_allclose(half, intervals.factor(seeds) * values.std(0, ddof=1))


def test_one_seed_has_no_interval():
    assert np.isnan(intervals.factor(1))
    assert np.isnan(intervals.half_width([[1.0, 2.0]])).all()
    assert intervals.note(1) == ""


def test_nineteen_in_twenty_intervals_have_the_mean():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=(3, 4000))
    inside = np.abs(values.mean(0) - 3.0) <= intervals.half_width(values)
    assert inside.mean() == pytest.approx(0.95, abs=0.01)  # three deviations


def test_a_band_is_the_interval_up_to_possible_values():
    axis = Figure().subplots()
    values = np.array([[0.2, 0.9], [0.4, 1.0]])
    how = {"lowest": 0.0, "highest": 1.0, "color": "C3", "ls": "--"}
    mean = intervals.band(axis, [0, 1], values, label="FedAvg", **how)
    np.testing.assert_allclose(mean, [0.3, 0.95])
    (line,) = axis.get_lines()
    assert line.get_label() == "FedAvg"
    assert line.get_color() == "C3"
    (drawn,) = axis.collections
    corners = {tuple(p) for p in drawn.get_paths()[0].vertices}
    assert {(0, 0.0), (0, 1.0), (1, 1.0)} <= corners  # 0.3 +- 1.27, 0.95 + 0.64
    low = 0.95 - intervals.factor(2) * values[:, 1].std(ddof=1)
    assert min(y for x, y in corners if x == 1) == pytest.approx(low)
    shown = matplotlib.colors.to_rgb(drawn.get_facecolor()[0])
    assert shown == matplotlib.colors.to_rgb("C3")


def test_bars_end_at_possible_values():
    found = intervals.bars([0.9, 0.1, 0.5], [0.3, 0.2, np.nan], 0.0, 1.0)
    np.testing.assert_allclose(found, [[0.3, 0.1, 0], [0.1, 0.2, 0]])
