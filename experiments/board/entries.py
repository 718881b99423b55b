"""The methods of the board, and the six trials that each of them declares.

A new row is a line of `ENTRIES`: a method of the library with the kind of its learning
rate. `python -m experiments.board digits --method NAME` then tunes and runs it.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from experiments.board.tracks import Reach, Track
from fedjax_muon import decentralized
from fedjax_muon.algorithms import ALL as FEDERATED
from fedjax_muon.core import Algorithm
from fedjax_muon.core.schedules import cosine_decay

ALL = {**FEDERATED, **decentralized.ALL}
TRIALS = 6
IMAGES, EVERYWHERE = Reach.IMAGES, Reach.EVERYWHERE
SCHEDULES = ("constant", "cosine")
MINIMAX = "minimax"  # the kind of methods that train the minimax task


class Trial(NamedTuple):
    """A point of a method's space."""

    schedule: str
    hyper: Mapping[str, float]

    @property
    def words(self) -> str:
        """In words, such as "lr 0.1, cosine"."""
        given = [f"{name} {value:g}" for name, value in self.hyper.items()]
        return ", ".join([*given, *[self.schedule] * (self.schedule == "cosine")])


class Entry(NamedTuple):
    """A method and its space: rates of a kind, times schedules or another option."""

    method: str  # of the library
    kind: str  # of its local steps: whose rates of the track
    factor: float = 1.0  # of the track's rates
    axis: Mapping[str, tuple[float, ...]] = {}  # instead of the schedules
    fixed: Mapping[str, float] = {}
    reach: Reach = Reach.DIGITS  # on which tracks it runs
    suffix: str = ""

    @property
    def label(self) -> str:
        """The name in tables and figures."""
        return ALL[self.method].label + self.suffix

    def trials(self, track: Track) -> list[Trial]:
        """All points of the space.

        Raises:
          ValueError: If they are not six.
        """
        rates = [self.factor * rate for rate in track.rates[self.kind]]
        axes = [[{name: v} for v in values] for name, values in self.axis.items()]
        others = math.prod(map(len, axes)) if axes else len(SCHEDULES)
        number = TRIALS // max(1, others)
        # with three values of the other option, the two higher rates
        lrs = [{"lr": float(f"{rate:.3g}")} for rate in rates[-number:]]
        schedules = SCHEDULES if not axes else SCHEDULES[:1]
        made = [
            Trial(schedule, {k: v for one in point for k, v in one.items()})
            for schedule in schedules
            for point in itertools.product(lrs, *axes)
        ]
        if len(made) != TRIALS:
            raise ValueError(
                f"the space of {self.method} has {len(made)} points, but a method has "
                f"{TRIALS} trials; see RULES.md"
            )
        return made

    def algorithm(self, trial: Trial, rounds: int) -> Algorithm:
        """The method at a point of its space."""
        method, given = ALL[self.method], {**self.fixed, **trial.hyper}
        # the rest belongs to the track, such as the clip norm of private clients
        made = method.function(**{k: v for k, v in given.items() if method.takes(k)})
        if trial.schedule == "constant":
            return made
        return cosine_decay(made, lr=trial.hyper["lr"], rounds=rounds)


SERVER = {"server_lr": (0.01, 0.03, 0.1)}
OUTER = {"server_lr": (0.5, 0.8)}
ENTRIES = {
    "fedavg": Entry("fedavg", "sgd", reach=EVERYWHERE),
    "fedavg_momentum": Entry("fedavg_momentum", "sgd", 1 / 3, reach=EVERYWHERE),
    "fedprox": Entry("fedprox", "sgd", axis={"mu": (0.01, 0.1)}, reach=EVERYWHERE),
    "fedexp": Entry("fedexp", "sgd"),
    "feddyn": Entry("feddyn", "sgd", axis={"alpha": (0.01, 0.1)}, reach=IMAGES),
    "scaffold": Entry("scaffold", "sgd", reach=EVERYWHERE),
    "scaffold_m": Entry("scaffold_m", "sgd"),
    "fedcm": Entry("fedcm", "sgd", reach=IMAGES),
    "fedavg_m": Entry("fedavg_m", "sgd", reach=IMAGES),
    "fedadam": Entry("fedadam", "sgd", axis=SERVER, reach=EVERYWHERE),
    "fedyogi": Entry("fedyogi", "sgd", axis=SERVER),
    "fedadagrad": Entry("fedadagrad", "sgd", axis=SERVER),
    "fedavg_adam": Entry("fedavg_adam", "adam", reach=EVERYWHERE),
    "scaffold_adam": Entry("scaffold_adam", "adam", reach=IMAGES),
    "local_adamw": Entry("local_adamw", "adam", reach=IMAGES),
    "fedadamw": Entry("fedadamw", "adam", reach=IMAGES),
    "fedlada": Entry("fedlada", "adam"),
    "diloco": Entry("diloco", "adam", axis=OUTER),
    "local_soap": Entry("local_soap", "adam"),
    "fedpac_soap": Entry("fedpac_soap", "adam"),
    "local_muon": Entry("local_muon", "muon", 3, reach=EVERYWHERE),
    "local_muon_averaged": Entry("local_muon_averaged", "muon", reach=IMAGES),
    "muloco": Entry("muloco", "muon", axis=OUTER, reach=IMAGES),
    "fedpac_muon": Entry("fedpac_muon", "muon"),
    "fedmuon": Entry("fedmuon", "muon", reach=EVERYWHERE),
    "fedmuon_correct": Entry("fedmuon_correct", "muon", reach=EVERYWHERE),
    "fedmuon_svd": Entry("fedmuon_svd", "muon"),
    **{
        f"fedmuon_align_{weight:g}": Entry(
            "fedmuon_align",
            "muon",
            fixed={"align": weight},
            reach=EVERYWHERE,
            suffix=f", weight {weight:g}",
        )
        for weight in (0.0, 0.25, 0.5)
    },
}


CLIPS = {"clip_norm": (0.3, 1.0)}
PRIVATE = {
    "fedavg": Entry("fedavg", "sgd", axis=CLIPS),
    "fedavg_momentum": Entry("fedavg_momentum", "sgd", 1 / 3, axis=CLIPS),
    "fedprox": Entry("fedprox", "sgd", axis=CLIPS),
    "scaffold": Entry("scaffold", "sgd", axis=CLIPS),
    "fedavg_m": Entry("fedavg_m", "sgd", axis=CLIPS),
    "fedadam": Entry("fedadam", "sgd", 0.3, axis=SERVER | CLIPS),
    "fedyogi": Entry("fedyogi", "sgd", 0.3, axis=SERVER | CLIPS),
    "fedavg_adam": Entry("fedavg_adam", "adam", axis=CLIPS),
    "local_muon": Entry("local_muon", "muon", 3, axis=CLIPS),
    "local_muon_averaged": Entry("local_muon_averaged", "muon", axis=CLIPS),
    "fedmuon": Entry("fedmuon", "muon", axis=CLIPS),
    "fedmuon_correct": Entry("fedmuon_correct", "muon", axis=CLIPS),
    "fedmuon_align": Entry("fedmuon_align", "muon", axis=CLIPS),
    "dp_fedmuon": Entry(
        "dp_fedmuon", "sgd", 0.3, axis={"server_lr": (0.03, 0.1, 0.3)} | CLIPS
    ),
}
RING = {
    "dsgd": Entry("dsgd", "sgd"),
    "gradient_tracking": Entry("gradient_tracking", "sgd"),
    "suda": Entry("suda", "sgd"),
    "dsgd_muon": Entry("dsgd_muon", "muon"),
    "gradient_tracking_muon": Entry("gradient_tracking_muon", "muon"),
    "demuon": Entry("demuon", "muon"),
    "suda_muon": Entry("suda_muon", "muon"),
    "suda_muon_extra": Entry("suda_muon_extra", "muon"),
    "suda_muon_gt": Entry("suda_muon_gt", "muon"),
    "dsgda": Entry("dsgda", MINIMAX),
    "dm_hsgd": Entry("dm_hsgd", MINIMAX),
    # lower rates: their noise is much longer than the gradient
    "dp_sgda_unclipped": Entry("dp_sgda_unclipped", MINIMAX, 0.1),
    "dpmixsgd_unclipped": Entry("dpmixsgd_unclipped", MINIMAX, 0.1),
}
TABLES = {"ENTRIES": ENTRIES, "PRIVATE": PRIVATE, "RING": RING}


def entries_of(track: Track) -> Iterator[str]:
    """The methods of a track."""
    for name, entry in TABLES[track.table].items():
        if entry.reach >= track.reach:
            yield name


def entry_of(name: str, track: Track) -> Entry:
    """The entry of a name in the table of a track.

    Raises:
      ValueError: If there is none.
    """
    table = TABLES[track.table]
    if name not in table:
        known = ", ".join(table)
        why = "no declared space" if name in ALL else "no method of that name"
        raise ValueError(
            f"{name}: {why} on the board; add it to {track.table} in "
            f"experiments/board/entries.py, or choose one of {known}"
        )
    return table[name]
