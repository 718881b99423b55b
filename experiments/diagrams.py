"""Drawings in the documentation: a round, its messages, late ones, and who sees what.

Nothing here is measured. Letters are large enough for a page of 750 pixels.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from fedjax_muon.runs.style import drawing

SMALL, LARGE = 8.5, 10.0  # points
SOFT, RED, BLUE, ORANGE = "#9a9a9a", "#d62728", "#1f6fd6", "#d97a00"
WIDTH = 16.0  # of every drawing, in half inches
CLIENTS, COHORT = 7, (1, 3, 5)  # of which so many are drawn, and take part


class Pen(NamedTuple):
    """Draws on an axis whose units are half inches."""

    axis: Any
    ink: str  # of letters, which can be read on the background

    def box(self, x: float, y: float, width: float, height: float, **how: Any) -> None:
        """A box with round corners, whose lower left corner is at x and y."""
        usual: dict[str, Any] = {"fc": "none", "ec": self.ink, "lw": 1.0}
        shape = f"round,pad=0,rounding_size={min(0.15, width / 2)}"
        self.axis.add_patch(
            FancyBboxPatch((x, y), width, height, shape, **(usual | how))
        )

    def text(self, x: float, y: float, words: str, **how: Any) -> None:
        """Words around a place."""
        usual = {"ha": "center", "va": "center", "fontsize": SMALL, "color": self.ink}
        self.axis.text(x, y, words, **(usual | {"linespacing": 1.3} | how))

    def arrow(self, start: Any, end: Any, color: str = "", **how: Any) -> None:
        """An arrow."""
        usual: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 10, "lw": 1.2}
        usual |= {"color": color or self.ink, "shrinkA": 0, "shrinkB": 0}
        self.axis.add_patch(FancyArrowPatch(start, end, **(usual | how)))


@contextlib.contextmanager
def _canvas(path: Path, height: float) -> Iterator[Pen]:
    with drawing(path, (WIDTH / 2, height / 2)) as figure:
        axis = figure.subplots()
        axis.set(xlim=(0, WIDTH), ylim=(0, height))
        axis.axis("off")
        yield Pen(axis, matplotlib.rcParams["text.color"])


def a_round(path: Path) -> None:
    """Draws a round: who computes what, and what travels."""
    with _canvas(path, 10.4) as pen:
        pen.box(0.2, 7.3, 15.6, 2.9)
        pen.text(0.5, 9.8, "server", ha="left", fontsize=LARGE, weight="bold")
        words = "before round 0, some methods exchange once with all clients"
        pen.text(15.5, 9.8, words, ha="right")
        parts = {
            "broadcast": (0.6, 4.0, "what clients receive:\nthe parameters x, or more"),
            "mean": (6.2, 3.6, "weighted mean\nof the messages"),
            "server": (11.2, 4.2, "x ← x − server_lr ·\nserver_rule(mean)"),
        }
        for name, (left, width, words) in parts.items():
            pen.box(left, 7.55, width, 1.9, ec=SOFT)
            middle = left + width / 2
            pen.text(middle, 9.1, name, family="monospace", fontsize=LARGE)
            pen.text(middle, 8.25, words)
        pen.arrow((9.8, 8.5), (11.2, 8.5))
        width = 15.6 / CLIENTS
        for number in range(CLIENTS):
            left, taken = 0.2 + number * width, number in COHORT
            if taken:
                place = COHORT.index(number)
                pen.arrow((1.6 + place, 7.55), (left + 0.7, 4.6))
                pen.arrow((left + 1.5, 4.6), (7.2 + 0.8 * place, 7.55), RED)
            pen.box(left + 0.1, 3.6, width - 0.2, 1.0, ec=RED if taken else SOFT)
            words = "client i" if taken else "not sampled"
            pen.text(left + width / 2, 4.1, words, color=RED if taken else pen.ink)
        pen.text(0.3, 5.9, "cohort: S of\nN clients", ha="left")
        words = "message: x − xᵢ,\nor more"
        pen.text(15.7, 6.2, words, ha="right", color=RED)
        middle = 0.2 + (COHORT[1] + 0.5) * width
        pen.axis.plot([middle, middle], [3.6, 2.6], color=RED, lw=1, ls=":")
        pen.box(2.0, 0.2, 12.0, 2.4, ec=RED)
        how: dict[str, Any] = {"ha": "left"}
        pen.text(2.4, 2.15, "client i", color=RED, weight="bold", fontsize=LARGE, **how)
        words = "K local steps, one batch each:   xᵢ ← xᵢ − lr · rule(gradient at xᵢ)"
        pen.text(2.4, 1.4, words, **how)
        words = "plan: clients in sequence, in parallel (vmap), or on several devices"
        pen.text(2.4, 0.7, words, **how)


class Family(NamedTuple):
    """Methods whose messages have the same parts; sizes are shares of the model's."""

    names: Mapping[str, str]  # of functions of `fm`, and their labels
    down: Mapping[str, float]
    up: Mapping[str, float]


SIGNS = 1 / 32  # one bit for each number of 32
PLAIN = {"fedavg": "FedAvg", "local_muon": "Local Muon", "muloco": "MuLoCo"}
FAMILIES = (
    Family(PLAIN, {"x": 1}, {"Δxᵢ": 1}),
    Family({"fedcm": "FedCM", "fedavg_m": "FedAvg-M"}, {"x": 1, "Δ": 1}, {"Δxᵢ": 1}),
    Family({"fedmuon": "FedMuon"}, {"x": 1, "M": 1}, {"Δxᵢ": 1, "Mᵢ": 1}),
    Family(
        {"fedmuon_correct": "FedMuon(bias correction)", "scaffold": "SCAFFOLD"},
        {"x": 1, "c": 1},
        {"Δxᵢ": 1, "Δcᵢ": 1},
    ),
    Family(
        {"fedmuon_align": "FedMuon(alignment)"},
        {"x": 1, "M": 1, "Δ": 1},
        {"Δxᵢ": 1, "Mᵢ": 1},
    ),
    Family({"signmuon": "SignMuon"}, {"x": 1}, {"signs": SIGNS}),
)
MEANINGS = (
    "x: parameters     M: momentum     c: control variate     Δ: mean direction of "
    "past rounds\nΔxᵢ, Δcᵢ: what client i changed     signs: one bit for each parameter"
)


def messages(path: Path) -> None:
    """Draws what travels in a round, in units of the model."""
    unit, first, second = 1.55, 5.3, 11.6
    with _canvas(path, 2.4 + len(FAMILIES)) as pen:
        top = 1.6 + len(FAMILIES)
        for x, words in ((first, "server → client i"), (second, "client i → server")):
            pen.text(x, top + 0.3, words, ha="left", weight="bold")
        for number, family in enumerate(FAMILIES):
            y = top - 0.85 - number
            names = ", ".join(family.names.values()).replace("), ", "),\n")
            pen.text(first - 0.3, y + 0.3, names, ha="right")
            for x, parts in ((first, family.down), (second, family.up)):
                for name, size in parts.items():
                    color = BLUE if "x" in name else ORANGE
                    pen.box(x, y, unit * size, 0.6, ec=color, fc=color)
                    inside = size > 0.5
                    ink = {"color": "white", "weight": "bold"} if inside else {}
                    place = x + unit * size / 2 if inside else x + 0.6
                    pen.text(place, y + 0.3, name, **ink)
                    x += unit * size + 0.08
        pen.text(WIDTH / 2, 0.5, MEANINGS)


SECONDS = {"client 1": 2.0, "client 2": 3.1, "client 3": 5.3, "client 4": 9.4}
BUFFER = 2  # messages for a step of the server


class Job(NamedTuple):
    """The local training of a client, and the steps of the server around it."""

    client: str
    start: float
    end: float
    began: int  # number of the parameters that it started from
    staleness: int  # steps of the server since then


def jobs(seconds: Mapping[str, float], steps: int) -> tuple[list[Job], list[float]]:
    """Jobs that arrive, and the times of the server's steps.

    All clients train at any time, and those whose messages make a step start again.

    Example:
      >>> jobs({"a": 1.0, "b": 3.0}, 1)[1]
      [3.0]
    """
    running = {name: (0.0, time, 0) for name, time in seconds.items()}
    done, times, waiting = list[Job](), list[float](), list[str]()
    while len(times) < steps:
        ready = {name: job for name, job in running.items() if name not in waiting}
        name = min(ready, key=lambda each: ready[each][1])
        start, end, began = running[name]
        waiting.append(name)
        done.append(Job(name, start, end, began, len(times) - began))
        if len(waiting) == BUFFER:
            times.append(end)
            for each in waiting:
                running[each] = end, end + seconds[each], len(times)
            waiting = []
    return done, times


def late(path: Path) -> None:
    """Draws asynchronous rounds on a line of time."""
    done, times = jobs(SECONDS, 4)
    left, unit = 2.2, 1.25
    at = lambda time: left + unit * time
    rows = {name: 3.9 - 0.8 * i for i, name in enumerate(SECONDS)}
    with _canvas(path, 6.4) as pen:
        words = f"A step needs {BUFFER} messages. Both clients then start again."
        pen.text(left, 0.3, words, ha="left")
        pen.text(left - 0.3, 5.3, "server", ha="right", weight="bold")
        pen.arrow((left, 5.3), (at(max(SECONDS.values())) + 0.8, 5.3))
        for number, time in enumerate([0.0, *times]):
            pen.axis.plot([at(time)] * 2, [1.0, 5.3], color=SOFT, lw=0.8, ls=":")
            pen.axis.plot(at(time), 5.3, "o", color=pen.ink, ms=6)
            pen.text(at(time), 5.9, f"x{'⁰¹²³⁴'[number]}", fontsize=LARGE)
        for name, y in rows.items():
            pen.text(left - 0.3, y + 0.25, name, ha="right")
        for job in done:
            y, color = rows[job.client], RED if job.staleness > 1 else BLUE
            pen.box(at(job.start), y, at(job.end) - at(job.start) - 0.04, 0.5, ec=color)
            words = f"from x{'⁰¹²³⁴'[job.began]}"
            how = {"ha": "left", "color": color}
            pen.text(at(job.start) + 0.15, y + 0.25, words, **how)
            pen.arrow((at(job.end), y + 0.5), (at(job.end), 5.15), color)
        last = max(done, key=lambda job: job.staleness)
        words = f"{last.staleness} steps late"
        pen.text(
            at(last.end) + 0.15, rows[last.client] + 0.25, words, ha="left", color=RED
        )


class Place(NamedTuple):
    """Who holds something, what is done there, and what others see of it."""

    name: str
    does: str
    shows: str  # on the arrow to the next place
    is_noisy: bool  # what it shows


EVERYBODY = Place("everybody", "", "", False)
KINDS: Mapping[str, Sequence[Place]] = {
    "without privacy": (
        Place("client", "", "message", False),
        Place("server", "averages messages", "parameters", False),
        EVERYBODY,
    ),
    "secure_sums:\nno guarantee": (
        Place("clients", "round messages,\nadd masks", "sum of\nmessages", False),
        Place("server", "sees no single\nmessage", "parameters", False),
        EVERYBODY,
    ),
    "ClientPrivacy:\none client": (
        Place("client", "", "message", False),
        Place(
            "server, trusted",
            "clips messages,\nadds noise to the sum",
            "noisy sum",
            True,
        ),
        EVERYBODY,
    ),
    "ExamplePrivacy:\none example": (
        Place(
            "agent", "clips gradients of\nexamples, adds noise", "noisy\nmessage", True
        ),
        Place(
            "neighbors, not trusted", "average parameters", "final\nparameters", True
        ),
        EVERYBODY,
    ),
}


def who_sees(path: Path) -> None:
    """Draws where noise is added under each kind of privacy, and who sees what."""
    width = WIDTH / len(KINDS)
    with _canvas(path, 8.6) as pen:
        for number, (kind, chain) in enumerate(KINDS.items()):
            middle = (number + 0.5) * width
            pen.text(middle, 8.1, kind, weight="bold")
            for y, place in zip((5.6, 2.9, 0.2), chain, strict=True):
                color = ORANGE if "noise" in place.does else SOFT
                pen.box(middle - 1.85, y, 3.7, 1.5, ec=color)
                pen.text(middle, y + (1.2 if place.does else 0.75), place.name)
                pen.text(
                    middle,
                    y + 0.55,
                    place.does,
                    color=ORANGE if color == ORANGE else pen.ink,
                )
                if place.shows:
                    color = BLUE if place.is_noisy else RED
                    pen.arrow((middle, y), (middle, y - 1.2), color)
                    pen.text(middle + 0.2, y - 0.5, place.shows, ha="left", color=color)
