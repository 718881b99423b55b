"""What the server and all nodes of a deployed federation agree on.

Both sides make the same `Federation`, from the same program or configuration. The
server's description travels with every request, and a node that has another one says
which entry differs.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from fedjax_muon.core import Algorithm, Exchange, check_count
from fedjax_muon.core.recipe import described, in_words
from fedjax_muon.deploy.messages import plain, schema
from fedjax_muon.engine import plans
from fedjax_muon.privacy.client_privacy import ClientPrivacy
from fedjax_muon.privacy.guarantees import Guarantee
from fedjax_muon.simulation.arguments import check_algorithm, check_task
from fedjax_muon.simulation.batching import Sampler, shuffled_epochs
from fedjax_muon.simulation.cohorts import Cohort
from fedjax_muon.simulation.participation import equal, participation, uniform
from fedjax_muon.simulation.program import numbers
from fedjax_muon.simulation.rounds import Setup, Weighting, check_setup, traced
from fedjax_muon.tasks.task import Task, as_argument
from fedjax_muon.versions import PACKAGE_VERSION
from fedjax_muon.wrappers.secure_sums import is_summed

SERVED_ONCE = (
    "the run is served once: a server that is started again has its directory, its "
    "checkpoints are never put back from a backup, and no two servers use copies of "
    "them"
)


class Federation(NamedTuple):
    """Settings that the server and all nodes share; see `federation`."""

    setup: Setup
    max_client_size: int  # bound of the clients' numbers of examples
    classes: int
    guarantee: Guarantee | None = None  # of a private run

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All exchanges, the prologue's first."""
        algorithm = self.setup.algorithm
        return (*algorithm.prologue, *algorithm.exchanges)

    @property
    def first(self) -> int:
        """Number of the first exchange after the prologue."""
        return len(self.setup.algorithm.prologue)

    @property
    def sums_secretly(self) -> bool:
        """Whether the server learns sums of messages alone, see `fm.secure_sums`."""
        return is_summed(self.setup.algorithm)

    def steps(self, number: int) -> int:
        """Local steps of an exchange: one in the prologue."""
        work, size = self.setup.work, self.setup.batch_size
        return 1 if number < self.first else work.bound(self.max_client_size, size)

    @property
    def inputs(self) -> tuple[Task, dict[str, Any]]:
        """Arrays of the task, and hyperparameters.

        They are arguments of the compiled programs as in a simulation, since constants
        would be rounded differently.
        """
        return self.setup.task, numbers(self.setup.algorithm)

    def with_inputs(self, inputs: tuple[Task, dict[str, Any]]) -> "Federation":
        """The same federation with traced inputs."""
        return self._replace(setup=traced(self.setup, *inputs))

    def told(self, number: int, present: int) -> int:
        """Number of clients in an exchange, as nodes are told.

        With privacy it is the expected one, since who takes part is a secret.
        """
        if self.guarantee is None:
            return present
        setup = self.setup
        return setup.num_clients if number < self.first else setup.cohort.size

    def turn(self, index: int, number: int) -> int:
        """Numbers the exchanges of all rounds, from 0."""
        rounds = index * len(self.setup.algorithm.exchanges)
        return number if number < self.first else number + rounds


def federation(
    algorithm: Algorithm,
    task: Task,
    *,
    num_clients: int,
    cohort: int | Cohort | None = None,
    local_steps: int,
    batch_size: int,
    max_client_size: int,
    classes: int,
    sampler: Sampler = shuffled_epochs,
    weighting: Weighting = uniform,
    privacy: ClientPrivacy | None = None,
    own_norms: bool = False,
) -> Federation:
    """Describes a federation whose clients have their own data.

    Args:
      num_clients: N, the number of clients; their ids are 0 to N - 1.
      cohort: Who takes part in a round. With `fm.buffered(50, 10)`, rounds are
        asynchronous: one is a step of the server, which takes messages as they come.
      max_client_size: Upper bound on a client's number of examples, a power of two.
      weighting: With `by_examples`, nodes report their numbers of examples.
      privacy: Makes the run private for clients. The server clips messages and adds the
        noise, so it must be trusted, and so must its channels to the nodes, its
        checkpoints and its list of missing answers.

    The other arguments are those of `federate`.
    """
    check_algorithm(algorithm, Algorithm, "decentralize")
    check_task(task)
    check_count("num_clients", num_clients)
    algorithm, members, guarantee = participation(
        algorithm, task, num_clients, cohort, privacy, own_norms
    )
    _check_real(members)
    sizes = {"batch_size": batch_size}
    sizes |= {"max_client_size": max_client_size, "classes": classes}
    for name, size in sizes.items():
        check_count(name, size)
    setup = Setup(
        algorithm=algorithm,
        task=as_argument(task),
        num_clients=num_clients,
        cohort=members,
        work=equal(local_steps),
        batch_size=batch_size,
        plan=plans.mapped,
        sampler=sampler,
        weighting=weighting,
        devices=(),
        split_examples=False,
        privacy=privacy,
    )
    check_setup(setup)
    if guarantee is not None:
        assumptions = (*guarantee.assumptions, SERVED_ONCE)
        guarantee = dataclasses.replace(guarantee, assumptions=assumptions)
    return Federation(setup, max_client_size, classes, guarantee)


def _check_real(cohort: Cohort) -> None:
    """Raises `ValueError` for a cohort of virtual clients."""
    if getattr(cohort, "recorded", None) is not None:
        raise ValueError(
            "a deployed server takes messages as they come; give a replayed cohort to "
            "federate"
        )
    if cohort.clock is not None or cohort.dropout:
        raise ValueError(
            "real clients take their own time and drop out by themselves; give a "
            "cohort without a clock and dropout"
        )


def description(shared: Federation) -> dict[str, str]:
    """What has to be the same on both sides, in words by the names of settings."""
    setup = shared.setup
    params = jax.eval_shape(setup.task.init, jax.random.key(0))
    client_state = jax.eval_shape(setup.algorithm.init_client, params)
    settings = {
        "version of fedjax_muon": PACKAGE_VERSION,
        "version of JAX": jax.__version__,
    }
    settings |= described(setup.algorithm)
    return settings | {
        "num_clients": str(setup.num_clients),
        "cohort": in_words(setup.cohort),
        "batch_size": str(setup.batch_size),
        "local_steps": str(shared.steps(shared.first)),
        "max_client_size": str(shared.max_client_size),
        "classes": str(shared.classes),
        "sampler": in_words(setup.sampler),
        "weighting": in_words(setup.weighting),
        "parameters": schema(params),
        "client state": schema(client_state),
    }


def differences(own: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Names the first entry in which two descriptions differ, if there is one."""
    for name in sorted({*own, *others}):
        here, there = own.get(name, "none"), others.get(name, "none")
        if here != there:
            ours, theirs = plain(here, 50), plain(there, 50)
            return f"{plain(name, 40)} is {ours} here and {theirs} there"
    return ""
