"""`fedjax-muon private`: decentralized training with a privacy guarantee.

privacy.txt    the statement of every private run
graph.png      who talks to whom, for the first seed
metrics.csv    one row an evaluation of every run
summary.csv    the test AUC of every method at every epsilon
utility.png    the same, drawn
"""

import csv
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import networkx as nx
import numpy as np
from rich.console import Console
from rich.table import Table

from fedjax_muon import data, history, models, partition, plots, topology, training
from fedjax_muon.batching import always, cyclic, poisson, shuffled_epochs
from fedjax_muon.cli import arguments, directory, tables
from fedjax_muon.cli.building import start_key
from fedjax_muon.cli.session import new_directory, progress_bar, refusing
from fedjax_muon.decentralized import ALL
from fedjax_muon.decentralized.private import (
    PRIVATE,
    Mechanism,
    calibrate,
    noise_of,
)
from fedjax_muon.decentralized_simulation import (
    DecentralizedSimulation,
    decentralize,
)
from fedjax_muon.privacy.report import PrivacySpec, report
from fedjax_muon.privacy.sampling import Cyclic, Poisson
from fedjax_muon.private_storm import per_example
from fedjax_muon.problems import auc

REFERENCES = ("dsgda", "dm_hsgd")  # what the same methods reach without privacy
ROOM = 3  # a batch's, over its expected size
ASSUMED = (
    "  assumed:    scaling and share of positives of the whole data are public\n"
    "  assumed:    the seed stays secret: whoever knows it can take the noise away"
)


class Setting(NamedTuple):
    """What all runs have in common."""

    args: arguments.Private
    dataset: data.Dataset
    task: Any
    parts: dict[int, list[np.ndarray]]  # by seed
    graphs: dict[int, nx.Graph]

    @property
    def fewest(self) -> int:
        """Examples of the agent that is protected least."""
        return min(len(part) for parts in self.parts.values() for part in parts)


def command(args: arguments.Private) -> None:
    """`fedjax-muon private`."""
    console = Console()
    with refusing():
        setting = _setting(args)
        specs = {
            (name, epsilon): _calibrated(setting, name, epsilon)
            for name in args.methods
            if name in PRIVATE
            for epsilon in args.epsilons
        }
        for name in args.methods:  # refused, if at all, before anything is made
            _simulation(setting, name, 1.0, args.seeds[0])
        place = new_directory(args.output, "private")
        directory.claim(place, "choose another --output")
    said = [
        f"{_label(name)}\n{report(spec).statement()}\n{ASSUMED}"
        for (name, _), spec in specs.items()
    ]
    (place / "privacy.txt").write_text("\n\n".join(said) + "\n")
    plots.graph(setting.graphs[args.seeds[0]], place / "graph.png", title=args.graph)
    runs = [
        (name, epsilon, None if name in REFERENCES else specs[name, epsilon])
        for name in args.methods
        for epsilon in ((math.inf,) if name in REFERENCES else args.epsilons)
    ]
    found: dict[tuple[str, float], list[float]] = {}
    with progress_bar(console) as bar:
        total = len(runs) * len(args.seeds) * args.rounds
        everything = bar.add_task("all", total=total)
        for name, epsilon, spec in runs:
            noise = 0.0 if spec is None else noise_of(spec)
            for seed in args.seeds:
                bar.update(everything, description=_label(name))
                tick = partial(bar.advance, everything)
                rows = _play(_simulation(setting, name, noise, seed), args, seed, tick)
                about = {"method": name, "epsilon": epsilon, "seed": seed}
                for row in rows:
                    history.append(place / "metrics.csv", about | row)
                found.setdefault((name, epsilon), []).append(rows[-1]["test_auc"])
        bar.update(everything, description="done")
    for statement in said[:: len(args.epsilons)]:
        console.print(statement, highlight=False, markup=False)
    _report(args, found, place, console)


def _setting(args: arguments.Private) -> Setting:
    for name, given in (("methods", args.methods), ("seeds", args.seeds)):
        if not given or len(set(given)) != len(given):
            raise ValueError(f"{name} must be one or more, each once, got {given}")
    known = (*REFERENCES, *PRIVATE)
    for name in (*args.methods, *args.lr):
        if name not in known:
            raise ValueError(f"unknown method {name!r}; there are {', '.join(known)}")
    if not args.epsilons:
        raise ValueError("epsilons must be one or more, got none")
    dataset = data.load(args.dataset, args.data_dir)
    if len(dataset.classes) != 2:
        raise ValueError(
            f"AUC is defined for two classes, {args.dataset} has {len(dataset.classes)}"
        )
    if dataset.x_train.dtype == np.int32:
        raise ValueError(f"the mlp does not fit the sentences of {args.dataset}")
    keys = {seed: jax.random.fold_in(jax.random.key(seed), 2) for seed in args.seeds}
    parts = {
        seed: partition.iid(dataset.y_train, args.agents, key=key)
        for seed, key in keys.items()
    }
    # the share of positives is taken as public: a client's own would tell of its data
    task = auc(
        models.MLP(len(dataset.classes), args.hidden),
        dataset.x_train.shape[1:],
        share=float(dataset.y_train.mean()),
    )
    graphs = {seed: _graph(args, key) for seed, key in keys.items()}
    return Setting(args, dataset, task, parts, graphs)


def _graph(args: arguments.Private, key: jax.Array) -> nx.Graph:
    kinds: dict[str, Callable[[], nx.Graph]] = {
        "erdos_renyi": lambda: (
            topology.erdos_renyi(args.agents, args.connectivity, key=key).graph
        ),
        "ring": lambda: topology.ring(args.agents),
        "star": lambda: topology.star(args.agents),
        "exponential": lambda: topology.exponential(args.agents),
        "complete": lambda: topology.complete(args.agents),
    }
    return kinds[args.graph]()


def _mechanism(args: arguments.Private) -> Mechanism:
    return Mechanism(args.limit, args.change, args.beta, args.batch_size)


def _calibrated(setting: Setting, name: str, epsilon: float) -> PrivacySpec:
    args = setting.args
    room = min(ROOM * args.batch_size, setting.fewest)
    sampling = (
        Poisson(setting.fewest, args.batch_size, longest=room)
        if PRIVATE[name].amplified
        else Cyclic(setting.fewest, args.batch_size)
    )
    mechanism, steps = _mechanism(args), args.rounds + 1
    try:
        return calibrate(
            name, mechanism, epsilon, sampling, steps=steps, delta=args.delta
        )
    except ImportError as error:
        raise ValueError(str(error)) from error


def _simulation(
    setting: Setting, name: str, noise: float, seed: int
) -> DecentralizedSimulation:
    args, task = setting.args, setting.task
    lr = arguments.PRIVATE_LR[name] if name not in args.lr else args.lr[name]
    algorithm: Callable[..., Any]
    if name in REFERENCES:
        beta = {"beta": args.beta} if name == "dm_hsgd" else {}
        algorithm = lambda grad: ALL[name](grad, lr=lr, **beta)
        sampler = always(shuffled_epochs)
    else:
        method = PRIVATE[name]
        task = task._replace(grad=per_example(task.grad))
        algorithm = partial(
            method.build, mechanism=_mechanism(args), noise=noise, lr=lr
        )
        room = min(ROOM * args.batch_size, setting.fewest)
        sampler = always(poisson(room)) if method.amplified else cyclic
    return decentralize(
        algorithm,
        task,
        setting.dataset,
        setting.parts[seed],
        weights=topology.metropolis(setting.graphs[seed]),
        batch_size=args.batch_size,
        sampler=sampler,
    )


def _play(simulation, args: arguments.Private, seed: int, tick) -> list[training.Row]:
    state = simulation.init(start_key(seed))
    every = max(1, args.rounds // 10)
    _, rows = training.run(
        simulation, state, rounds=args.rounds, evaluate_every=every, tick=tick
    )
    return rows


def _label(name: str) -> str:
    return ALL[name].label if name in REFERENCES else PRIVATE[name].label


def _report(args: arguments.Private, found, place, console: Console) -> None:
    title = (
        f"{args.dataset}, {args.agents} agents, {args.graph}, {args.rounds} "
        f"iterations, delta {args.delta:g}"
    )
    seeds = len(args.seeds)
    caption = (
        f"on the test set: mean ± standard deviation, {tables.count(seeds, 'seed')}"
    )
    table = Table(title=title, caption=caption)
    for column in ("method", "epsilon", "AUC, %"):
        table.add_column(column, justify="left" if column == "method" else "right")
    with (place / "summary.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("method", "epsilon", "auc_mean", "auc_std"))
        for (name, epsilon), scores in found.items():
            spread = np.std(scores, ddof=1) if len(scores) > 1 else np.nan
            writer.writerow((name, epsilon, np.mean(scores), spread))
            shown = tables.percent(float(np.mean(scores)), float(spread))
            table.add_row(_label(name), f"{epsilon:g}", shown)
    curves: dict[str, dict[float, list[float]]] = {}
    for (name, epsilon), scores in found.items():
        curves.setdefault(_label(name), {})[epsilon] = scores
    plots.utility(curves, place / "utility.png", title=title)
    console.print(table)
    console.print(f"statements, metrics and figures in {place}")
