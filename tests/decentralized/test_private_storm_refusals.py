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
        (lambda: each(0.0), r"limit must lie in \(0, infinity\), got 0.0"),
        (lambda: each(Pair(1.0, -1.0)), r"limit\.y must lie in \(0, infinity\)"),
        (lambda: difference(float("nan")), "limit must lie in .* got nan"),
        (lambda: split(1.0, -1.0), r"change must lie in \(0, infinity\)"),
        (lambda: split(-1.0, 1.0), r"limit must lie in \(0, infinity\)"),
        (lambda: split(1.0, Pair(1.0, 1.0)), "both numbers or both pairs, got 1.0 and"),
        (lambda: build_storm(beta=1.1), r"beta must lie in \[0, 1\], got 1.1"),
        (lambda: build_storm(batch_size=0), r"batch_size must lie in \(0, infinity\)"),
        (lambda: build_storm(first_size=-1), r"first_size must lie in \(0, infinity\)"),
        (lambda: build_storm(inside=-0.1), r"inside must lie in \[0, infinity\)"),
        (lambda: build_gradient(limit=0.0), r"limit must lie in \(0, infinity\)"),
        (lambda: build_gradient(inside=-1), r"inside must lie in \[0, infinity\)"),
        (lambda: build_gradient(batch_size=0), r"batch_size must lie in \(0, "),
    ],
)
def test_values_out_of_range_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def build_storm(**changes):
    return private_storm(each(1.0), **{"batch_size": 4, **changes})


def build_gradient(limit=1.0, **changes):
    return private_gradient(limit, **{"batch_size": 4, **changes})


def test_limits_are_numbers():
    with pytest.raises(TypeError, match="limit must be a number, got"):
        each(lambda t: 1.0)
