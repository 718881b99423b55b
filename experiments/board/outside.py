"""Two tables of other implementations, trained again with their settings.

    python -m experiments.board.outside replication --data-dir DATA
    python -m experiments.board.outside niid_bench --data-dir DATA
    python -m experiments.board.outside niid_bench --rounds 5 --runs 1 --data-dir DATA

`replication`: an independent replication of FedMuon (Takezawa et al.),
https://github.com/HiraNayak/FedMuon. Fashion-MNIST, LeNet with average pooling, 16
clients by Dirichlet(0.1), 8 per round, 5 local steps with batches of 32, 1,000 rounds.
A run is a partition; the first one is the replication's own.

`niid_bench`: Flower's baseline of NIID-Bench,
https://github.com/adap/flower/tree/main/baselines/niid_bench, for Fashion-MNIST with
two classes per client. 10 clients, all in every round, 10 local epochs with batches of
64, SGD with momentum 0.9, 50 rounds. All runs have the baseline's only partition, as it
does not pass on its seed.

Networks start as PyTorch's layers do. All runs of a method are one program. Finished
methods are appended to a file, and left out the next time; then the table is written.
On an H100, with two processes at a time, a method of the replication took 22 to 82
seconds, and one of NIID-Bench that does not diverge 168 to 262.
"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

import fedjax_muon as fm
from experiments.arguments import call
from experiments.studies import tuned
from fedjax_muon import transforms
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    broadcast_state,
    local_steps,
    recorded,
    tree,
    value_at,
)
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.linalg import lmo, newton_schulz
from fedjax_muon.models.convolution import (
    Convolution,
    by_patches,
    convolution,
    max_pool_2x2,
)
from fedjax_muon.simulation import by_examples, uniform
from fedjax_muon.simulation.sweeps import Cell, run_cells

PLACE = Path("results/board")
SEED = 42  # of both partitions

Name = Literal["replication", "niid_bench"]


def average_pool_2x2(x: jax.Array) -> jax.Array:
    """Average pooling of 2 x 2 squares of even sizes."""
    batch, height, width, channels = x.shape
    squares = x.reshape(batch, height // 2, 2, width // 2, 2, channels)
    return squares.mean(axis=(2, 4))


class LeNet(nn.Module):
    """LeNet whose layers start like PyTorch's: uniform in ±1 / sqrt(fan_in)."""

    padding: str  # of the first convolution
    pool: Callable[[jax.Array], jax.Array]
    convolution: Convolution = convolution

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width, padding in ((6, self.padding), (16, "VALID")):
            how = starting(25 * x.shape[-1]) | {"padding": padding}
            how |= {"conv_general_dilated": self.convolution}
            x = self.pool(nn.relu(nn.Conv(width, (5, 5), **how)(x)))
        x = x.reshape(x.shape[0], -1)
        for width in (120, 84):
            x = nn.relu(nn.Dense(width, **starting(x.shape[-1]))(x))
        return nn.Dense(10, **starting(x.shape[-1]))(x)


def starting(fan_in: int) -> dict[str, Any]:
    """Initializers of a layer."""

    def uniform(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -(fan_in**-0.5), fan_in**-0.5)

    return {"kernel_init": uniform, "bias_init": uniform}


# ------------------------------------------------------------------ the replication


def polar(x: jax.Array) -> jax.Array:
    """The polar factor by matrix products, which are fast on GPUs.

    Singular values above 5e-6 of the Frobenius norm become 1 up to 1e-2, which rounding
    in float32 would not let an SVD improve on much.
    """
    rows = newton_schulz.JORDAN * 9 + newton_schulz.QUINTIC * 3
    with jax.default_matmul_precision("highest"):
        return newton_schulz.orthogonalize(
            x, coefficients=rows, steps=len(rows), form=newton_schulz.plain
        )


MUON = {
    "lr": 0.01,
    "momentum": 0.1,  # of the past, 1 - 0.9
    "rule": transforms.by_rank(
        transforms.orthogonalize(polar), transforms.scale_by_lmo(lmo.euclidean)
    ),
}
# x <- (N - S)/N x + (1/N) sum_i x_i, and the clients keep the states of their rules
HALF = {"server_lr": 0.5}
KEPT = {"server_rule": optax.identity(), **HALF}


def dirichlet(labels: np.ndarray, seed: int) -> list[np.ndarray]:
    """The replication's partition: every class is divided by its own proportions.

    The examples that rounding leaves over go to the client with the smallest share.
    """
    draw = np.random.default_rng(seed)
    parts: list[list[np.ndarray]] = [[] for _ in range(16)]
    for label in range(10):
        owned = np.flatnonzero(labels == label)
        draw.shuffle(owned)
        sizes = (draw.dirichlet(np.full(16, 0.1)) * len(owned)).astype(int)
        sizes[sizes.argmin()] += len(owned) - sizes.sum()
        for part, ids in zip(parts, np.split(owned, sizes.cumsum()[:-1]), strict=True):
            part.append(ids)
    return [np.concatenate(part).astype(np.int32) for part in parts]


# ----------------------------------------------------------------------- NIID-Bench


@recorded
def flower_scaffold(lr: Hyper = 0.01, *, momentum: float = 0.9) -> Algorithm:
    """SCAFFOLD as in Flower's baseline: the correction is added after the momentum.

        u <- momentum u + grad_i(x_i; s),    x_i <- x_i - lr (u - c_i + c)

    With Option II, c_i <- c_i - c + (x - x_i) / (K lr) is then the mean of u, which is
    up to 1 / (1 - momentum) times as large as the gradient.
    """

    def client(objective: Any, broadcast: Any, control: Any, batches: Any, round: Any):
        def step(carry: Any, batch: Any, key: Any) -> Any:
            x, u = carry
            u = tree.add_scaled(objective.grad(x, batch, key), momentum, u)
            d = tree.map(lambda u, ci, c: u - ci + c, u, control, broadcast.control)
            return (tree.add_scaled(x, -value_at(lr, round), d), u), u

        start = broadcast.params, tree.zeros_like(broadcast.params)
        (x, _), seen = local_steps(step, start, batches, round)
        sent = type(broadcast)(tree.sub(x, broadcast.params), tree.sub(seen, control))
        return sent, seen

    def server(state: Any, mean: Any, round: Any) -> Any:
        return type(state)(
            params=tree.add(state.params, mean.params),
            control=tree.add_scaled(state.control, round.fraction, mean.control),
        )

    exchange = Exchange(broadcast_state, client, server)
    return fm.scaffold(lr=lr)._replace(exchanges=(exchange,), uniform_weights=False)


HEAVY = {"lr": 0.01, "rule": optax.trace(0.9)}


def two_classes(labels: np.ndarray, seed: int) -> list[np.ndarray]:
    """The baseline's partition: client i has class i, and another one at random."""
    draw = np.random.default_rng(seed)
    classes = [[client] for client in range(10)]
    for owned in classes:
        while len(owned) < 2:
            other = draw.choice(10, 1)[0]
            owned.extend([other] if other not in owned else [])
    parts: list[list[np.ndarray]] = [[] for _ in classes]
    for label in range(10):
        owners = [
            part for part, owned in zip(parts, classes, strict=True) if label in owned
        ]
        ids = np.flatnonzero(labels == label)
        draw.shuffle(ids)
        for part, share in zip(owners, np.array_split(ids, len(owners)), strict=True):
            part.append(share)
    return [np.concatenate(part).astype(np.int32) for part in parts]


def decayed(task: fm.Task, decay: float) -> fm.Task:
    """Adds decay / 2 |x|^2 to the loss."""
    return task._replace(grad=Partial(functools.partial(_decayed, decay), task.grad))


def _decayed(decay: float, grad: Any, params: Any, batch: Any, key: Any) -> Any:
    return tree.add_scaled(grad(params, batch, key), decay, params)


# ---------------------------------------------------------------------------- checks


class Method(NamedTuple):
    algorithm: Algorithm
    published: tuple[str, str]  # accuracy in percent, for the columns of the table
    weighting: Callable[[jax.Array], jax.Array] = uniform


class Check(NamedTuple):
    """What depends on the table."""

    model: LeNet
    partition: Callable[[np.ndarray, int], list[np.ndarray]]
    one_partition: bool
    methods: dict[str, Method]
    options: dict[str, Any]  # of `federate`
    rounds: int
    runs: int
    evaluate_every: int
    decay: float = 0.0
    zero_to_one: bool = False  # pixels, instead of mean 0 and variance 1


CHECKS = {
    "replication": Check(
        LeNet("SAME", average_pool_2x2),
        dirichlet,
        one_partition=False,
        methods={
            "FedMuon": Method(fm.fedmuon_correct(**MUON), ("85", "89")),
            "Local Muon": Method(fm.local_muon_persistent(**MUON), ("65", "67")),
            "FedAvg, SGD": Method(
                fm.diloco(lr=0.01, rule=optax.trace(0.9), **KEPT), ("84", "87")
            ),
            "FedAvg, Adam": Method(
                fm.diloco(lr=0.001, rule=optax.scale_by_adam(), **KEPT), ("73", "79")
            ),
            "SCAFFOLD": Method(fm.scaffold(lr=0.1, **HALF), ("74", "79")),
            "SCAFFOLD, Adam": Method(
                fm.scaffold(lr=0.001, rule=optax.scale_by_adam(), **HALF), ("84", "87")
            ),
        },
        options={"cohort": 8, "local_steps": 5, "batch_size": 32},
        rounds=1000,
        runs=5,
        evaluate_every=50,
    ),
    "niid_bench": Check(
        LeNet("VALID", max_pool_2x2),
        two_classes,
        one_partition=True,
        methods={
            "FedAvg": Method(fm.fedavg(**HEAVY), ("78.10 ± 2.51", "-"), by_examples),
            "SCAFFOLD, as in Flower": Method(
                flower_scaffold(), ("33.80 ± 41.22", "-"), by_examples
            ),
            "FedProx": Method(
                fm.fedprox(mu=0.01, **HEAVY), ("78.05 ± 0.99", "-"), by_examples
            ),
            "FedNova": Method(
                fm.fednova(lr=0.01, momentum=0.9), ("71.67 ± 2.34", "-"), by_examples
            ),
            "SCAFFOLD, no momentum": Method(fm.scaffold(lr=0.01), ("-", "-")),
            "SCAFFOLD, momentum": Method(fm.scaffold(**HEAVY), ("-", "-")),
        },
        options={"cohort": 10, "local_epochs": 10, "batch_size": 64},
        rounds=50,
        runs=3,
        evaluate_every=1,
        decay=1e-5,
        zero_to_one=True,
    ),
}


class Setting(NamedTuple):
    check: str
    method: str
    rounds: int
    runs: int


def parts_of(check: Check, labels: np.ndarray, run: int) -> list[np.ndarray]:
    """The examples of the clients in a run."""
    return check.partition(labels, SEED if check.one_partition else SEED + run)


def trained(setting: Setting, data: Dataset) -> Iterator[tuned.Row]:
    """Trains all runs of a method in one program; rows have curves."""
    check = CHECKS[setting.check]
    method = check.methods[setting.method]
    if check.zero_to_one:
        low, high = data.x_train.min(), data.x_train.max()
        to_one = lambda x: (x - low) / (high - low)
        data = data._replace(x_train=to_one(data.x_train), x_test=to_one(data.x_test))
    labels = np.asarray(data.y_train)
    cells = [
        Cell({}, jax.random.key(SEED + run), parts_of(check, labels, run))
        for run in range(setting.runs)
    ]
    # kernels differ between clients: GPUs may run convolutions with groups slowly
    convolved = convolution if jax.default_backend() == "cpu" else by_patches
    task = fm.tasks.classification(check.model.clone(convolution=convolved), data)
    if check.decay:
        task = decayed(task, check.decay)
    simulation = fm.federate(
        method.algorithm,
        task,
        data,
        cells[0].parts,
        **check.options,
        weighting=method.weighting,
    )
    every = min(check.evaluate_every, setting.rounds)
    began = time.perf_counter()
    span: dict[str, Any] = {"rounds": setting.rounds, "evaluate_every": every}
    # all at once, without a program that measures how many fit in memory
    groups = run_cells(simulation, cells, cells_at_once=setting.runs, **span)
    outcomes = [outcome for group in groups for outcome in group]
    seconds = time.perf_counter() - began
    for run, (_, diverged) in enumerate(outcomes):
        curve = [row["test_accuracy"] for row in outcomes[run].rows]
        yield {
            "run": run,
            # without finite logits, the first class is predicted: a tenth
            "accuracy": float(curve[-1]) if diverged is None else 0.1,
            "diverged": diverged,
            "rounds_of_curve": [row["round"] for row in outcomes[run].rows],
            "curve": [round(float(score), 4) for score in curve],
            "seconds": round(seconds, 1),
            "device": jax.devices()[0].device_kind,
        }


def main(
    name: Name,
    /,
    data_dir: Path | None = None,
    methods: tuple[str, ...] | None = None,
    rounds: int | None = None,
    runs: int | None = None,
    output: Path = PLACE,
) -> None:
    """Trains what is missing, and writes the table.

    Args:
      methods: Methods to train; by default, all.
      rounds: Number of rounds, if not the published one.
      runs: Number of partitions of the replication, or of repetitions.
    """
    check, path = CHECKS[name], output / f"{name}.jsonl"
    data = fm.data.load("fashion_mnist", data_dir=data_dir)
    settings = [
        Setting(name, method, rounds or check.rounds, runs or check.runs)
        for method in methods or check.methods
    ]
    tuned.finish(settings, lambda setting: trained(setting, data), path)
    table(path)


# ---------------------------------------------------------------------------- tables


def longest(rows: Iterable[tuned.Row], method: str) -> list[tuned.Row]:
    """The runs of a method with the most rounds, and of these the most runs."""
    rows = [row for row in rows if row["method"] == method]
    if not rows:
        return []
    size = max((row["rounds"], row["runs"]) for row in rows)
    return [row for row in rows if (row["rounds"], row["runs"]) == size]


def at(row: tuned.Row, rounds: int) -> float:
    """Accuracy after so many rounds; NaN if it was not evaluated then."""
    scores = dict(zip(row["rounds_of_curve"], row["curve"], strict=True))
    lost = row["diverged"] is not None and row["diverged"] < rounds <= row["rounds"]
    return 0.1 if lost else scores.get(rounds, float("nan"))


def spread(scores: Iterable[float], digits: int = 1) -> str:
    """Mean ± standard deviation in percent, and all values in parentheses."""
    scores = 100 * np.array(list(scores))
    if np.isnan(scores).all():
        return "-"
    each = ", ".join(f"{score:.{digits}f}" for score in scores)
    if len(scores) == 1:
        return each
    return f"{scores.mean():.{digits}f} ± {scores.std(ddof=1):.{digits}f} ({each})"


def at_count(count: int) -> Callable[[tuned.Row], float]:
    return functools.partial(at, rounds=count)


TABLES: dict[str, tuple[str, str, dict[str, Callable[[tuned.Row], float]]]] = {
    "replication": (
        "A replication of FedMuon",
        "Each value is a partition. Published values are read from Figure 1 of the "
        "replication's report, up to 1, for one partition; its text has 89 to 90 for "
        "FedMuon, 85 to 87 for FedAvg, SGD and SCAFFOLD, Adam, and 65 to 68 for Local "
        "Muon. SCAFFOLD with SGD diverges at its learning rate of 0.1, which is 10.0.",
        {"300 rounds": at_count(300), "1,000 rounds": at_count(1000)},
    ),
    "niid_bench": (
        "Flower's baseline of NIID-Bench",
        "Each value is a run on the same partition, with two classes per client. "
        "Published values are the best of 50 rounds, and of four values of mu in "
        "FedProx, for which mu is 0.01 here; 33.80 ± 41.22 is what 10.0, 10.0 and 81.4 "
        "have as mean and deviation. SCAFFOLD, as in Flower, adds the correction after "
        "the momentum; SCAFFOLD, momentum, has the momentum of corrected gradients.",
        {
            "best round": lambda row: max(row["curve"]),
            "last round": lambda row: row["accuracy"],
        },
    ),
}


def table(source: Path) -> None:
    """Writes the table of kept runs, next to them."""
    name, rows = source.stem, tuned.read(source)
    title, text, columns = TABLES[name]
    heads = "".join(f" {head}, published | ours |" for head in columns)
    lines = [
        f"# {title}\n",
        f"Test accuracy in percent on Fashion-MNIST, mean ± standard deviation. {text} "
        f"`python -m experiments.board.outside {name}`.\n",
        f"| method | rounds |{heads}",
        f"|---|---:|{'---:|---|' * len(columns)}",
    ]
    for method, about in CHECKS[name].methods.items():
        if runs := longest(rows, method):
            pairs = zip(about.published, columns.values(), strict=True)
            cells = [f"{known} | {spread(map(of, runs))}" for known, of in pairs]
            lines.append(f"| {method} | {runs[0]['rounds']:,} | {' | '.join(cells)} |")
    devices = sorted({row["device"] for row in rows})
    lines.append(f"\nTrained on {', '.join(devices)}.")
    source.with_suffix(".md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    call(main, __doc__)
