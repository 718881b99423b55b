"""FedAvg and three FedMuons under attack, by aggregator.

    python -m experiments.studies.robust_aggregation --part 0 --parts 2
    python -m experiments.studies.robust_aggregation --part 1 --parts 2

Handwritten digits, 20 clients by Dirichlet(1), all in every round. None, two or four of
them attack. Every cell has the same three learning rates per method; the table shows
the one whose accuracy, averaged over seeds, is highest on validation examples. Finished
runs are appended to a file, and left out the next time. The part that finishes last
writes the table and the figure.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import fedjax_muon as fm
from benchmarks.machine import machine
from experiments.arguments import call
from experiments.studies import tuned
from experiments.studies.tuned import Row
from fedjax_muon import aggregators, attacks
from fedjax_muon.core import Algorithm
from fedjax_muon.runs.intervals import half_width
from fedjax_muon.runs.style import closest, drawing, outside, styles

PLACE = Path("results/robust")
CLIENTS, ROUNDS, SEEDS = 20, 30, (0, 1, 2, 3, 4)
SIZES = {"cohort": CLIENTS, "local_steps": 5, "batch_size": 32}
VALIDATION = 180  # of the test examples

METHODS: dict[str, tuple[Callable[..., Algorithm], tuple[float, ...]]] = {
    "FedAvg": (fm.fedavg, (0.1, 0.3, 1.0)),
    "FedMuon": (fm.fedmuon, (0.003, 0.01, 0.03)),
    "FedMuon(alignment)": (fm.fedmuon_align, (0.003, 0.01, 0.03)),
    "FedMuon(bias correction)": (fm.fedmuon_correct, (0.003, 0.01, 0.03)),
}
AGGREGATORS = {
    "mean": None,
    "trimmed mean": aggregators.trimmed_mean(0.2),
    "multi-Krum": aggregators.krum(0.2, chosen=None),
    "mixing, median": aggregators.chain(
        aggregators.nearest_neighbor_mixing(0.2), aggregators.median()
    ),
    "clipping": aggregators.centered_clipping(1.0, 3),
}
ATTACKS = {
    "sign flip": attacks.sign_flip(),
    "inner product": attacks.inner_product(2.0),
    "ALIE": attacks.alie(1.5),
    "Gaussian": attacks.gaussian(1.0),
}


class Setting(NamedTuple):
    method: str
    aggregator: str
    attack: str  # "none", or one of `ATTACKS`
    attackers: int

    def algorithm(self) -> Algorithm:
        make, rates = METHODS[self.method]
        algorithm = make(lr=rates[0])
        if self.attackers:
            clients = range(self.attackers)
            algorithm = fm.attack(algorithm, ATTACKS[self.attack], clients)
        aggregator = AGGREGATORS[self.aggregator]
        return algorithm if aggregator is None else fm.robust(algorithm, aggregator)


def settings() -> Iterator[Setting]:
    """All settings, unattacked ones first."""
    for attack, attackers in (
        ("none", 0),
        *((attack, number) for number in (4, 2) for attack in ATTACKS),
    ):
        for method in METHODS:
            for aggregator in AGGREGATORS:
                yield Setting(method, aggregator, attack, attackers)


def runs(setting: Setting, rounds: int, seeds: tuple[int, ...]) -> Iterator[Row]:
    """Trains all rates and seeds of a setting in one program."""
    problem = tuned.problem(
        fm.models.MLP(10, (64, 64)),
        fm.data.load("digits"),
        held=VALIDATION,
        clients=CLIENTS,
        alpha=1.0,
    )
    rates = METHODS[setting.method][1]
    return tuned.trained(setting.algorithm(), problem, rates, seeds, rounds, **SIZES)


def main(
    part: int = 0,
    parts: int = 1,
    rounds: int = ROUNDS,
    seeds: tuple[int, ...] = SEEDS,
    output: Path = PLACE / "digits.jsonl",
) -> None:
    """Trains what is missing of one part of the settings."""
    run = lambda setting: runs(setting, rounds, seeds)
    if tuned.finish(settings(), run, output, part, parts):
        table(output)


def table(source: Path) -> None:
    """Writes the table and the figure of kept runs, next to them."""
    rows = tuned.read(source)
    about = machine("experiments.studies.robust_aggregation")
    lines = [
        "# Robust aggregation on digits\n",
        f"Test accuracy in percent after {ROUNDS} rounds, mean ± 95% interval over "
        f"{len({row['seed'] for row in rows})} seeds; 20 clients by Dirichlet(1), all "
        "in every round, each cell at the best of three rates by validation. "
        f"`python -m experiments.studies.robust_aggregation` on {about['cpu']}, jax "
        f"{about['jax']}.",
    ]
    for attack, attackers in dict.fromkeys((s.attack, s.attackers) for s in settings()):
        title = (
            f"{attack}, {attackers} of {CLIENTS} clients" if attackers else "no attack"
        )
        lines += [
            f"\n## {title[0].upper()}{title[1:]}\n",
            f"| method | {' | '.join(AGGREGATORS)} |",
            "|---|" + "---:|" * len(AGGREGATORS),
        ]
        for method in METHODS:
            cells = []
            for aggregator in AGGREGATORS:
                setting = Setting(method, aggregator, attack, attackers)
                known = tuned.chosen(rows, setting)
                if known is None:
                    cells.append("")
                    continue
                own = known[1]
                cells.append(f"{own.mean():.1f} ± {half_width(own):.1f}")
            lines.append(f"| {method} | {' | '.join(cells)} |")
    source.with_suffix(".md").write_text("\n".join([*lines, ""]))
    draw(rows, source.with_suffix(".png"))


def draw(rows: list[Row], path: Path, title: str = "") -> None:
    """Draws a panel for no attack and each of four clients, a row per aggregator."""
    known = {s: tuned.chosen(rows, s) for s in settings() if s.attackers != 2}
    found = {setting: one[1] for setting, one in known.items() if one}
    attacks = list(dict.fromkeys(setting.attack for setting in found))
    colors = {name: how["color"] for name, how in styles(METHODS).items()}
    with drawing(path, (11, 4)) as figure:
        share = {"sharex": True, "sharey": True, "squeeze": False}
        axes = figure.subplots(1, len(attacks), **share)[0]
        means = [scores.mean() for scores in found.values()]
        axes[0].set_xlim(*closest(means, list(map(half_width, found.values()))))
        for setting, scores in found.items():
            axis = axes[attacks.index(setting.attack)]
            place = 0.18 * (list(METHODS).index(setting.method) - 1.5)
            place += list(AGGREGATORS).index(setting.aggregator)
            color = colors[setting.method]
            if not outside(axis, scores.mean(), place, color):
                how = {"fmt": "o", "ms": 4, "lw": 1.3, "color": color}
                axis.errorbar(scores.mean(), place, xerr=half_width(scores), **how)
        for axis, attack in zip(axes, attacks, strict=True):
            axis.set_title("no attack" if attack == "none" else attack)
            axis.set_xlabel("test accuracy, %")
            axis.tick_params(axis="y", length=0)
        axes[0].set_yticks(range(len(AGGREGATORS)), AGGREGATORS)
        axes[0].set_ylim(len(AGGREGATORS) - 0.5, -0.5)
        marks = [axes[0].plot([], [], "o", ms=4, color=c)[0] for c in colors.values()]
        figure.legend(marks, colors, loc="outside lower center", ncols=4)
        figure.suptitle(title, x=0.01, ha="left")


if __name__ == "__main__":
    call(main, __doc__)
