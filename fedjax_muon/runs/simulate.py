"""Simulations of methods on problems: the only place that asks if there is a server."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import jax
import numpy as np

from fedjax_muon.core import Algorithm, check_choice, streams
from fedjax_muon.core.hyperparameters import plain
from fedjax_muon.data.dataset import OnDisk
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.mixing import Mixer
from fedjax_muon.decentralized.private import PrivateAgents
from fedjax_muon.decentralized.private_methods import ExamplePrivacy
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.engine.plans import Plan
from fedjax_muon.privacy.client_privacy import ClientPrivacy
from fedjax_muon.problems import Problem, key_of
from fedjax_muon.runs import summary
from fedjax_muon.simulation.arguments import check_algorithm, on_device
from fedjax_muon.simulation.cohorts import Cohort, as_cohort, needs_key
from fedjax_muon.simulation.federated import federate
from fedjax_muon.simulation.participation import Epochs
from fedjax_muon.simulation.rounds import Weighting
from fedjax_muon.simulation.simulation import Simulation

Method = Algorithm | Gossip | PrivateAgents  # with a server, or without one
# arguments that a problem decides, or that come first
OF_PROBLEM = ("algorithm", "task", "dataset", "parts", "test_parts", "weights")


class Settings(TypedDict, total=False):
    """Arguments of `federate` and `decentralize`, in place of a problem's own sizes."""

    cohort: int | Cohort | None
    local_steps: int | Sequence[int] | None
    local_epochs: Epochs | None
    batch_size: int
    first_size: int | None
    plan: Plan | None
    sampler: Any  # of clients, or a function of the iteration that makes one of agents
    weighting: Weighting
    mixer: Callable[[np.ndarray], Mixer]
    devices: Sequence[jax.Device]
    split_examples: bool
    own_norms: bool
    privacy: Any  # a promise, or in `compare` a list of them


def simulate(
    method: Method, problem: Problem, seed: int = 0, **how: Unpack[Settings]
) -> Simulation:
    """Prepares a method on the clients of a seed.

    Args:
      method: An algorithm with a server, such as `fm.fedmuon(lr=0.03)`, or without one,
        such as `fm.decentralized.dsgd(lr=0.1)`.
      how: Arguments of `federate`, or of `decentralize`, in place of the problem's own
        sizes. A clock that is a function of `key`, such as
        `fm.timed(8, partial(fm.clocks.lognormal, 1.0))`, gives every seed other speeds.

    Example:
      >>> problem = fm.problems.classification(alpha=0.5)
      >>> simulation = simulate(fm.fedavg(lr=0.1), problem, batch_size=16)
    """
    settings = settings_of(method, problem, how)
    division = division_seed(seed, how)
    parts = problem.parts(division)
    if (clock := _clock_of(settings)) is not None and needs_key(clock):
        clock = clock(key=key_of(seed, streams.CLOCK))
        settings["cohort"] = dataclasses.replace(settings["cohort"], clock=clock)
    task = problem.task
    served = isinstance(method, Algorithm)
    if problem.public_task and (not served or settings.get("privacy") is not None):
        task = problem.public_task(problem.dataset)
    if served:
        if needs_all(method, problem, how):
            settings["cohort"] = len(parts)
        settings["test_parts"] = problem.tests(division, parts)
    else:
        settings["weights"] = problem.mixing(seed, len(parts))
    return made_by(method)(method, task, problem.dataset, parts, **settings)


def promised(how: Mapping[str, Any], problem: Problem, rounds: int) -> dict[str, Any]:
    """The settings of a call, whose promises have its rounds and its cohort.

    A promise of several epsilons becomes a list of promises.
    """
    how, given = dict(how), how.get("privacy")
    if not isinstance(given, ClientPrivacy | ExamplePrivacy | list | tuple):
        return how
    promises = []
    for each in given if isinstance(given, list | tuple) else [given]:
        changes: dict[str, Any] = {} if each.rounds else {"rounds": rounds}
        if isinstance(each, ClientPrivacy) and not each.cohort:
            size = how.pop("cohort", problem.sizes.get("cohort"))
            if not isinstance(size, int):
                raise ValueError(
                    "a private run decides how clients are sampled; give cohort a "
                    f"number, got {size!r:.60}"
                )
            changes["cohort"] = size
        several = each.epsilon if isinstance(each.epsilon, tuple) else (each.epsilon,)
        for epsilon in several:
            promises.append(dataclasses.replace(each, **changes, epsilon=epsilon))
    alone = len(promises) == 1 and not isinstance(given, list | tuple)
    return how | {"privacy": promises[0] if alone else promises}


def division_seed(seed: int, how: Mapping[str, Any]) -> int:
    """The seed that divides the examples: private clients are the same in all runs.

    Their guarantees compose only over runs with the same clients.
    """
    return 0 if isinstance(how.get("privacy"), ClientPrivacy) else seed


def check_problem(problem: Any) -> None:
    """Raises `TypeError` for what is not a problem."""
    if not isinstance(problem, Problem):
        raise TypeError(
            "problem must be a Problem, such as problems.classification(), got "
            f"{type(problem).__name__}"
        )


def settings_of(
    method: Method, problem: Problem, how: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of `federate` or `decentralize`: the problem's, and those given."""
    make, privacy = made_by(method), how.get("privacy")
    check_problem(problem)
    kind: type = ClientPrivacy if make is federate else ExamplePrivacy
    if privacy is not None and not isinstance(privacy, kind):
        got = type(privacy).__name__
        raise TypeError(f"{method!r}: privacy must be a {kind.__name__}, got {got}")
    known = [*inspect.signature(make).parameters]
    other = inspect.signature(federate if make is decentralize else decentralize)
    for name in how:
        if name in OF_PROBLEM:
            raise ValueError(f"the problem decides {name}; leave it out")
        if name not in known and name in other.parameters:
            lacks = "a server" if make is decentralize else "a graph of agents"
            raise ValueError(f"{name} needs {lacks}, but {name_of(method)} has none")
        check_choice("option", name, [x for x in known if x not in OF_PROBLEM])
    sizes = {name: size for name, size in problem.sizes.items() if name in known}
    decided = {"local_epochs": "local_steps", "privacy": "cohort"}
    for name, size in decided.items():
        if how.get(name) is not None:
            sizes.pop(size, None)
    return sizes | {name: plain(value) for name, value in how.items()}


def _clock_of(settings: Mapping[str, Any]) -> Any:
    return getattr(settings.get("cohort"), "clock", None)


def needs_all(method: Method, problem: Problem, how: Mapping[str, Any]) -> bool:
    """Whether a method is given all clients in every round, since it needs them."""
    free = "cohort" in settings_of(method, problem, how).keys() - how.keys()
    return free and getattr(method, "full_participation", False)


def made_by(method: Method) -> Callable[..., Simulation]:
    """The function that prepares a method; raises `TypeError` if it is none."""
    if isinstance(method, Simulation):
        raise TypeError(
            "train a simulation with fm.run(simulation, state, rounds=100); give a "
            "method, such as fm.fedmuon()"
        )
    if not isinstance(method, Method):
        check_algorithm(method, Algorithm, "decentralize")
    return federate if isinstance(method, Algorithm) else decentralize


def of_seed(
    first: Simulation,
    method: Method,
    problem: Problem,
    seed: int,
    how: Mapping[str, Any],
) -> Simulation:
    """A simulation on the clients of another seed, with the programs of the first.

    The noise of private runs, and a clock of every seed, need another simulation.
    """
    if how.get("privacy") is not None or _clock_of(how) is not None:
        return simulate(method, problem, seed, **how)
    parts = problem.parts(seed)
    if isinstance(method, Algorithm):
        return first.at(parts=parts, test_parts=problem.tests(seed, parts))
    return first.at(parts=parts, weights=problem.mixing(seed, len(parts)))


def start_key(seed: int) -> jax.Array:
    """The key that the parameters, cohorts and batches of a run come from."""
    return key_of(seed, streams.TRAINING)


def shared(problem: Problem, how: Mapping[str, Any]) -> Problem:
    """A problem whose examples are on the device, where all its simulations share them.

    On several devices, every simulation places its own.
    """
    if how.get("devices"):
        return problem
    dataset = problem.dataset
    x: Any = {n: getattr(dataset, n) for n in ("x_train", "x_test")}
    x = {n: on_device(each) for n, each in x.items() if not isinstance(each, OnDisk)}
    return dataclasses.replace(problem, dataset=dataset._replace(**x))


def name_of(method: Method) -> str:
    """The name of the function that made a method, without wrappers."""
    recipe = getattr(method, "recipe", None)
    if recipe is None:
        return type(method).__name__
    inner = recipe.arguments.get("algorithm")
    wraps = isinstance(inner, Method)
    return name_of(inner) if wraps else recipe.function.__name__


def title_of(method: Method, problem: Problem, how: Mapping[str, Any]) -> str:
    """The problem and who takes part in a round, in a line."""
    settings = settings_of(method, problem, how)
    if not isinstance(method, Algorithm):
        graph = problem.call.get("graph")
        return f"{problem.name}, {graph if isinstance(graph, str) else 'on a graph'}"
    privacy = settings.get("privacy")
    cohort = settings.get("cohort")
    cohort = cohort if privacy is None else getattr(privacy, "cohort", None)
    taken = "None per round" if cohort is None else as_cohort(cohort).summary
    epochs = settings.get("local_epochs")
    if epochs is None:
        return f"{problem.name}, {taken}, {settings.get('local_steps')} local steps"
    several = epochs if isinstance(epochs, tuple | list) else (epochs,)
    return f"{problem.name}, {taken}, {' to '.join(map(str, several))} local epochs"


def score_of(problem: Problem) -> str:
    """What methods are ranked by, as tables call it."""
    return summary.score_of(problem.task.metrics).words


def check_seeds(seeds: Sequence[int]) -> None:
    """Raises `ValueError` unless seeds are some, each once."""
    several = isinstance(seeds, Sequence) and not isinstance(seeds, str)
    if not several or not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(
            f"seeds must be one or more numbers, each once, got {seeds!r:.60}"
        )
