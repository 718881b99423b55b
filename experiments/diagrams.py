"""The figure of a round in the documentation."""

from pathlib import Path
from typing import Any

from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from fedjax_muon.runs.style import NOTE, drawing

INK, SOFT, TAKEN = NOTE, "#9a9a9a", "#d62728"
CLIENTS, COHORT = 7, (1, 3, 4)  # of which so many are drawn, and take part


def a_round(path: Path) -> None:
    """Draws a round: who computes what, and what travels."""
    with drawing(path, (8.0, 4.4)) as figure:
        axis = figure.subplots()
        axis.set_xlim(0, 16)
        axis.set_ylim(0, 8.8)
        axis.axis("off")
        _box(axis, 0.4, 6.3, 15.2, 2.1, INK)
        axis.text(
            0.7, 8.02, "server", color=INK, fontsize=9, weight="bold", va="center"
        )
        words = "some methods first have a prologue: all N clients send something once"
        axis.text(15.3, 8.02, words, color=INK, fontsize=7.5, va="center", ha="right")
        _note(
            axis,
            2.6,
            7.3,
            "broadcast",
            "what clients receive: the\nparameters x, or more",
        )
        _note(axis, 8.0, 7.3, "mean", "weighted mean of\nthe messages")
        _note(axis, 13.2, 7.3, "server", "x ← x − server_lr ·\nserver_rule(mean)")
        _arrow(axis, (9.6, 7.3), (11.5, 7.3), INK)
        width = 15.2 / CLIENTS
        for number in range(CLIENTS):
            left, color = 0.4 + number * width, SOFT
            if number in COHORT:
                color = TAKEN
                _arrow(axis, (2.6, 6.6), (left + 0.75, 4.2), INK)
                _arrow(axis, (left + 1.25, 4.2), (8.0, 6.6), TAKEN)
            _box(axis, left + 0.12, 3.1, width - 0.24, 1.0, color)
            words = "client" if number in COHORT else "not sampled"
            middle = left + width / 2
            how: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.5}
            how["color"] = color if number in COHORT else INK
            axis.text(middle, 3.6, words, **how)
        axis.text(
            0.5, 5.2, "cohort:\nS of N clients", color=INK, fontsize=8, va="center"
        )
        axis.text(
            15.5,
            5.2,
            "message:\nx − xᵢ, or more",
            color=TAKEN,
            fontsize=8,
            va="center",
            ha="right",
        )
        _box(axis, 2.6, 0.35, 12.0, 2.1, TAKEN)
        axis.text(2.9, 2.05, "client", color=TAKEN, fontsize=9, weight="bold")
        axis.text(
            2.9,
            1.4,
            "K local steps, one batch each:   xᵢ ← xᵢ − lr · rule(gradient at xᵢ)",
            color=INK,
            fontsize=8.5,
            va="center",
        )
        axis.text(
            2.9,
            0.75,
            "plan: clients in sequence, in parallel (vmap), or on several devices",
            color=INK,
            fontsize=7.5,
            va="center",
        )
        middle = 0.4 + (COHORT[1] + 0.5) * width
        axis.plot([middle, middle], [3.05, 2.5], color=TAKEN, lw=0.8, ls=":")


def _box(
    axis: Any, x: float, y: float, width: float, height: float, color: str
) -> None:
    shape = FancyBboxPatch(
        (x, y),
        width,
        height,
        "round,pad=0,rounding_size=0.18",
        fc="none",
        ec=color,
        lw=1,
    )
    axis.add_patch(shape)


def _note(axis: Any, x: float, y: float, name: str, words: str) -> None:
    how = {"ha": "center", "color": INK}
    axis.text(x, y + 0.12, name, family="monospace", fontsize=9, va="bottom", **how)
    axis.text(x, y - 0.02, words, fontsize=7.5, va="top", linespacing=1.3, **how)


def _arrow(axis: Any, start: Any, end: Any, color: str) -> None:
    how: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 9, "lw": 1}
    how |= {"color": color, "shrinkA": 0, "shrinkB": 0}
    axis.add_patch(FancyArrowPatch(start, end, **how))
