"""What private STORM and the private gradient refuse."""

import pytest

from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized.private_storm import (
    difference,
    each,
    private_gradient,
    private_storm,
    split,
)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: each(0.0), r"clip_norm must lie in \(0, infinity\), got 0.0"),
        (lambda: each(Pair(1.0, -1.0)), r"clip_norm\.y must lie in \(0, infinity\)"),
        (lambda: difference(float("nan")), "clip_norm must lie in .* got nan"),
        (lambda: split(1.0, -1.0), r"change_clip_norm must lie in \(0, infinity\)"),
        (lambda: split(-1.0, 1.0), r"clip_norm must lie in \(0, infinity\)"),
        (lambda: split(1.0, Pair(1.0, 1.0)), "both numbers or both pairs, got 1.0 and"),
        (lambda: build_storm(beta=1.1), r"beta must lie in \[0, 1\], got 1.1"),
        (lambda: build_storm(batch_size=0), r"batch_size must lie in \(0, infinity\)"),
        (lambda: build_storm(first_size=-1), r"first_size must lie in \(0, infinity\)"),
        (
            lambda: build_storm(noise_multiplier=-0.1),
            r"noise_multiplier must lie in \[0",
        ),
        (
            lambda: build_gradient(clip_norm=0.0),
            r"clip_norm must lie in \(0, infinity\)",
        ),
        (
            lambda: build_gradient(noise_multiplier=-1),
            r"noise_multiplier must lie in \[0",
        ),
        (lambda: build_gradient(batch_size=0), r"batch_size must lie in \(0, "),
    ],
)
def test_values_out_of_range_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def build_storm(**changes):
    return private_storm(each(1.0), **{"batch_size": 4, **changes})


def build_gradient(clip_norm=1.0, **changes):
    return private_gradient(clip_norm, **{"batch_size": 4, **changes})


def test_limits_are_numbers():
    with pytest.raises(TypeError, match="clip_norm must be a number, got"):
        each(lambda t: 1.0)
