"""Searches of learning rates: where a grid should go on."""

from collections.abc import Sequence

from fedjax_muon.runs.summary import Point


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
