"""Tables, figures and the page of the board, from kept runs."""

from pathlib import Path


def write(output: Path) -> None:
    """Writes the page and its figures."""
    raise NotImplementedError(output)
