"""What the engine makes of compressed messages, whatever the algorithm.

`echo` is an algorithm for the purpose: what the clients send are their batches.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federation import assert_same_bits
from oracles import compression as oracle

from fedjax_muon import engine
from fedjax_muon.compression.compress import compress
from fedjax_muon.compression.compressors import (
    Compressor,
    identity,
    power_iteration,
    quantize,
    top_k,
    truncated_svd,
)
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Objective,
    Round,
    broadcast_state,
    no_client_state,
    tree,
)
from fedjax_muon.engine import plans

N, KEY = 5, jax.random.key(0)


class Parts(NamedTuple):
    """One array, or a pair, for every compressor."""

    whole: Any
    low: Any
    power: Any
    sparse: Any
    coarse: Any


EACH = Parts(
    identity(),
    truncated_svd(1, rest=identity()),
    power_iteration(1, rest=quantize(3)),
    top_k(0.3),
    quantize(4),
)


class Echo(NamedTuple):
    params: Any
    seen: tuple[Any, ...]  # the last means of messages, of two exchanges


def echo(*, exchanges=1):
    def client(objective, shared, client_state, batches, round):
        return objective.grad(shared.params, batches, round.key), client_state

    def server(state, mean, round):
        return Echo(tree.sub(state.params, mean), (*state.seen[1:], mean))

    init = lambda params: Echo(params, (tree.zeros_like(params),) * 2)
    one = Exchange(broadcast_state, client, server)
    return Algorithm(init, no_client_state, (one,) * exchanges)


BATCHES = Objective(lambda params, batches, key: batches)  # clients send these


def started(algorithm, messages, clients):
    """The state of an algorithm whose clients send such messages."""
    params = jax.tree.map(lambda m: jnp.zeros(m.shape[1:], m.dtype), messages)
    return engine.init(algorithm, params, clients)


NOISE = lambda x, key: x + jax.random.uniform(key, x.shape)


def drawn(clients):
    """Messages with a matrix and a vector for every compressor."""
    rng = np.random.default_rng(0)
    one = lambda *shape: jnp.asarray(rng.normal(size=(clients, *shape)), jnp.float32)
    return Parts(*((one(4, 3), one(5)) for _ in EACH))


def test_only_the_named_parts_are_compressed():
    messages = jax.tree.map(lambda m: m[0], drawn(1))
    algorithm = compress(echo(), top_k(0.4), parts=["low", "sparse"])
    started(algorithm, drawn(1), 1)
    (main,) = algorithm.exchanges
    round = Round(jnp.int32(0), KEY, 1, 1, 1.0)
    shared, state = Echo(messages, ()), algorithm.init_client(())
    sent, _ = main.client(BATCHES, shared, state, messages, round)
    for part, got in main.decode(sent)._asdict().items():
        for array, given in zip(got, getattr(messages, part), strict=True):
            small = oracle.largest(0.4)(np.asarray(given))
            named = part in ("low", "sparse")
            np.testing.assert_array_equal(array, small if named else given)
    assert tree.nbytes(sent) == 4 * 17 * 3 + 8 * (5 + 2) * 2


@pytest.mark.slow
def test_plans_agree():
    messages = drawn(3)
    noisy = Compressor(NOISE, lambda sent, like: 0.5 * sent)
    algorithm = compress(echo(), noisy, parts=["low"], feedback=0.9)
    start = started(algorithm, messages, N)
    ends = []
    for plan in (plans.loop, plans.vmapped, plans.chunked(2)):
        step, state = engine.make_round(algorithm, BATCHES, N, plan), start
        step = step if plan is plans.loop else jax.jit(step)
        for cohort in ([4, 0, 3], [3, 1, 4]):
            given = jnp.array(cohort), messages, jnp.array([1.0, 2.0, 0.5]), KEY
            state, received = step(state, *given)
            assert bool(received.all())
        ends.append(state)
    for end in ends[1:]:
        close = partial(np.testing.assert_allclose, atol=1e-5)
        jax.tree.map(close, end, ends[0])


def test_messages_that_are_not_finite_are_dropped():
    # one client for every part and value, and two that are well
    poisons = [(part, v) for part in Parts._fields for v in (np.nan, np.inf, -np.inf)]
    clients = len(poisons) + 2
    messages = sound = drawn(clients)
    for i, (part, value) in enumerate(poisons):
        matrix, vector = getattr(messages, part)
        matrix, vector = (
            (matrix.at[i, 2, 1].set(value), vector)
            if i % 2
            else (matrix, vector.at[i, 3].set(value))
        )
        messages = messages._replace(**{part: (matrix, vector)})
    algorithm = echo()
    for part, compressor in EACH._asdict().items():
        algorithm = compress(algorithm, compressor, parts=[part])
    start = started(algorithm, messages, clients)
    step = jax.jit(engine.make_round(algorithm, BATCHES, clients, plans.vmapped))
    cohort, ones = jnp.arange(clients), jnp.ones(clients)
    state, received = step(start, cohort, messages, ones, KEY)
    assert received.tolist() == [False] * len(poisons) + [True] * 2
    assert_same_bits(state, step(start, cohort, sound, ones * received, KEY)[0])
    assert bool(tree.all_finite(state))


class Drawn(NamedTuple):
    own: Any
    noise: Any


@pytest.mark.slow
def test_every_array_has_a_key_of_its_own():
    uniform = lambda x, key: jax.random.uniform(key, x.shape)
    noise = Compressor(uniform, lambda sent, like: sent)

    def draw(params, batches, key):  # as clients do, from what their keys split into
        one, other = jax.random.split(key)
        own = uniform(params.own[0], one), uniform(params.own[1], other)
        return Drawn(own, params.noise)

    algorithm = compress(echo(exchanges=2), noise, parts=["noise"])
    objective, zeros = Objective(draw), (jnp.zeros(1), jnp.zeros(1))
    start = engine.init(algorithm, Drawn(zeros, zeros), N)
    step = jax.jit(engine.make_round(algorithm, objective, N, plans.vmapped))
    values = []
    for client in range(3):
        state = start
        for _ in range(3):
            given = jnp.array([client]), jnp.zeros((1, 1)), jnp.ones(1), KEY
            state, _ = step(state, *given)
            values += [float(v[0]) for v in jax.tree.leaves(state.server.seen)]
    assert len({*values}) == len(values) == 3 * 3 * 2 * 4
