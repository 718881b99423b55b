"""Which examples each client sees in each step, against loops over examples.

A gradient tells what it was given: the examples, their client, and a number that its
key draws. Clients record this step by step, in their states and in their messages.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon import simulation
from fedjax_muon.core import Algorithm, Exchange, broadcast_params, local_steps
from fedjax_muon.data import Dataset
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.engine import plans
from fedjax_muon.simulation import batching
from fedjax_muon.simulation.batching import cyclic, cyclic_poisson
from fedjax_muon.simulation.cohorts import as_cohort, fixed_cohort, sampled
from fedjax_muon.tasks.task import Task
from tests.support import literal_batches as oracle
from tests.support.federation import DATA, TASK as BLOBS_TASK, cut

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


SCORES = lambda params, x, y: {"loss": y.astype(jnp.float32)}
TASK = Task(init=lambda key: jnp.zeros(()), grad=tell, evaluate=SCORES)


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

        server = lambda state, total, round: Held(state.params.at[number].set(total))
        return Exchange(lambda *_: (), client, server, reduce_sum=True)

    every = tuple(map(exchange, range(prologue + exchanges)))
    empty = jnp.zeros((len(every), *SHAPE))
    begin = lambda params: Held(jnp.zeros((len(every), N, *SHAPE)))
    return Algorithm(begin, lambda params: empty, every[prologue:], every[:prologue])


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


SOME = sampled(4, dropout=0.4)


@pytest.mark.parametrize(
    ("sampler", "prologue", "exchanges", "changes"),
    [
        (
            "shuffled epochs",
            2,
            2,
            {"cohort": SOME, "plan": plans.chunked(3)},
        ),
        slow("poisson", 0, 1, {"plan": plans.vmapped}),
        slow("shuffled epochs", 0, 1, {"cohort": fm.poisson(4, dropout=0.2)}),
        slow(
            "with replacement",
            1,
            1,
            {"cohort": SOME, "plan": plans.mapped},
        ),
        slow("full batch", 0, 2, {"cohort": SOME}),
        slow("without replacement", 1, 2, {"cohort": N}),
        slow("shuffled epochs", 1, 2, {"devices": 2, "split_examples": True}),
    ],
)
def test_clients_of_a_server(sampler, prologue, exchanges, changes):
    changes = {"cohort": 4, **changes}
    devices = jax.devices()[: changes.pop("devices", 0)]
    library, literal = SAMPLERS[sampler]
    how = {"local_steps": STEPS, "batch_size": BATCH, **changes}
    given = recording(prologue, exchanges), TASK, numbered(sum(SIZES)), PARTS
    prepared = simulation.federate(*given, sampler=library, devices=devices, **how)
    total = prologue + exchanges
    state = prepared.init(jax.random.key(8))
    zeros = lambda *shape: np.zeros((*shape, *SHAPE), np.float32)
    key = jax.random.split(jax.random.key(8))[1]
    course = Course(key, literal, zeros(total, N), zeros(N, total))
    for number in range(prologue):
        course.exchange(number, 0, 0, range(N), 1)
    assert_course(state, course)
    for index in range(4):
        for number in range(prologue, total):
            present = present_in(course.key, index, as_cohort(changes["cohort"]))
            course.exchange(number, index, prologue, present, STEPS)
        if index != 2:  # the last two rounds are one call
            state, _ = prepared.train_rounds(state, 1 if index < 2 else 2)
            assert_course(state, course)


def present_in(key, index, members):
    """The clients that answer in a round."""
    size = members.size
    if members.draw is fixed_cohort:
        places, cohort = size, oracle.fixed_cohort(key, index, N, size)
    else:  # with a place for everyone
        places, cohort = N, oracle.poisson_cohort(key, index, N, size)
    answers = oracle.answers(key, index, places, members.dropout)
    return [client for client, there in zip(cohort, answers, strict=False) if there]


def assert_course(state, course):
    """Messages and clients' states are those of the oracle, to the bit."""
    np.testing.assert_array_equal(state.params, course.messages)
    records = np.asarray(state.training.client_states)[:N]
    np.testing.assert_array_equal(records, course.records)


# -------------------------------------------------------------- without a server

OF_AGENTS = {
    "poisson": (batching.always(batching.poisson(6)), oracle.poisson(6)),
    "default": (None, oracle.shuffled_epochs),
    "cyclic": (cyclic, oracle.cyclic),
    "cyclic poisson": (cyclic_poisson(6, 3), oracle.cyclic_poisson(6, 3)),
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
    how = {"batch_size": BATCH, "first_size": BATCH + 1, "sampler": library}
    how |= {"weights": np.full((N, N), 1 / N), "devices": jax.devices()[:devices]}

    def see(objective, before, mix, batch, iteration):
        """The agents record the last iteration."""
        return Held(padded(objective.grad(before, batch, iteration.key)))

    given = Gossip(start=see, step=see), TASK, numbered(sum(sizes)), parts
    prepared = decentralize(*given, **how)
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


# -------------------------------------------------------- numbers of local steps

UNEQUAL = [3, 9, 20, 48]
UNEQUAL_PARTS = cut(UNEQUAL)


class Counts(NamedTuple):
    params: Any
    told: Any  # [rounds, N], the steps of every client
    mean: Any  # [rounds], the server's


class Told(NamedTuple):
    params: Any
    told: Any


def unequal(algorithm, cohort=2, **work):
    given = algorithm, BLOBS_TASK, DATA, UNEQUAL_PARTS
    return fm.federate(*given, cohort=cohort, batch_size=4, **work)


def counting():
    """Clients tell their number of steps, and count the batches that they saw."""

    def client(objective, shared, seen, batches, round):
        step = lambda k, batch, key: (k + 1, ())
        k, _ = fm.local_steps(step, jnp.int32(0), batches, round)
        told = jnp.zeros(len(UNEQUAL)).at[jnp.max(batches.client)].set(round.steps)
        change = jax.tree.map(jnp.zeros_like, shared.params)
        return Told(change, told), jnp.stack([k, jnp.int32(round.steps)])

    def server(state, total, round):
        told = state.told.at[round.index].set(total.told)
        return Counts(state.params, told, state.mean.at[round.index].set(round.steps))

    init = lambda params: Counts(params, jnp.zeros((40, len(UNEQUAL))), jnp.zeros(40))
    main = Exchange(broadcast_params, client, server, reduce_sum=True)
    return Algorithm(init, lambda params: jnp.zeros(2, jnp.int32), (main,))


def counted(rounds=40, **work):
    simulation = unequal(counting(), 4, **work)
    state, _ = simulation.train_rounds(simulation.init(jax.random.key(3)), rounds)
    seen, told = np.asarray(state.training.client_states).T
    np.testing.assert_array_equal(seen, told)  # no batch beyond the own steps
    return jax.tree.map(np.asarray, state.training.server)


def test_epochs_are_those_of_the_clients_examples():
    found = counted(2, local_epochs=2, plan=plans.vmapped)
    steps = [max(1, 2 * n // 4) for n in UNEQUAL]
    np.testing.assert_array_equal(found.told[:2], [steps, steps])
    np.testing.assert_allclose(found.mean[:2], np.mean(steps))


@pytest.mark.slow
def test_epochs_are_drawn_for_each_client_and_round():
    found = counted(local_epochs=(1, 3), weighting=fm.simulation.by_examples)
    epochs = found.told * 4 / UNEQUAL
    for client in (2, 3):
        values, counts = np.unique(epochs[:, client], return_counts=True)
        np.testing.assert_array_equal(values, [1, 2, 3])
        assert counts.min() >= 5  # of 40 / 3
    assert len({tuple(row) for row in found.told.tolist()}) > 10
    shares = np.array(UNEQUAL) / sum(UNEQUAL)
    np.testing.assert_allclose(found.mean, found.told @ shares, rtol=1e-6)
