"""Small private simulations to be audited, by name."""

import dataclasses
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from audits import audited, audited_together
from canaries import Worlds, canary_data, canary_task
from released import agent_worlds, client_worlds

from fedjax_muon.algorithms import ALL as ALGORITHMS, fedavg
from fedjax_muon.decentralized import topology
from fedjax_muon.decentralized.agent_privacy import AgentPrivacy
from fedjax_muon.decentralized.private import PRIVATE, Mechanism
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.privacy.client_mechanism import AdaptiveClip
from fedjax_muon.privacy.client_privacy import ClientPrivacy
from fedjax_muon.privacy.correlated import Banded, BufferedToeplitz
from fedjax_muon.runs import build
from fedjax_muon.runs.config import METHODS, Config, Run, hyper_parameters
from fedjax_muon.simulation.federated import federate

AGENTS, CLIP, DELTA, LR = 3, 1.0, 1e-3, 0.1
BANDED = Banded((0.6, 0.58, 0.55))
BUFFERED = BufferedToeplitz((0.9, 0.3), (0.2, 0.3))
# the norm grows by a factor of 1.6 in a round, and is far below that of messages
ADAPTIVE = AdaptiveClip(quantile=1.0, initial=1e-3, lr=1.0, count_noise=0.75)
COMMANDS = {f"train --algorithm {name}": name for name in PRIVATE}
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
    method = PRIVATE[case.method]
    privacy = AgentPrivacy(
        method,
        Mechanism(CLIP, CLIP / 5, 0.1, case.batch, case.strategy),
        rounds=case.rounds,
        delta=DELTA,
        noise_scale=case.noise,
        insecure_fixed_noise=case.fixed,
    )
    dataset, parts = canary_data(case.sizes, owner=0)
    task = canary_task(LR, period_of(method, case.sizes[0], case.batch))
    given = method.base(lr=LR), task, dataset, parts
    return decentralize(*given, weights=WEIGHTS, privacy=privacy)


def period_of(method, examples: int, batch: int) -> int:
    """The period of the canary's sign, a cycle or two steps."""
    return 2 if method.amplified else max(2, examples // batch)


def agents(case: Case) -> Worlds:
    """Makes the worlds of a case."""
    return agent_worlds(simulation_of(case), 0, WEIGHTS, LR)


def command(name: str) -> Worlds:
    """Makes the worlds of what `fedjax-muon train` trains, with a case's noise."""
    config = Config(
        problem="auc",
        num_clients=4,
        graph="ring",
        rounds=7,
        batch_size=2,
        epsilon=(3.0,),
        delta=DELTA,
        clip_norm=CLIP,
        change_clip_norm=CLIP / 5,
        insecure_fixed_noise=True,
    )
    run = Run(name, {}, 0, config)
    dataset, parts = canary_data((8,) * config.num_clients, owner=0)
    rate = hyper_parameters(METHODS[name])["lr"]
    task = canary_task(rate, period_of(PRIVATE[name], 8, config.batch_size))
    plain = build._agent_privacy
    given = {"epsilon": None, "noise_scale": CASES[name].noise}
    # calibration to an epsilon under Poisson sampling takes a minute
    known = lambda *made: dataclasses.replace(plain(*made), **given)
    with (
        mock.patch.object(build, "_agent_privacy", known),
        mock.patch.object(build, "parts_of", return_value=parts),
        mock.patch.object(build, "task_of", return_value=task),
    ):
        prepared = build.simulation_of(run, dataset)
    weights = topology.metropolis(build.graph_of(config, 0))
    return agent_worlds(prepared, 0, weights, rate)


def clients(algorithm=None, number: int = 8, **changes: Any) -> Worlds:
    """Makes the worlds of a federated simulation; client 0 is the record."""
    usual: dict[str, Any] = {"clip_norm": CLIP, "cohort_size": 2, "rounds": 6}
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
TOGETHER = {"number": 4, "cohort_size": 4, "noise_multiplier": 4.0}
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
    if setting in COMMANDS:
        return [command(COMMANDS[setting])]
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
