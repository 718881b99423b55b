"""The wrapper that makes clients private, on the code of every algorithm."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from federation import assert_same_bits
from traces import by_code

from fedjax_muon import engine
from fedjax_muon.algorithms import ALL
from fedjax_muon.core import Objective, map_exchanges, message_shapes, tree
from fedjax_muon.engine import plans
from fedjax_muon.privacy.client_mechanism import private_clients

N, KEY, ONES = 2, jax.random.key(3), jnp.ones(2)
RNG = np.random.default_rng(0)
normal = lambda *lead: {
    "w": jnp.asarray(RNG.normal(size=(*lead, 3, 2)), jnp.float32),
    "b": jnp.asarray(RNG.normal(size=(*lead, 2)), jnp.float32),
}
PARAMS, FIRST, BATCHES = normal(), normal(N, 1), normal(N, 2)
# one of all that share their clients' code, and those whose messages have other fields
METHODS = {names[0] for names in by_code(ALL)}
METHODS |= {"fedmuon", "fedmuon_unsynced", "local_muon_averaged"}
METHODS = slow_but(("fedavg", "scaffold", "fedmuon"), sorted(METHODS))


def grad_fn(params, batch, key):
    """Of |params - batch|^2 / 2: clients pull to where their batches are."""
    del key
    return tree.sub(params, batch)


PULL = Objective(grad_fn)


def fields(message) -> dict[str, Any]:
    """The parts of a message by name, but for empty ones."""
    named = hasattr(message, "_fields")
    parts = message._asdict() if named else {"message": message}
    return {name: part for name, part in parts.items() if jax.tree.leaves(part)}


def limits(name, size) -> dict[str, float]:
    """Another one for every part of a method's messages."""
    messages = message_shapes(ALL[name].function(), PARAMS)
    names = sorted({part for message in messages for part in fields(message)})
    return {part: size * (2 + i) for i, part in enumerate(names)}


def finished(make, algorithm, state, batches, weights=ONES):
    """In plain Python, nothing compiled."""
    with jax.disable_jit():
        run = make(algorithm, PULL, N, plans.loop)
        return run(state, jnp.arange(N), batches, weights, KEY)


def begun(algorithm, batches=FIRST):
    start = engine.init(algorithm, PARAMS, N)
    return finished(engine.make_prologue, algorithm, start, batches)[0]


@pytest.mark.parametrize("name", METHODS)
def test_without_noise_and_binding_limits_nothing_changes(name):
    limit = 1e6 if name == "fedavg" else limits(name, 1e6)
    plain = ALL[name].function()
    private = private_clients(
        plain, clip_norm=limit, noise_multiplier=0.0, clients=N, cohort=N
    )
    start = begun(plain)
    if plain.prologue:
        assert_same_bits(begun(private), start)
    one = tree.map(lambda x: x[:, :1], BATCHES)
    ends = [finished(engine.make_round, a, start, one) for a in (private, plain)]
    assert_same_bits(*ends)
    assert private.cohort_spec == (N, N)
    assert private.uniform_weights
    assert private.full_participation == plain.full_participation


def spied(algorithm, seen):
    """The same algorithm, but what its server is given is also put into `seen`."""

    def change(number, exchange):
        def server(state, mean, round):
            seen.append(mean)
            return exchange.server(state, mean, round)

        return exchange._replace(server=server)

    return map_exchanges(change, algorithm)


@pytest.mark.parametrize("name", METHODS)
def test_no_client_moves_what_the_server_sees_by_more_than_its_share(name):
    """One with an enormous message by exactly that, one that fails not at all."""
    seen: list[Any] = []
    limit, sizes = limits(name, 1e-5), {"clients": N, "cohort": 1}
    plain = spied(ALL[name].function(), seen)
    algorithm = private_clients(plain, clip_norm=limit, noise_multiplier=0.0, **sizes)
    start = engine.init(algorithm, PARAMS, N)

    def shown(make, batches, poison, present):
        del seen[:]
        spoilt = tree.map(lambda x: x.at[1].multiply(poison), batches)
        weights = ONES.at[1].set(present)
        after, received = finished(make, algorithm, start, spoilt, weights)
        assert received.tolist() == [True, bool(present)]
        assert bool(tree.all_finite(after))
        return list(seen)

    phases = [(engine.make_round, BATCHES, 1)]
    phases += [(engine.make_prologue, FIRST, N)] * bool(algorithm.prologue)
    for *phase, size in phases:
        without = shown(*phase, 1.0, 0.0)
        failing = shown(*phase, jnp.nan, 1.0)
        enormous = shown(*phase, 1e3, 1.0)
        for left, failed, spoilt in zip(without, failing, enormous, strict=True):
            for part, move in fields(tree.sub(spoilt, left)).items():
                norm = np.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(move)))
                np.testing.assert_allclose(norm, limit[part] / size, rtol=1e-4)
            assert_same_bits(failed, left)
