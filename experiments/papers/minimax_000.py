"""Zhang and Gao, "Federated Stochastic Minimax Optimization Under Heavy-Tailed Noises".

    python -m experiments.papers.minimax_000 figure_1 --data-dir DATA  # 2 cores, 20 min
    python -m experiments.papers.minimax_000 figure_1 --scale full --data-dir DATA

Test AUC of a recurrent network on Sentiment140, SST-2 and Yelp polarity, with 8 clients
and batches of 64. The paper has curves only. It does not say which learning rate it
tunes; here it is the local one, and the server averages. It gives the range 0.001 to
0.1 for its two methods, and none for the others, which it also tunes. It does not give
the length of training, here 20,000 local steps.

`--scale cpu` has SST-2 only, a small network, and 512 local steps. Methods that step
along plain gradients learn nothing there at rates in the paper's range: the objective's
gradients are small if positives are rare, and need larger rates.
"""

from functools import partial

from experiments.papers.frame import Item, Panel, Scale, chosen, command, sized
from fedjax_muon import minimax, problems

DATASETS = ("sst2", "tfds:sentiment140", "tfds:yelp_polarity_reviews")
SEEDS = (0, 1, 2)
BOUNDED = ("fed_nsgda_m", "fedmuon_da")  # step length is independent of the gradient's
FEWER: dict[str, dict[str, tuple[float, ...]]] = {
    name: {
        "lr": (0.003, 0.01, 0.03, 0.1)
        if name in BOUNDED
        else (0.1, 0.3, 1.0, 3.0, 10.0)
    }
    for name in minimax.ALL
    if name != "fsgda"  # which is LocalSGDA at the server learning rate 1
}
# grids whose best rate was at an edge
FEWER["fedmuon_da"] = {"lr": (0.001, 0.003, 0.01, 0.03, 0.1)}
FEWER["fedsgda_clip"] = {"lr": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)}
GRIDS = {name: dict(method.grid) for name, method in minimax.ALL.items()}


def figure(local_steps: int, unequal: bool):
    """Returns the panels of a figure.

    One in ten examples is positive, or clients have unequal shares of positives.
    """

    def panels(scale: Scale) -> dict[str, Panel]:
        rounds = (512 if scale == "cpu" else 20_000) // local_steps
        printed = {
            "model": partial(problems.rnn, embedding=300, hidden=4096, layers=2),
            "clients": 8,
            "positives": None if unequal else 0.1,
            "divide": problems.ratios if unequal else None,
            "cohort": 8,
            "local_steps": local_steps,
            "batch_size": 64,
            "rounds": rounds,
            "evaluate_every": rounds // 8,
            "seeds": SEEDS,
        }
        small = partial(problems.rnn, embedding=16, hidden=32)
        grids = FEWER if scale == "cpu" else GRIDS
        methods = chosen(grids, scale, lambda row: row.function())
        divided = "unequal shares" if unequal else "one in ten positive"
        found = {}
        for dataset in DATASETS[: None if scale == "full" else 1]:
            name = dataset.removeprefix("tfds:")
            setting = f"{name}, {local_steps} steps, {divided}"
            settings = sized(printed | {"dataset": dataset}, scale, model=small)
            found[name] = Panel(setting, problems.auc, settings, methods)
        return found

    return panels


SMALL = (
    "SST-2 only, a network of 32 units on embeddings of 16, 512 local steps, rates of "
    "0.1 to 30 for methods with plain gradients"
)
# The paper's text has 8 local steps and its second caption 16. It shows clients with
# unequal shares for 4 only.
ITEMS = {
    "figure_1": Item("one in ten positive, 4 local steps", figure(4, False), SMALL),
    "figure_2": Item("one in ten positive, 16 local steps", figure(16, False), SMALL),
    "figure_3": Item("unequal shares, 4 local steps", figure(4, True), SMALL),
    "figure_3_of_16": Item(
        "unequal shares, 16 local steps; not in the paper", figure(16, True), SMALL
    ),
}

if __name__ == "__main__":
    command("minimax_000", __doc__, ITEMS)
