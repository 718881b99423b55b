"""Tables and figures of sweeps, and where their grids should go on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.reporting import comparison, metrics_csv, plots, tables
from fedjax_muon.reporting.comparison import Point

DRAWN = 10  # methods whose curves are drawn, the best


def wider(rates: Sequence[float], best: Point | None) -> tuple[float, ...]:
    """One more learning rate if the best one is at an edge, about 3 apart from it.

    Smaller ones are tried where all diverged. The same ones if they are settled.
    """
    ordered = sorted(rates)
    rate = ordered[0] if best is None else best.hyper["lr"]
    if rate not in (ordered[0], ordered[-1]):
        return tuple(rates)
    higher = best is not None and rate == ordered[-1]
    more = float(f"{rate * (3 if higher else 0.3):.3g}")
    return tuple(sorted((*rates, more)))


def table_of(
    grids: Mapping[str, Sequence[Point]], heading: str, seeds: int, score: str
) -> tables.Cells:
    """The table of finished sweeps: every method at its best point.

    Args:
      grids: The points of every method's grid, by its label.
    """
    chosen, ranked, target = _ranked(grids)
    edges = _edges(grids, chosen)
    rows = [(row, chosen[row.method], edges[row.method]) for row in ranked]
    diverged = [method for method in grids if method not in chosen]
    lost = {}
    for name, points in grids.items():
        number = sum(point.diverged > 0 for point in points)
        if number:
            lost[name] = f"{number} of {len(points)} diverged"
    return tables.swept(rows, diverged, target, heading, seeds, score, lost)


def report(
    grids: Mapping[str, Sequence[Point]],
    directory: Path,
    heading: str,
    seeds: int,
    score: str,
) -> tables.Cells:
    """Writes tables and figures of finished sweeps; returns that of `table_of`."""
    chosen, ranked, target = _ranked(grids)
    kind = comparison.score_named(score).metric
    _write_points(grids, chosen, directory / "points.csv", kind)
    plots.grids(grids, directory / "grids.png", title=heading)
    if chosen:
        path, name = directory / "ranking.png", f"test {score}"
        plots.ranking(ranked, path, title=heading, score=name, seeds=seeds)
        drawn = {row.method: chosen[row.method].runs for row in ranked[:DRAWN]}
        plots.curves(drawn, directory / "curves.png", title=heading, target=target)
    table = table_of(grids, heading, seeds, score)
    (directory / "summary.md").write_text(tables.markdown(table))
    edges = _edges(grids, chosen).items()
    about = {
        "hyper": {name: tables.hyper_text(point) for name, point in chosen.items()},
        "edge": {name: " ".join(at_edge) for name, at_edge in edges},
    }
    status = {name: "diverged" for name in grids if name not in chosen}
    path = directory / "summary.csv"
    comparison.write(ranked, path, diverged=status, columns=about)
    return table


def _ranked(
    grids: Mapping[str, Sequence[Point]],
) -> tuple[dict[str, Point], list[comparison.Summary], float]:
    """The best points by method, their summaries from the best on, and the target."""
    best = {method: comparison.best(points) for method, points in grids.items()}
    chosen = {method: point for method, point in best.items() if point is not None}
    if not chosen:
        return {}, [], np.nan
    runs = {method: point.runs for method, point in chosen.items()}
    target = comparison.target_score(runs)
    summaries = comparison.summarize(runs, target)
    sign = comparison.score_in(next(iter(runs.values()))[0]).sign
    return chosen, sorted(summaries, key=lambda row: -sign * row.score_mean), target


def _edges(
    grids: Mapping[str, Sequence[Point]], chosen: Mapping[str, Point]
) -> dict[str, list[str]]:
    return {name: comparison.edges(grids[name], p) for name, p in chosen.items()}


def _write_points(grids, best: Mapping[str, Point], path, kind: str) -> None:
    columns = (f"validation_{kind}", f"test_{kind}", "train_loss")
    rows = []
    for method, points in grids.items():
        chosen = best.get(method)
        for point in points:
            row: dict[str, Any] = {
                "method": method,
                "hyper": tables.hyper_text(point),
                "status": "diverged" if point.diverged else "finished",
                "diverged_seeds": point.diverged,
                "best": int(chosen is not None and point.hyper == chosen.hyper),
            }
            for column in columns:
                mean, std = ("", "") if point.diverged else point.last(column)
                row |= {f"{column}_mean": mean, f"{column}_std": std}
            rows.append(row)
    path.write_text(metrics_csv.text_of(rows, header=True), newline="")
