"""Damaged files of data sets, and the errors of their readers."""

from pathlib import Path

import pytest

from tests.robustness.tiny_files import KINDS


def refused(kind: str, place: Path, message: str) -> None:
    """Reading ends in one line that names the folder."""
    with pytest.raises(ValueError, match=message) as caught:
        KINDS[kind].read(place)
    assert str(place) in str(caught.value)
    assert "\n" not in str(caught.value)
