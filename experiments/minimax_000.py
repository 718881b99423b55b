"""The comparison of Fed-NSGDA-M and FedMuon-DA: deep AUC maximization on sentences.

    python -m experiments.minimax_000 figure_1 --data-dir DATA       # 2 cores, minutes
    python -m experiments.minimax_000 figure_3 --dataset tfds:sentiment140 \\
        --size paper                                       # an accelerator, as printed

Zhang and Gao, "Federated Stochastic Minimax Optimization Under Heavy-Tailed Noises":
test AUC on Sentiment140, SST-2 and Yelp polarity over 8 clients with batches of 64. A
figure is a sweep, with its directory, tables and figures, and `fedjax-muon resume`
continues it. docs/minimax has what `--size small` gave on SST-2.

The paper does not say which of its learning rates it means; here the local one is
tuned, and the server averages. It gives the range 0.001 to 0.1 for its two methods, and
none for the others, which it tunes too.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedjax_muon import minimax
from fedjax_muon.cli import directory, sweeping
from fedjax_muon.cli.config import DEFAULTS, Config, Sweep
from fedjax_muon.cli.lists import Names
from fedjax_muon.cli.session import refusing
from fedjax_muon.methods import find

Figure = Literal["figure_1", "figure_2", "figure_3", "figure_3_of_16"]
Size = Literal["paper", "small", "smoke"]
SENTENCES = dataclasses.replace(
    DEFAULTS["auc"], dataset="sst2", model="rnn", batch_size=64
)

# The paper's text has 8 local steps where its second caption has 16; it draws the
# clients of unequal ratios for 4 only.
FIGURES: dict[Figure, Config] = {
    "figure_1": dataclasses.replace(SENTENCES, local_steps=4),
    "figure_2": dataclasses.replace(SENTENCES, local_steps=16),
    "figure_3": dataclasses.replace(
        SENTENCES, local_steps=4, positives=None, partition="ratios"
    ),
    "figure_3_of_16": dataclasses.replace(
        SENTENCES, local_steps=16, positives=None, partition="ratios"
    ),
}
PAPER = tuple(minimax.ALL)
# FSGDA with the server's learning rate 1 is LocalSGDA.
SMALL = tuple(name for name in PAPER if name != "fsgda")
BOUNDED = ("fed_nsgda_m", "fedmuon_da")  # methods whose steps gradients don't scale


def resized(config: Config, size: Size) -> Config:
    """The config with the model and the number of rounds of a size."""
    steps = {"paper": 20_000, "small": 512, "smoke": 32}[size]
    rounds = steps // config.local_steps
    return dataclasses.replace(
        config,
        rnn={"paper": (300, 4096, 2), "small": (16, 32, 1), "smoke": (2, 3, 1)}[size],
        rounds=rounds,
        evaluate_every=max(1, rounds // 8),
    )


def grid(name: str, size: Size) -> dict[str, tuple[float, ...]]:
    """Learning rates of a method: the paper's range, or most of it for its two, whose
    steps are bounded. The small model learns nothing by plain gradients at these: the
    objective's are small where positives are rare, and need larger ones."""
    if size == "paper":
        return dict(minimax.ALL[name].grid)
    if size == "smoke":
        return {"lr": (0.01,)}
    return {"lr": (0.003, 0.01, 0.03, 0.1) if name in BOUNDED else (0.3, 1.0, 3.0)}


def sweep(figure: Figure, size: Size, names: tuple[str, ...] = ()) -> Sweep:
    """What `main` plays, on SST-2."""
    names = names or (PAPER if size == "paper" else SMALL)
    return Sweep(
        algorithms=names,
        grids={name: grid(name, size) for name in names},
        seeds=(0,) if size == "smoke" else (0, 1, 2),
        validation=0.1,
        cells_at_once=None,
        config=resized(FIGURES[figure], size),
    )


def main(
    figure: Annotated[Figure, tyro.conf.Positional],
    dataset: str = "sst2",
    data_dir: Path | None = None,
    size: Size = "small",
    algorithms: Names = (),
    output: Path | None = None,
) -> None:
    """Plays one figure of Zhang and Gao for one data set.

    Args:
      figure: 1 and 2, one in ten positive, with 4 and 16 local steps; 3, clients of
        unequal shares of positives.
      dataset: sst2, tfds:sentiment140, tfds:yelp_polarity_reviews, or another one of
        sentences.
      data_dir: where its files are; by default the environment variable
        FEDJAX_MUON_DATA.
      size: the paper's network, one that a laptop bears, or one to see that it runs.
      algorithms: names of the methods; by default all of the figure's.
      output: directory, new or empty; by default runs/minimax_000 with the figure's,
        the data set's and the size's names.
    """
    name = f"{figure}-{dataset.removeprefix('tfds:')}-{size}"
    place = output or Path("runs/minimax_000") / name
    with refusing():
        for method in algorithms:
            find(method, minimax.ALL)
        what = sweep(figure, size, algorithms)
        config = dataclasses.replace(what.config, dataset=dataset, data_dir=data_dir)
        what = dataclasses.replace(what, config=config)
        sweeping.check(what)
        directory.create(place, what)
    sweeping.play(what, place)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
