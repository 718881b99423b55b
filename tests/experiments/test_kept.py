"""Numbers that are kept for figures."""

import numpy as np
import pytest

from experiments import kept

pytestmark = pytest.mark.slow


def test_numbers_are_read_as_written(tmp_path):
    path = tmp_path / "numbers.json"
    numbers = {
        "array": np.array([[1.0, 0.123456789]]),
        "pair": (np.int64(3), np.float32(0.5)),
        "inf": [np.inf, np.nan],
        "name": "FedAvg",
        "none": None,
        "nested": {2: True},
    }
    kept.write(path, numbers)
    found = kept.read(path)
    inf, nan = found.pop("inf")
    assert inf == np.inf
    assert np.isnan(nan)
    assert found == {
        "array": [[1, 0.123457]],
        "pair": [3, 0.5],
        "name": "FedAvg",
        "none": None,
        "nested": {"2": True},
    }


def test_curves_are_drawn_again_as_they_were(tmp_path):
    runs = {
        name: [
            {
                "round": np.array([0, 1]),
                "bytes_down": np.array([0, 1000]),
                "bytes_up": np.array([0, 500]),
                "train_loss": np.array([2.0, loss + seed]),
                "test_accuracy": np.array([0.1, 0.9 - seed]),
                "seconds": np.array([0.0, 1.0]),
            }
            for seed in (0.0, 0.03, 0.01)
        ]
        for name, loss in (("FedAvg", 1.0), ("FedMuon", 0.5))
    }
    path = tmp_path / "curves.json"
    kept.write(path, kept.curves(runs, "digits", 0.8))
    kept.draw_curves(path)
    figure = path.with_suffix(".png")
    kept.plots.curves(runs, tmp_path / "direct.png", title="digits", target=0.8)
    assert figure.read_bytes() == (tmp_path / "direct.png").read_bytes()
