"""Damaged files of data sets, and the errors of their readers."""

from pathlib import Path

from error_lines import one_line

from tests.robustness.tiny_files import KINDS


def refused(kind: str, place: Path, message: str) -> None:
    """Reading ends in one line that names the folder."""
    with one_line(message, place):
        KINDS[kind].read(place)
