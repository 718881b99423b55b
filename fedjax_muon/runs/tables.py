"""Tables of results for the terminal and in Markdown."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from rich.table import Table

from fedjax_muon.runs.summary import (
    SHARE_OF_BEST,
    Point,
    Summary,
    score_column,
    score_in,
    score_named,
)


class Cells(NamedTuple):
    """A table as text, which `print` and notebooks show."""

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def __str__(self) -> str:
        return markdown(self)

    def _repr_markdown_(self) -> str:
        return markdown(self)


NUMBERS = ("rounds to target", "MB to target", "kB per round")
VALIDATION = "validation"
EDGE_MARK = "edge"
EDGE = "edge: the smallest or largest value of its grid, so that others may be better"
TEXT = ("algorithm", "lr", "best of its grid")


def hyper_text(point: Point) -> str:
    """The hyperparameters of a point, such as `lr=0.1 align=0.5`; "-" for none."""
    words = [f"{name}={value:.12g}" for name, value in point.hyper.items()]
    return " ".join(words) or "-"


def _chosen_text(point: Point, edges: Sequence[str]) -> str:
    if not edges:
        return hyper_text(point)
    named = "" if len(point.hyper) == 1 else f": {', '.join(edges)}"
    return f"{hyper_text(point)} (edge{named})"


def compared(
    summaries: Sequence[Summary],
    target: float,
    heading: str,
    seeds: int,
    score: str = "accuracy",
    *,
    rates: Mapping[str, str],
    diverged: Mapping[str, str],
) -> Cells:
    """The table of a comparison; a target of NaN is none."""
    rows: list[tuple[str, ...]] = [
        (row.method, rates[row.method], *_numbers(row, score), f"{row.seconds:.1f}")
        for row in summaries
    ]
    empty = ("-",) * (len(NUMBERS) + 1)
    rows += [
        (method, rates[method], f"diverged ({where})", *empty)
        for method, where in diverged.items()
    ]
    columns = ("algorithm", "lr", score_named(score).heading, *NUMBERS, "s per run")
    caption = _caption(target, seeds, score)
    if any(EDGE_MARK in rate for rate in rates.values()):
        caption += f"; {EDGE}"
    return Cells(heading, caption, columns, rows)


def swept(
    summaries: Sequence[tuple[Summary, Point, Sequence[str]]],
    diverged: Sequence[str],
    target: float,
    heading: str,
    seeds: int,
    score: str = "accuracy",
    lost: Mapping[str, str] | None = None,
) -> Cells:
    """The table of a sweep, with every method at its best point.

    Args:
      summaries: One row each: a summary, the point that it is of, and which of its
        hyperparameters are at an edge of the grid.
      lost: How many points of a grid diverged, such as "2 of 6 diverged", by method.
      target: Test score that `rounds_to_target` refers to; NaN for none.
    """
    said = {method: f"; {words}" for method, words in (lost or {}).items()}
    chosen = lambda row, point, edges: (
        _chosen_text(point, edges) + said.get(row.method, "")
    )
    rows = [
        (
            row.method,
            chosen(row, point, edges),
            _validation(point),
            *_numbers(row, score),
        )
        for row, point, edges in summaries
    ]
    empty = ("-",) * len(NUMBERS)
    rows += [(method, "-", "-", "diverged", *empty) for method in diverged]
    kind = score_named(score)
    validation = VALIDATION + kind.heading.removeprefix(kind.words)
    columns = ("algorithm", "best of its grid", validation, kind.heading, *NUMBERS)
    caption = _caption(target, seeds, score)
    caption += "; best of its grid: on validation examples"
    if any(edges for _, _, edges in summaries):
        caption += f"; {EDGE}"
    return Cells(heading, caption, columns, rows)


def _caption(target: float, seeds: int, score: str) -> str:
    best, kind = "the best", score_named(score)
    if kind.chance:
        best = f"the best's distance from {kind.chance:.0%}"
    goal = f"; target: {target:.1%}, {SHARE_OF_BEST:.0%} of {best}"
    if kind.sign < 0:
        goal = f"; target: {target:.3f}, the best / {SHARE_OF_BEST}"
    spread = f"mean ± standard deviation of {seeds} seeds" if seeds > 1 else "1 seed"
    return (
        f"{score} on the test set: {spread}"
        f"{'' if np.isnan(target) else goal}; MB, kB: of all clients"
    )


def count(number: int, what: str) -> str:
    """A number of things, such as `1 seed` or `3 seeds`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _number(value: float, form: str) -> str:
    return "-" if np.isnan(value) else format(value, form)


def percent(mean: float, spread: float) -> str:
    """A mean and a deviation in percent, such as `89.90 ± 0.25`; NaN is a dash."""
    return _spread(_number(100 * mean, ".2f"), _number(100 * spread, ".2f"))


def _spread(mean: str, deviation: str) -> str:
    """A mean and its deviation, which one seed does not have."""
    return mean if deviation == "-" else f"{mean} ± {deviation}"


def _validation(point: Point) -> str:
    mean, _ = point.last(score_column(point.runs[0], "validation"))
    return score_in(point.runs[0]).text(mean)


def _numbers(row: Summary, score: str) -> tuple[str, ...]:
    text = score_named(score).text
    return (
        _spread(text(row.score_mean), text(row.score_std)),
        _number(row.rounds_to_target, ".0f"),
        _number(row.megabytes_to_target, ".1f"),
        f"{row.bytes_per_round / 1e3:,.0f}",
    )


def for_terminal(cells: Cells) -> Table:
    """A table that `rich` prints, without the validation column, to fit 80 columns."""
    table = Table(title=cells.title, caption=cells.caption, padding=(0, 0, 0, 1))
    shown = [
        i for i, column in enumerate(cells.columns) if not column.startswith(VALIDATION)
    ]
    for column in (cells.columns[i] for i in shown):
        if column in TEXT:
            table.add_column(column, overflow="fold")
        else:
            heading = re.sub(r" (to|a) |, ", lambda m: f"{m[0].rstrip()}\n", column)
            table.add_column(heading, justify="right", no_wrap=True)
    for row in cells.rows:
        table.add_row(*(row[i] for i in shown))
    return table


def markdown(cells: Cells) -> str:
    """A table in Markdown, with the caption below."""
    line = lambda values: f"| {' | '.join(values)} |\n"
    rule = ["---" if c in TEXT else "---:" for c in cells.columns]
    body = "".join(map(line, [cells.columns, rule, *cells.rows]))
    return (
        f"# {cells.title}\n\n{body}\n{cells.caption[0].upper()}{cells.caption[1:]}.\n"
    )


LATEX = {  # by the character that stands for itself in text alone
    **{character: rf"\{character}" for character in "{}$&#_%"},
    **{character: f"${character}$" for character in "<>|"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
}


def latex(cells: Cells) -> str:
    """A table in LaTeX, for the package booktabs, after a comment with the caption."""
    escaped = str.maketrans(LATEX)
    line = lambda values: " & ".join(v.translate(escaped) for v in values) + r" \\"
    comment = " ".join(f"{cells.title}: {cells.caption}".split())
    kinds = "".join("l" if c in TEXT else "r" for c in cells.columns)
    head, rows = line(cells.columns), [line(row) for row in cells.rows]
    parts = [f"% {comment}", rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", head]
    parts += [r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(parts) + "\n"
