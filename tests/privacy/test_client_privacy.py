"""Private clients: the wrapper on the code of every algorithm, and what is promised."""

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
from fedjax_muon.privacy import (
    Cyclic,
    FixedSize,
    FullBatch,
    Pld,
    Poisson,
    calibrated,
    gaussian_epsilon,
    joint_multiplier,
    report,
)
from fedjax_muon.privacy.client_accounting import client_spec
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


RUN: dict[str, Any] = {
    "rounds": 100,
    "noise_multiplier": 1.0,
    "delta": 1e-5,
    "prologue": False,
    "private_states": False,
}


@pytest.mark.parametrize(
    ("sampling", "noise", "epsilon"),
    [
        # dp-accounting 0.6.0, PLD of T Poisson-sampled Gaussian mechanisms
        (Poisson(100, 5), 1.0, 3.502149),
        (Poisson(100, 10), 2.0, 2.337400),
    ],
)
def test_reference_values(sampling, noise, epsilon):
    found = report(client_spec(sampling, **{**RUN, "noise_multiplier": noise}))
    assert found.epsilon == pytest.approx(epsilon, rel=1e-3)


def test_full_participation_is_one_gaussian_mechanism():
    found = report(client_spec(FullBatch(100), **{**RUN, "noise_multiplier": 8.0}))
    assert found.epsilon == pytest.approx(gaussian_epsilon(0.8, 1e-5))
    spec = client_spec(
        FullBatch(9), **RUN | {"prologue": True}, prologue_noise_multiplier=5.0
    )
    together = gaussian_epsilon(joint_multiplier(5.0, *[1.0] * 100), 1e-5)
    assert spec.steps == 101
    assert report(spec).epsilon == pytest.approx(together)
    assert report(calibrated(spec, 2.0)).epsilon == pytest.approx(2.0, rel=1e-4)


def test_a_prologue_is_one_more_release_of_all_clients():
    few = {**RUN, "rounds": 3, "delta": 1e-3, "prologue": True}
    spec = client_spec(Poisson(100, 5), **few, prologue_noise_multiplier=3.0)
    by_hand = Pld().epsilon(
        Poisson(100, 5, first_batch=100), 1.0, 4, 1e-3, first_multiplier=3.0
    )
    assert report(spec).epsilon == by_hand
    # of no fewer than the prologue alone, of no more than everything unsampled
    assert gaussian_epsilon(3.0, 1e-3) < by_hand
    assert by_hand < gaussian_epsilon(joint_multiplier(3.0, 1.0, 1.0, 1.0), 1e-3)


def test_the_statement():
    text = report(client_spec(FullBatch(100), **RUN)).statement()
    for words in (
        "for one client with all its examples",
        "the noisy sums of clipped messages",
        "one record is added or removed",
        "every model that the server broadcasts is seen; the server and the channels",
        "the server keeps single messages, and who took part, to itself",
        "training loss, is not published",
    ):
        assert words in text
    silent = report(client_spec(Poisson(100, 5), **{**RUN, "noise_multiplier": 0.0}))
    assert silent.epsilon == float("inf")
    assert "NO differential privacy" in silent.statement()


def test_where_cohorts_are_cut_short_clients_must_forget():
    cut = Poisson(100, 5, max_batch=20)
    assert client_spec(cut, **RUN).sampling == cut
    remembering = {**RUN, "private_states": True}
    roomy = Poisson(100, 5, max_batch=100)
    assert client_spec(roomy, **remembering).sampling == roomy
    with pytest.raises(ValueError, match="clients that keep states need room for all"):
        client_spec(cut, **remembering)


@pytest.mark.parametrize(
    ("sampling", "changes", "error", "message"),
    [
        (FixedSize(100, 5), {}, ValueError, r"Poisson\(N, S\) or FullBatch\(N\), got"),
        (Cyclic(100, 5), {}, ValueError, "use poisson_cohorts, or full participation"),
        (Poisson(100, 5, first_batch=100), {}, ValueError, "use prologue=True"),
        (
            Poisson(100, 5),
            {"prologue_noise_multiplier": 1.0},
            ValueError,
            "a prologue, got 1",
        ),
        (Poisson(100, 5), {"delta": 0.01}, ValueError, "delta must lie in"),
        (Poisson(100, 5), {"rounds": 0}, ValueError, "rounds must be at least 1"),
        (
            Poisson(100, 5),
            {"noise_multiplier": -1.0},
            ValueError,
            "multiplier must lie in",
        ),
    ],
)
def test_what_cannot_be_accounted_for_is_refused(sampling, changes, error, message):
    with pytest.raises(error, match=message):
        client_spec(sampling, **{**RUN, **changes})
