"""Federations of natural clients with privacy: methods, mechanisms and simulations."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

import fedjax_muon as fm
from experiments.studies.natural import start_key
from experiments.studies.natural_problems import Problem, hospitals
from fedjax_muon.core import Algorithm, message_shapes
from fedjax_muon.data import Dataset, natural
from fedjax_muon.data.loading import files_of
from fedjax_muon.decentralized.agent_privacy import AgentPrivacy
from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.engine import plans
from fedjax_muon.privacy import ClientPrivacy, best_banded
from fedjax_muon.privacy.client_mechanism import private_clients
from fedjax_muon.simulation import Simulation
from fedjax_muon.simulation.participation import poisson_cohorts

CONTEXT = 8  # characters that the next one is predicted from
NONE, CLIPPED = "none", "clipped"
LEVELS = {
    NONE: "without privacy",
    CLIPPED: "clipped, no noise",
    "10": "epsilon 10",
    "1": "epsilon 1",
}
PATIENT_ROUNDS, PATIENT_BATCH, PATIENT_CLIP = 200, 8, 1.0


class NextCharacter(nn.Module):
    """A network that predicts the next character from the last ones."""

    tokens: int
    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        seen = nn.Embed(self.tokens, 8)(x.astype(np.int32))
        hidden = nn.relu(nn.Dense(32)(seen.reshape(len(x), -1)))
        return nn.Dense(self.classes)(hidden)


class Federation(NamedTuple):
    """A problem, and what its privacy needs."""

    title: str
    problem: Problem
    delta: float
    clips: tuple[float, ...]
    room: int  # largest number of clients in a round
    exponents: dict[str, range]  # by method: half decades where its grid begins


def all_speakers() -> Federation:
    """All speakers of the plays."""
    dataset = natural.read_plays(files_of("plays").paths)
    dataset = dataset._replace(
        x_train=dataset.x_train[:, -CONTEXT:], x_test=dataset.x_test[:, -CONTEXT:]
    )
    assert dataset.owners is not None
    clients = len(np.unique(dataset.owners))
    problem = Problem(
        fm.data.check(dataset),
        NextCharacter(dataset.tokens, len(dataset.classes)),
        cohort_size=128,
        local_steps=4,
        batch_size=8,
        rounds=100,
        weightings=("uniform",),
        exponents={},
        tuning_seeds=(100,),
        seeds=(0, 1, 2),
        scores=lambda logits: {},
    )
    rates = {"dp_fedavg": range(-1, 2), "fedmuon": range(-4, -1)}
    rates |= {"dp_ftrl": range(-1, 2)}
    delta = float(f"{clients**-1.1:.2g}")
    return Federation("Shakespeare by speaker", problem, delta, (1.0,), 192, rates)


def four_hospitals() -> Federation:
    """The hospitals of FLamby's Fed-Heart-Disease.

    `privacy.buffered` finds the identity for clients in every round, so that DP-FTRL is
    DP-FedAvg and has no row.
    """
    rates = {"dp_fedavg": range(-5, -2), "fedmuon": range(-6, -3)}
    rates |= {"patients": range(-2, 1)}
    return Federation(
        "Heart disease by hospital", hospitals(), 1e-4, (0.1, 0.3), 4, rates
    )


FEDERATIONS = {"heart_disease": four_hospitals, "plays": all_speakers}


class Method(NamedTuple):
    """A private method; its learning rate is tuned."""

    label: str
    algorithm: Algorithm | None  # None: DP-SGD for single patients
    levels: tuple[str, ...] = tuple(LEVELS)
    correlated: bool = False


METHODS = {
    "dp_fedavg": Method("DP-FedAvg", fm.fedavg(0.1)),
    "dp_ftrl": Method("DP-FTRL", fm.fedavg(0.1), ("10", "1"), True),
    "fedmuon": Method("FedMuon", fm.fedmuon(0.1)),
    "patients": Method("DP-SGD for single patients", None, ("10", "1")),
}


def client_privacy(
    federation: Federation, method: Method, level: str, clip: float, clients: int
) -> ClientPrivacy:
    """The mechanism of a method at an epsilon."""
    problem, epsilon = federation.problem, float(level)
    size, strategy = problem.cohort_size, None
    if method.correlated:
        strategy = best_banded(
            clients, size, problem.rounds, epsilon=epsilon, delta=federation.delta
        )
    privacy = ClientPrivacy(
        clip_norm=clip,
        cohort_size=size,
        rounds=problem.rounds,
        delta=federation.delta,
        epsilon=epsilon,
        strategy=strategy,
        insecure_fixed_noise=True,
    )
    room = min(federation.room, clients // privacy.cycle(clients))
    return dataclasses.replace(privacy, max_cohort=room)


def simulation_of(
    federation: Federation, method: Method, level: str, clip: float, dataset: Dataset
) -> Simulation:
    """Prepares a method on all clients of a data set."""
    problem = federation.problem
    assert dataset.owners is not None
    parts = fm.partition.by_owner(dataset.owners)
    task = fm.tasks.classification(problem.model, dataset)
    if method.algorithm is None:
        return _for_patients(federation, level, clip, task, dataset, parts)
    algorithm, clients = method.algorithm, len(parts)
    settings: dict[str, Any] = {"plan": plans.vmapped}
    settings |= {"local_steps": problem.local_steps, "batch_size": problem.batch_size}
    if level not in (NONE, CLIPPED):
        privacy = client_privacy(federation, method, level, clip, clients)
        return fm.federate(algorithm, task, dataset, parts, **settings, privacy=privacy)
    if level == CLIPPED:
        sizes = {"clients": clients, "cohort": problem.cohort_size}
        algorithm = private_clients(
            algorithm, clip_norm=clip, noise_multiplier=0.0, **sizes
        )
        if problem.cohort_size < clients:
            settings["cohorts"] = poisson_cohorts(federation.room)
    size = problem.cohort_size
    return fm.federate(algorithm, task, dataset, parts, **settings, cohort_size=size)


@functools.cache  # takes a minute
def patient_privacy(
    clip: float, delta: float, epsilon: float, examples: int
) -> AgentPrivacy:
    """The mechanism of single patients, with the noise that the smallest agent needs.

    Args:
      clip: Clip norm of a patient's gradient.
      delta: Of the guarantee.
      epsilon: Of the guarantee.
      examples: Number of patients of the smallest hospital, which is protected least.

    Returns:
      The mechanism.
    """
    calibrate = AgentPrivacy(
        PRIVATE["dp_sgda"],
        Mechanism(clip, clip, 1.0, PATIENT_BATCH),
        rounds=PATIENT_ROUNDS,
        delta=delta,
        epsilon=epsilon,
        insecure_fixed_noise=True,
    )
    noise_scale = calibrate.calibrated([examples]).noise_scale
    return dataclasses.replace(calibrate, epsilon=None, noise_scale=noise_scale)


def _for_patients(
    federation: Federation,
    level: str,
    clip: float,
    task: Any,
    dataset: Dataset,
    parts: Sequence[np.ndarray],
) -> Simulation:
    """DP-SGD in every hospital, whose noisy gradients are averaged."""
    owners = federation.problem.dataset.owners
    assert owners is not None
    fewest = int(np.bincount(owners).min())
    privacy = patient_privacy(clip, federation.delta, float(level), fewest)
    weights = np.full((len(parts), len(parts)), 1 / len(parts))
    algorithm = fm.decentralized.dsgd(lr=0.1)
    return fm.decentralize(
        algorithm, task, dataset, parts, weights=weights, privacy=privacy
    )


def noise_of(simulation: Simulation) -> float:
    """The noise multiplier of a simulation, 0 without noise."""
    if simulation.guarantee is None:
        return 0.0
    (release,) = simulation.guarantee.spec.releases.values()
    return float(getattr(release.noise, "multiplier", math.nan))


def params_of(
    simulation: Simulation, method: Method, lr: float, seed: int, rounds: int
) -> Any:
    """Trains a simulation at a rate; returns the parameters, the mean of agents'."""
    one = simulation.vary(hyper={"lr": lr})
    state = one.init(start_key(seed))
    if method.algorithm is None:
        rounds = PATIENT_ROUNDS
    state, _ = one.train_rounds(state, rounds)
    params = jax.device_get(state.params)
    if method.algorithm is None:
        params = jax.tree.map(lambda x: x.mean(0), params)
    return params


def clips_of(federation: Federation, method: str, level: str) -> tuple[float, ...]:
    """The clip norms that are tried; 0 without a clip."""
    if METHODS[method].algorithm is None:
        return (PATIENT_CLIP,)
    return (0.0,) if level == NONE else federation.clips


def message_size(federation: Federation, method: Method) -> int:
    """How many numbers a client sends in a round."""
    assert method.algorithm is not None
    problem = federation.problem
    task = fm.tasks.classification(problem.model, problem.dataset)
    params = jax.eval_shape(task.init, jax.random.key(0))
    sent = message_shapes(method.algorithm, params)[-1]
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(sent))
