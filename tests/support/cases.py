"""Cases of which the default run takes a few."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any] | int, cases: Iterable[Any]) -> list:
    """Cases for `parametrize`: all are slow but those named, or but the first few."""
    cases = list(cases)
    quick = cases[:quick] if isinstance(quick, int) else list(quick)
    assert all(case in cases for case in quick)
    values = lambda case: case if isinstance(case, tuple) else (case,)
    slow = lambda case: pytest.param(*values(case), marks=pytest.mark.slow)
    return [case if case in quick else slow(case) for case in cases]
