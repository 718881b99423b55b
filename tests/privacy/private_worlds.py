"""Small private simulations to be audited, by name."""

from typing import Any, NamedTuple

import numpy as np

import fedjax_muon as fm
from fedjax_muon.algorithms import ALL as ALGORITHMS, fedavg
from fedjax_muon.decentralized import topology
from fedjax_muon.decentralized.private import PRIVATE
from fedjax_muon.decentralized.private_methods import (
    ALL as METHODS,
    ExamplePrivacy,
)
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.privacy.client_mechanism import AdaptiveClip
from fedjax_muon.privacy.client_privacy import ClientPrivacy
from fedjax_muon.privacy.correlated import Banded, BufferedToeplitz
from fedjax_muon.problems import Problem
from fedjax_muon.simulation.federated import federate
from tests.privacy.audits import audited, audited_together
from tests.privacy.canaries import Worlds, canary_data, canary_task
from tests.privacy.released import agent_worlds, client_worlds

AGENTS, CLIP, DELTA, LR = 3, 1.0, 1e-3, 0.1
BANDED = Banded((0.6, 0.58, 0.55))
BUFFERED = BufferedToeplitz((0.9, 0.3), (0.2, 0.3))
# the norm grows by a factor of 1.6 in a round, and is far below that of messages
ADAPTIVE = AdaptiveClip(quantile=1.0, initial=1e-3, lr=1.0, count_noise=0.75)
PROBLEMS = {f"{name}, on a problem": name for name in PRIVATE}
WEIGHTS = (np.eye(AGENTS) + np.full((AGENTS, AGENTS), 1 / AGENTS)) / 2


class Case(NamedTuple):
    """A small private simulation of agents; agent 0 has the canary."""

    method: str
    sizes: tuple[int, ...]
    batch: int
    noise: float
    rounds: int = 8
    fixed: bool = True  # noise from the seed, to reproduce an audit
    strategy: Any = None  # of correlated noise


CASES = {
    "dp_sgda": Case("dp_sgda", (8, 8, 8), 2, 1.0),
    "dp_ftrl": Case("dp_ftrl", (12, 12, 12), 2, 0.7, strategy=BANDED),
    "dp_ftrl_buffered": Case("dp_ftrl_buffered", (8, 8, 8), 2, 2.0, strategy=BUFFERED),
    "dpmixsgd": Case("dpmixsgd", (8, 8, 8), 2, 2.0),
    "dpmixsgd_inside": Case("dpmixsgd_inside", (8, 8, 8), 2, 1.0),
    "private_storm": Case("private_storm", (8, 8, 8), 2, 1.0),
    "rare batches": Case("dp_sgda", (16, 16, 16), 2, 0.7),
    "unequal agents": Case("dpmixsgd", (4, 16, 16), 2, 2.0),
    "full batches": Case("private_storm", (4, 4, 4), 4, 2.0),
    "short": Case("dp_sgda", (4, 4, 4), 4, 1.0, rounds=1),
    "secret": Case("dpmixsgd", (8, 8, 8), 2, 2.0, rounds=3, fixed=False),
}


def simulation_of(case: Case):
    """Makes the simulation of a case."""
    privacy = promise(
        rounds=case.rounds,
        noise_scale=case.noise,
        strategy=case.strategy,
        insecure_fixed_noise=case.fixed,
    )
    dataset, parts = canary_data(case.sizes, owner=0)
    task = canary_task(LR, period_of(case.method, case.sizes[0], case.batch))
    given = METHODS[case.method].function(lr=LR), task, dataset, parts
    sizes = {"weights": WEIGHTS, "batch_size": case.batch}
    return decentralize(*given, **sizes, privacy=privacy)


def promise(**given: Any) -> ExamplePrivacy:
    """The clip of all worlds of agents, with a noise scale."""
    usual = {"delta": DELTA, "clip_norm": CLIP, "change_clip_norm": CLIP / 5}
    return ExamplePrivacy(**usual, **given)


def period_of(name: str, examples: int, batch: int) -> int:
    """The period of the canary's sign, a cycle or two steps."""
    return 2 if PRIVATE[name].amplified else max(2, examples // batch)


def agents(case: Case) -> Worlds:
    """Makes the worlds of a case."""
    return agent_worlds(simulation_of(case), 0, WEIGHTS, LR)


def on_problem(name: str) -> Worlds:
    """Makes the worlds of a method on a problem, with a case's noise."""
    rounds, batch, number = 7, 2, 4
    dataset, parts = canary_data((8,) * number, owner=0)
    task = canary_task(LR, period_of(name, 8, batch))
    weights = topology.metropolis(topology.ring(number))
    divided, mixing = (lambda *_: parts), (lambda *_: weights)
    problem = Problem("canary", task, dataset, divided, {}, weights=mixing)
    noise = CASES[name].noise
    privacy = promise(rounds=rounds, noise_scale=noise, insecure_fixed_noise=True)
    given = {"batch_size": batch, "privacy": privacy}
    prepared = fm.simulate(METHODS[name].function(lr=LR), problem, **given)
    return agent_worlds(prepared, 0, weights, LR)


def clients(algorithm=None, number: int = 8, **changes: Any) -> Worlds:
    """Makes the worlds of a federated simulation; client 0 is the record."""
    usual: dict[str, Any] = {"clip_norm": CLIP, "cohort": 2, "rounds": 6}
    usual |= {"delta": 1e-2, "noise_multiplier": 1.0, "insecure_fixed_noise": True}
    privacy = ClientPrivacy(**usual | changes)
    alone = isinstance(privacy.clip_norm, AdaptiveClip)
    dataset, parts = canary_data((2,) * number, owner=0, together=True, alone=alone)
    simulation = federate(
        algorithm or fedavg(lr=LR),
        canary_task(LR),
        dataset,
        parts,
        local_steps=1,
        batch_size=2,
        privacy=privacy,
    )
    return client_worlds(simulation)


def prologue() -> Worlds:
    """Makes the worlds of FedMuon, whose clients first send a gradient."""
    return clients(ALGORITHMS["fedmuon"].function(lr=LR), rounds=1)


IN_TURN = {"number": 12, "rounds": 9, "noise_multiplier": 0.7, "strategy": BANDED}
TOGETHER = {"number": 4, "cohort": 4, "noise_multiplier": 4.0}
CLIENTS: dict[str, dict[str, Any]] = {
    "adaptive clip": {"clip_norm": ADAPTIVE},
    "adaptive clip, in turn": {"clip_norm": ADAPTIVE, **IN_TURN},
    "clients in turn": IN_TURN,
    "all clients": TOGETHER,
    "all clients, buffered": {"strategy": BUFFERED, **TOGETHER},
}


def worlds_of(setting: str) -> list[Worlds]:
    """Makes the worlds of a setting by its name; two runs have the same seeds."""
    if setting == "two runs":
        first = CASES["secret"]
        return [agents(first), agents(first._replace(noise=2 * first.noise))]
    if setting in CLIENTS:
        return [clients(**CLIENTS[setting])]
    if setting in PROBLEMS:
        return [on_problem(PROBLEMS[setting])]
    special = {"clients": clients, "prologue": prologue}
    make = special.get(setting)
    return [agents(CASES[setting]) if make is None else make()]


def audit_case(setting: str, seed: int, count: int) -> list[str]:
    """What an audit refutes of a setting."""
    several = worlds_of(setting)
    seen = [worlds.run_both(seed, count) for worlds in several]
    if len(several) == 1:
        return audited(several[0].record, *seen[0])
    absent, present = (list(kind) for kind in zip(*seen, strict=True))
    return audited_together([worlds.record for worlds in several], absent, present)
