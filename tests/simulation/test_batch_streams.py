"""Which examples each client sees in each step, against loops over examples.

A gradient tells what it was given: the examples, their client, and a number that its
key draws. Clients record this step by step, in their states and in their messages.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import literal_batches as oracle
import numpy as np
import pytest
from federation import cut

from fedjax_muon import simulation
from fedjax_muon.core import Algorithm, Exchange, local_steps
from fedjax_muon.data import Dataset
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.engine import plans
from fedjax_muon.simulation import batching, cyclic_batches
from fedjax_muon.simulation.cohorts import fixed_cohort, poisson_cohorts
from fedjax_muon.tasks.task import Task

SIZES = [3, 20, 8, 6, 25, 12, 1]  # less than, as many as and more than STEPS * BATCH
STEPS, BATCH = 2, 4
N, PARTS = len(SIZES), cut(SIZES)
ROOM = 32  # a power of two that is no less than the largest size, nor any batch
SHAPE = (STEPS, ROOM, 5)  # of a client's record in one exchange


def numbered(count) -> Dataset:
    """Examples that are their own numbers, whose labels are the last digits."""
    x = np.arange(count, dtype=np.float32)[:, None]
    y = (np.arange(count) % 10).astype(np.int32)
    return Dataset(x, y, x[:10], y[:10], tuple("0123456789"))


def tell(params, batch, key):
    """The gradient [B, 5]: x, y, id, client and a random number, or 0 for padding."""
    del params
    drawn = jax.random.uniform(key)
    told = (batch.x[:, 0], batch.y, batch.ids, batch.client, drawn)
    rows = [jnp.broadcast_to(v, batch.ids.shape).astype(jnp.float32) for v in told]
    return (1 + jnp.stack(rows, 1)) * batch.weight[:, None]


def expected(part, client, positions, key):
    """What `tell` must return, in a record of one step [ROOM, 5]."""
    record = np.zeros((ROOM, 5), np.float32)
    drawn = np.asarray(jax.random.uniform(key))
    for place, position in enumerate(positions):
        if position >= 0:
            example = part[position]
            record[place] = [example, example % 10, example, client, drawn]
            record[place] += np.float32(1)
    return record


def padded(grad):
    return jnp.pad(grad, ((0, ROOM - len(grad)), (0, 0)))


TASK = Task(
    init=lambda key: jnp.zeros(()),
    grad=tell,
    evaluate=lambda params, x, y: {"loss": y.astype(jnp.float32)},
)


# ----------------------------------------------------------------- with a server


class Held(NamedTuple):
    params: Any  # [exchanges, N, *SHAPE], the last message of each exchange, by client


def recording(prologue, exchanges):
    """An algorithm whose clients record what they see, in each exchange apart."""

    def exchange(number):
        def client(objective, shared, records, batches, round):
            def step(carry, batch, key):
                k, record = carry
                found = padded(objective.grad(shared, batch, key))
                return (k + 1, record.at[k].set(found)), ()

            start = jnp.int32(0), jnp.zeros(SHAPE)
            (_, record), _ = local_steps(step, start, batches, round)
            told = jnp.max(record[..., 3]).astype(jnp.int32) - 1
            sent = jnp.zeros((N, *SHAPE)).at[told].set(record)
            return sent, records.at[number].set(record)

        def server(state, total, round):
            return Held(state.params.at[number].set(total))

        return Exchange(lambda *_: (), client, server, reduce_sum=True)

    every = tuple(map(exchange, range(prologue + exchanges)))
    empty = jnp.zeros((len(every), *SHAPE))
    return Algorithm(
        lambda params: Held(jnp.zeros((len(every), N, *SHAPE))),
        lambda params: empty,
        every[prologue:],
        every[:prologue],
    )


class Course(NamedTuple):
    """The course of a run by the oracle."""

    key: Any
    sampler: Any
    messages: np.ndarray
    records: np.ndarray  # [N, exchanges, *SHAPE], of clients

    def exchange(self, number, index, first, clients, steps):
        """Plays one exchange, whose draws are those of the exchange `first`."""
        self.messages[number] = 0
        for client in clients:
            draw_key = oracle.draw_key(self.key, index, first, client)
            given = len(PARTS[client]), steps, BATCH, ROOM, index
            keys = oracle.step_keys(self.key, index, number, client, steps)
            record = np.zeros(SHAPE, np.float32)
            for k, positions in enumerate(self.sampler(draw_key, *given)):
                record[k] = expected(PARTS[client], client, positions, keys[k])
            self.messages[number, client] = record
            self.records[client, number] = record


slow = functools.partial(pytest.param, marks=pytest.mark.slow)
SAMPLERS = {
    "shuffled epochs": (batching.shuffled_epochs, oracle.shuffled_epochs),
    "with replacement": (batching.with_replacement, oracle.with_replacement),
    "full batch": (batching.full_batch, oracle.full_batch),
    "poisson": (batching.poisson(6), oracle.poisson(6)),
    "without replacement": (batching.without_replacement, oracle.without_replacement),
}


@pytest.mark.parametrize(
    ("sampler", "prologue", "exchanges", "changes"),
    [
        ("shuffled epochs", 2, 2, {"dropout": 0.4, "plan": plans.chunked(3)}),
        slow("poisson", 0, 1, {"plan": plans.vmapped}),
        slow("shuffled epochs", 0, 1, {"cohorts": poisson_cohorts(), "dropout": 0.2}),
        slow("with replacement", 1, 1, {"dropout": 0.3, "plan": plans.mapped}),
        slow("full batch", 0, 2, {"dropout": 0.3}),
        slow("without replacement", 1, 2, {"cohort_size": N}),
        slow("shuffled epochs", 1, 2, {"devices": 2, "split_examples": True}),
    ],
)
def test_clients_of_a_server(sampler, prologue, exchanges, changes):
    changes = {"cohort_size": 4, "dropout": 0.0, "cohorts": fixed_cohort, **changes}
    devices = jax.devices()[: changes.pop("devices", 0)]
    library, literal = SAMPLERS[sampler]
    prepared = simulation.federate(
        recording(prologue, exchanges),
        TASK,
        numbered(sum(SIZES)),
        PARTS,
        local_steps=STEPS,
        batch_size=BATCH,
        sampler=library,
        devices=devices,
        **changes,
    )
    total = prologue + exchanges
    state = prepared.init(jax.random.key(8))
    course = Course(
        jax.random.split(jax.random.key(8))[1],
        literal,
        np.zeros((total, N, *SHAPE), np.float32),
        np.zeros((N, total, *SHAPE), np.float32),
    )
    for number in range(prologue):
        course.exchange(number, 0, 0, range(N), 1)
    assert_course(state, course)
    for index in range(4):
        for number in range(prologue, total):
            present = present_in(course.key, index, changes)
            course.exchange(number, index, prologue, present, STEPS)
        if index == 2:
            continue  # the last two rounds are one call
        state, _ = prepared.train_rounds(state, 1 if index < 2 else 2)
        assert_course(state, course)


def present_in(key, index, changes):
    """The clients that answer in a round."""
    size = changes["cohort_size"]
    if changes["cohorts"] is fixed_cohort:
        places, cohort = size, oracle.fixed_cohort(key, index, N, size)
    else:  # with a place for everyone
        places, cohort = N, oracle.poisson_cohort(key, index, N, size)
    answers = oracle.answers(key, index, places, changes["dropout"])
    return [client for client, there in zip(cohort, answers, strict=False) if there]


def assert_course(state, course):
    """Messages and clients' states are those of the oracle, to the bit."""
    np.testing.assert_array_equal(state.params, course.messages)
    records = np.asarray(state.training.client_states)[:N]
    np.testing.assert_array_equal(records, course.records)


# -------------------------------------------------------------- without a server


def recording_agents():
    """Agents that record the last iteration."""

    def see(objective, before, mix, batch, iteration):
        return Held(padded(objective.grad(before, batch, iteration.key)))

    return Gossip(start=see, step=see)


OF_AGENTS = {
    "poisson": (batching.always(batching.poisson(6)), oracle.poisson(6)),
    "default": (None, oracle.shuffled_epochs),
    "cyclic": (cyclic_batches.cyclic, oracle.cyclic),
    "cyclic poisson": (
        cyclic_batches.cyclic_poisson(6, 3),
        oracle.cyclic_poisson(6, 3),
    ),
}


SAMPLED = [name for name in OF_AGENTS if name != "default"]


@pytest.mark.parametrize(
    ("sampler", "devices"),
    [("default", 0), *(slow(name, 0) for name in SAMPLED), slow("default", 7)],
)
def test_agents(sampler, devices):
    library, literal = OF_AGENTS[sampler]
    sizes = [20, 12, 8, 6, 25, 9, 7]
    parts = cut(sizes)
    prepared = decentralize(
        recording_agents(),
        TASK,
        numbered(sum(sizes)),
        parts,
        weights=np.full((N, N), 1 / N),
        batch_size=BATCH,
        first_size=BATCH + 1,
        sampler=library,
        devices=jax.devices()[:devices],
    )
    state = prepared.init(jax.random.key(9))
    key = jax.random.split(jax.random.key(9))[1]
    for index in range(5):
        if index:
            state, _ = prepared.train_round(state)
        for agent, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            draw_key = oracle.agent_draw_key(key, index, N, agent)
            given = size, 1, BATCH + (index == 0), ROOM, index
            (positions,) = literal(draw_key, *given)
            gradient_key = oracle.agent_gradient_key(key, index, agent)
            record = expected(part, agent, positions, gradient_key)
            np.testing.assert_array_equal(state.params[agent], record)
