"""The tracks of the board: a problem, the sizes of a round, and how rows run there."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import fedjax_muon as fm
from experiments.board.row import Row, algorithm_of
from experiments.studies import client_privacy, language_models, natural_problems
from fedjax_muon import attacks
from fedjax_muon.core import Algorithm, Hyper, recorded
from fedjax_muon.data import Dataset
from fedjax_muon.decentralized.topology import metropolis, ring as ring_of
from fedjax_muon.privacy import Poisson
from fedjax_muon.privacy.client_mechanism import message_fields, private_clients
from fedjax_muon.privacy.client_privacy import client_spec, keeps_states
from fedjax_muon.privacy.guarantees import PrivacySpec, calibrated
from fedjax_muon.problems import Problem
from fedjax_muon.runs import simulate, summary
from fedjax_muon.runs.simulate import start_key
from fedjax_muon.simulation import Simulation
from fedjax_muon.tasks import metrics
from fedjax_muon.tasks.task import Limit

TESTED, SCORED = 4000, 512  # test examples at most; training examples in a score
STEP_SECONDS, BYTE_SECONDS, SPREAD = 0.01, 1e-6, 1.0  # of the virtual clock
EPSILON, CLIP_NORM = 8.0, 0.3
SECONDS, SLOWEST, LEFT_OUT = 400.0, 16.0, 1 / 3  # of stragglers
ATTACKERS = range(4)  # of 20 clients
ATTACKS = {
    "sign flip": attacks.sign_flip(),
    "inner product": attacks.inner_product(2.0),
    "ALIE": attacks.alie(1.5),
    "Gaussian": attacks.gaussian(1.0),
}

HEADS = {"fashion_classes": "2 classes", "stragglers": "slow", "attackers": "attacks"}


class Track(NamedTuple):
    """A track of the board; RULES.md lists them."""

    title: str
    problem: Callable[[Path | None], Problem]  # directory of the data -> problem
    rounds: int
    evaluations: int  # of a final run
    # (algorithm, row, problem, seed, rounds, variant) -> simulation
    simulate: Callable[..., Simulation]
    baseline: str = "fedavg"  # what rows are compared with
    # where the search of an option of the track begins, in place of the row's own
    option: Mapping[str, float] = {}
    # a run trains on all of them, and has the worst of their scores
    variants: tuple[str, ...] = ("",)
    fits: Callable[..., int] | None = None  # (row, problem) -> its number of rounds
    trials: int = 14
    seeds: int = 10
    worst: float = 0.0  # the score of a run that diverges
    timed: bool = False  # whether the seconds to the target are virtual ones

    def space(self, row: Row) -> dict[str, float]:
        """Where the search of a row begins here."""
        if self.option:
            return {"lr": row.space["lr"], **self.option}
        return dict(row.space)

    def rounds_of(self, row: Row, problem: Problem) -> int:
        """The rounds of a row: with other clients or steps, those of as many bytes, or
        of as many steps with one step."""
        return self.fits(row, problem) if self.fits else self.rounds

    def simulation(
        self, row: Row, problem: Problem, seed: int = 0, variant: str = ""
    ) -> Simulation:
        """A row on the clients of a seed."""
        rounds = self.rounds_of(row, problem)
        other = {} if row.option is None else {"other": row.space[row.option]}
        algorithm = algorithm_of(row, rounds, lr=row.space["lr"], **other)
        return self.simulate(algorithm, row, problem, seed, rounds, variant)

    def better(self, scores: Iterable[float]) -> float:
        """The best of some scores."""
        return min(scores) if self.worst else max(scores)

    def points(self, difference: Any) -> Any:
        """How much better by a difference of scores, in points; fiftieths of a bit."""
        return -50 * difference if self.worst else 100 * difference

    def hyper(self, row: Row, values: Mapping[str, float]) -> dict[str, float]:
        """The hyperparameters of a cell with these options."""
        names = {"lr": "lr", **{name: name for name in self.option}}
        return {names.get(name, "other"): value for name, value in values.items()}


def head(track: str) -> str:
    """The name of a track over a column."""
    return HEADS.get(track, track)


def score_of(problem: Problem) -> summary.Score:
    """What runs on a problem are ranked by."""
    return summary.score_of(problem.task.metrics)


def _held(problem: Problem, share: float) -> Problem:
    """The problem with validation examples, at most TESTED test examples, and training
    examples that are hardly scored."""
    held, first = problem.with_validation(share), slice(TESTED)
    data = held.dataset
    data = data._replace(x_test=data.x_test[first], y_test=data.y_test[first])
    task = held.task._replace(scored=Limit(SCORED))
    return dataclasses.replace(held, dataset=data, task=task)


def labeled(dataset: Dataset | str, model: Any, share: float, **how: Any) -> Problem:
    made = fm.problems.classification(dataset, model=lambda data: model, **how)
    return _held(made, share)


def digits(data_dir: Path | None) -> Problem:
    del data_dir
    return labeled("digits", fm.models.MLP(10, (64, 64)), 0.1)


def fashion(data_dir: Path | None) -> Problem:
    lenet = fm.models.LeNet(10)
    return labeled(fm.data.load("fashion_mnist", data_dir), lenet, 1 / 30)


def fashion_classes(data_dir: Path | None) -> Problem:
    lenet, two = fm.models.LeNet(10), two_classes
    data = fm.data.load("fashion_mnist", data_dir)
    return labeled(data, lenet, 1 / 30, divide=two)


def two_classes(labels: Any, clients: int, *, key: jax.Array) -> Any:
    return fm.partition.labels_per_client(labels, clients, 2, key=key)


def _natural(problem: natural_problems.Problem) -> Problem:
    data, held = natural_problems.divided(problem.dataset)
    made = fm.problems.classification(
        data, model=lambda data: problem.model, divide=fm.partition.by_owner
    )
    return _held(dataclasses.replace(made, validation=held), 0.0)


def heart(data_dir: Path | None) -> Problem:
    del data_dir
    return _natural(natural_problems.hospitals())


def plays(data_dir: Path | None) -> Problem:
    del data_dir
    return _natural(natural_problems.speakers())


def private_digits(data_dir: Path | None) -> Problem:
    del data_dir
    divide = functools.partial(fm.partition.dirichlet, alpha=1.0, min_size=1)
    model = client_privacy.Network()
    return labeled("digits", model, 0.1, clients=client_privacy.CLIENTS, divide=divide)


def slow_digits(data_dir: Path | None) -> Problem:
    del data_dir
    divide = functools.partial(fm.partition.dirichlet, alpha=0.3, min_size=1)
    model = fm.models.MLP(10, (64, 64))
    return labeled("digits", model, 0.1, clients=100, divide=divide)


def attacked_digits(data_dir: Path | None) -> Problem:
    del data_dir
    model = fm.models.MLP(10, (64, 64))
    return labeled("digits", model, 0.1, clients=20, alpha=1.0)


def income(data_dir: Path | None) -> Problem:
    """Two classes, whose AUC is the score; minimax methods train it."""
    model = fm.models.MLP(2, (32,))
    divide = functools.partial(fm.partition.dirichlet, alpha=0.3, min_size=64)
    made = labeled(fm.data.load("a9a", data_dir), model, 1 / 16, divide=divide)
    plain, data = made.task, made.dataset

    def evaluate(params: Any, x: Any, y: Any) -> Any:
        logits: Any = model.apply({"params": params}, x)
        return plain.evaluate(params, x, y) | {"score": logits[:, 1] - logits[:, 0]}

    scores = {**plain.metrics, "auc": metrics.auc}
    task = plain._replace(evaluate=evaluate, metrics=scores)
    # exact diffusion needs eigenvalues above -1/3, the smallest one without the mean
    lazy = lambda agents, key: (np.eye(agents) + metropolis(ring_of(agents))) / 2
    share = float(data.y_train.mean())
    minimax = fm.tasks.auc(model, data, share=share)._replace(scored=plain.scored)
    return dataclasses.replace(
        made, task=task, weights=lazy, public_task=lambda data: minimax
    )


def text(data_dir: Path | None) -> Problem:
    """The longest parts of Shakespeare's plays, in characters."""
    del data_dir
    made = language_models.problem_of(language_models.dataset_of("plays"), 4)
    return _held(made, 0.05)


def federated(
    algorithm: Any,
    row: Row,
    problem: Problem,
    seed: int,
    rounds: int,
    variant: str,
    **sizes: Any,
) -> Simulation:
    """A row with a server, whose clients have different speeds."""
    del rounds, variant
    clock = fm.clocks.lognormal(
        SPREAD, STEP_SECONDS, BYTE_SECONDS, key=jax.random.key(0)
    )
    sizes |= row.sizes
    number = sizes.pop("cohort")
    return simulate(algorithm, problem, seed, cohort=fm.timed(number, clock), **sizes)


IMAGES = functools.partial(federated, cohort=8, local_steps=5, batch_size=32)
HOSPITALS = functools.partial(federated, cohort=4, local_steps=100, batch_size=4)
SPEAKERS = functools.partial(federated, cohort=8, local_steps=5, batch_size=8)
WINDOWS = functools.partial(federated, cohort=4, local_steps=30, batch_size=4)


def equal_bytes(rounds: int, cohort: int, row: Row, problem: Problem) -> int:
    """As many rounds as send the bytes of the track."""
    del problem
    return rounds * cohort // int(row.sizes.get("cohort", cohort))


def equal_steps(steps: int, local_steps: int, row: Row, problem: Problem) -> int:
    """As many rounds as train on the tokens of the track."""
    del problem
    return steps // int(row.sizes.get("local_steps", local_steps))


@recorded
def noisy(
    algorithm: Algorithm,
    *,
    clip_norm: Hyper = CLIP_NORM,
    noise_multiplier: float,
    fields: tuple[str, ...] = (),
) -> Algorithm:
    """A method with private clients, whose clip norm a sweep can vary."""
    norms: Any = dict.fromkeys(fields, clip_norm) if fields else clip_norm
    return private_clients(
        algorithm,
        clip_norm=norms,
        noise_multiplier=noise_multiplier,
        clients=client_privacy.CLIENTS,
        cohort=client_privacy.EXPECTED,
    )


@functools.cache
def guarded(rounds: int, prologue: bool, states: bool) -> PrivacySpec:
    """What a method releases, with the least noise for EPSILON."""
    clients = client_privacy.CLIENTS
    room = clients if states else client_privacy.ROOM  # states need room for all
    spec = client_spec(
        Poisson(clients, client_privacy.EXPECTED, room),
        rounds=rounds,
        noise_multiplier=1.0,
        delta=client_privacy.DELTA,
        prologue=prologue,
        private_states=states,
    )
    return calibrated(spec, EPSILON)


def private(
    algorithm: Any, row: Row, problem: Problem, seed: int, rounds: int, variant: str
) -> Simulation:
    """The same with private clients in Poisson cohorts, and noise from the seed."""
    params = jax.eval_shape(problem.task.init, jax.random.key(0))
    states = keeps_states(algorithm, params)
    # Poisson batches, with the noise inside
    spec: Any = guarded(rounds, bool(algorithm.prologue), states)
    (release,) = spec.releases.values()
    fields = tuple(message_fields(algorithm, params)) if row.fields_apart else ()
    made = noisy(algorithm, noise_multiplier=release.noise.multiplier, fields=fields)
    return simulate(
        made,
        problem,
        seed,
        cohort=fm.poisson(client_privacy.EXPECTED, spec.sampling.max_batch),
        local_steps=client_privacy.STEPS,
        batch_size=client_privacy.BATCH,
    )


def on_a_ring(
    algorithm: Any, row: Row, problem: Problem, seed: int, rounds: int, variant: str
) -> Simulation:
    """A row without a server; minimax methods train the AUC."""
    assert problem.public_task is not None
    task = problem.public_task(problem.dataset) if row.minimax else problem.task
    plain = dataclasses.replace(problem, task=task, public_task=None)
    return simulate(algorithm, plain, seed, batch_size=32)


def slow_clients(row: Row) -> Any:
    """The cohort of a row, and how long jobs take: at most SLOWEST seconds."""
    slower = SLOWEST ** np.random.default_rng(0).uniform(size=100)
    deadline = float(np.quantile(slower, 1 - LEFT_OUT))
    waiting = lambda clock, deadline: fm.timed(20, clock)
    return row.sizes.get("cohort", waiting)(fm.clocks.measured(slower / 5), deadline)


def with_stragglers(
    algorithm: Any, row: Row, problem: Problem, seed: int, rounds: int, variant: str
) -> Simulation:
    return simulate(
        algorithm, problem, seed, cohort=slow_clients(row), local_steps=5, batch_size=16
    )


def in_time(row: Row, problem: Problem) -> int:
    """As many rounds as take SECONDS of virtual time with seed 0."""
    algorithm = algorithm_of(row, 1, lr=row.space["lr"])
    simulation = with_stragglers(algorithm, row, problem, 0, 1, "")
    start = simulation.program.create(simulation.data, simulation.run, start_key(0))
    timing = simulation.meter.timing(start[1])
    assert timing is not None
    low, high = 1, 4096
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if timing.seconds(middle) <= SECONDS else (low, middle)
        )
    return low


def attacked(
    algorithm: Any, row: Row, problem: Problem, seed: int, rounds: int, variant: str
) -> Simulation:
    """A row a fifth of whose clients attack."""
    made = fm.attack(algorithm, ATTACKS[variant], ATTACKERS)
    return simulate(made, problem, seed, cohort=20, local_steps=5, batch_size=32)


TRACKS = {
    "digits": Track(
        "Handwritten digits, Dirichlet(0.1)",
        digits,
        100,
        20,
        IMAGES,
        fits=functools.partial(equal_bytes, 100, 8),
    ),
    "fashion": Track("Fashion-MNIST, Dirichlet(0.1)", fashion, 30, 10, IMAGES),
    "fashion_classes": Track(
        "Fashion-MNIST, two classes per client", fashion_classes, 30, 10, IMAGES
    ),
    "heart": Track("Heart disease by hospital", heart, 15, 15, HOSPITALS),
    "plays": Track("Shakespeare's plays by speaker", plays, 40, 10, SPEAKERS),
    "tokens": Track(
        "Language model of Shakespeare's plays",
        text,
        12,
        6,
        WINDOWS,
        baseline="fedavg_tokens",
        fits=functools.partial(equal_steps, 360, 30),
        trials=8,
        seeds=5,
        worst=8.0,
    ),
    "private": Track(
        "Private clients, epsilon 8",
        private_digits,
        30,
        10,
        private,
        option={"clip_norm": CLIP_NORM},
    ),
    "stragglers": Track(
        "Slow clients, 400 virtual seconds",
        slow_digits,
        0,
        20,
        with_stragglers,
        baseline="fedavg_waiting",
        fits=in_time,
        timed=True,
    ),
    "attackers": Track(
        "A fifth of the clients attack",
        attacked_digits,
        30,
        10,
        attacked,
        baseline="fedavg_trimmed_mean",
        variants=tuple(ATTACKS),
    ),
    "ring": Track(
        "Income on a ring of agents, AUC", income, 200, 20, on_a_ring, baseline="dsgd"
    ),
}
