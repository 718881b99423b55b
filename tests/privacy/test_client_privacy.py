"""What private clients let out: by hand in NumPy, its noise, and on every algorithm."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon import engine
from fedjax_muon.algorithms import ALL, fedavg, fedmuon, scaffold
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Objective,
    map_exchanges,
    message_shapes,
    no_client_state,
    tree,
)
from fedjax_muon.engine import plans
from fedjax_muon.privacy import AdaptiveClip
from fedjax_muon.privacy.client_mechanism import private_clients
from fedjax_muon.wrappers.compression import Compressor, compress
from tests.oracles.adaptive_clip import Draw, Settings, adaptive_fedavg
from tests.oracles.problem import draw_params, toy_grad
from tests.privacy.private_rounds import (
    ECHO,
    KEY,
    SIZES,
    TRACE,
    WHO,
    N,
    assert_standard_normal,
    rounds_of,
    rounds_of_trace,
)
from tests.support.cases import slow_but
from tests.support.error_lines import refused
from tests.support.federation import assert_same_bits
from tests.support.traces import TOY, by_code, stack

EXPECTED = SIZES["cohort"]


# ---------------------------------------------------------------------- by hand
def cut(limit, part):
    """To a Euclidean norm of at most `limit`, all arrays together."""
    norm = np.sqrt(sum(np.sum(array**2) for array in part.values()))
    assert norm > limit  # the clips bind
    return {name: array * limit / norm for name, array in part.items()}


def moved(x, scale, parts):
    return {k: x[k] + scale * sum((p[k] for p in parts), 0 * x[k]) for k in x}


def private_fedavg(x, limit, lr):
    """With a norm that stays where it is, and without noise."""
    settings = Settings(lr, EXPECTED, 0.0, 1.0, 0.5, initial=limit, clip_lr=0.0)
    silent = [Draw({k: 0 * x[k] for k in x}, 0.0)] * len(WHO)
    for params, _, norms in adaptive_fedavg(x, TRACE, WHO, silent, settings):
        assert min(norms, default=math.inf) > limit  # the clips bind
        yield params


def private_scaffold(x, limits, lr):
    c = {k: 0 * x[k] for k in x}
    own = [c] * N
    for (ids, data), present in zip(TRACE.rounds, WHO, strict=True):
        steps, changes = [], []
        for i, batches in zip(ids, data, strict=True):
            if present[i]:
                y, seen = x, []
                for batch in batches:
                    seen.append(toy_grad(y, batch))
                    g = seen[-1]
                    y = {k: y[k] - lr * (g[k] - own[i][k] + c[k]) for k in y}
                fresh = {k: np.mean([g[k] for g in seen], axis=0) for k in x}
                steps.append(cut(limits["params"], {k: y[k] - x[k] for k in x}))
                change = {k: fresh[k] - own[i][k] for k in x}
                changes.append(cut(limits["control"], change))
                own = [fresh if j == i else own[j] for j in range(N)]
        x = moved(x, 1 / EXPECTED, steps)
        c = moved(c, EXPECTED / N / EXPECTED, changes)
        yield x


@pytest.mark.parametrize(
    ("factory", "oracle", "limit"),
    [
        (fedavg, private_fedavg, 0.02),
        (scaffold, private_scaffold, {"params": 0.02, "control": 0.005}),
    ],
)
def test_by_hand_in_cohorts_of_any_size(factory, oracle, limit):
    x = draw_params(0)
    with jax.enable_x64(True):
        algorithm = private_clients(
            factory(lr=0.3), clip_norm=limit, noise_multiplier=0.0, **SIZES
        )
        want = oracle(x, limit, 0.3)
        for server, params in zip(rounds_of_trace(algorithm, x), want, strict=True):
            close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
            jax.tree.map(close, server.params, params)


# ----------------------------------------------------------------------- a probe
class Two(NamedTuple):
    a: Any
    b: Any


class Memory(NamedTuple):
    params: Any
    seen: Any  # of the prologue, of both exchanges: what the server was given


PARAMS = {"a": jnp.zeros((3, 2)), "b": jnp.zeros(4), "c": jnp.zeros(5)}
LIMITS = {"a": 1.0, "b": 2.0, "message": 3.0}


def probe(*, notes=None):
    """Sends what the gradient says: c at first, then (a, b), and c again in a round."""

    def note(who, round):
        if notes is not None:
            notes.append((who, round.clients, round.fraction))

    def broadcast(state, round):
        note("broadcast", round)
        return state.params

    def exchange(number, message):
        def client(objective, shared, client_state, batches, round):
            if objective is ECHO:
                note("client", round)
            elif notes:
                notes.pop()  # of the broadcast before, when shapes are looked at
            return message(objective.grad(shared, batches, round.key)), client_state

        def server(state, mean, round):
            note("server", round)
            seen = (*state.seen[:number], mean, *state.seen[number + 1 :])
            return Memory(state.params, seen)

        return Exchange(broadcast, client, server)

    pair, whole = lambda g: Two(g["a"], g["b"]), lambda g: g["c"]
    init = lambda p: Memory(p, (whole(p), pair(p), whole(p)))
    round = exchange(1, pair), exchange(2, whole)
    return Algorithm(init, no_client_state, round, (exchange(0, whole),))


@pytest.mark.slow
def test_the_noise_of_every_field():
    """Independent and normal, of one joint multiplier, even if nobody takes part."""
    noise, first, cohort, worlds = 1.5, 0.7, SIZES["cohort"], 2000
    given = {"noise_multiplier": noise, "prologue_noise_multiplier": first, **SIZES}
    algorithm = private_clients(probe(), clip_norm=LIMITS, **given)
    nobody, nothing = jnp.zeros(N), jax.tree.map(lambda x: x[None], PARAMS)
    batches = jax.tree.map(lambda x: jnp.repeat(x, N, 0), nothing)

    @jax.jit
    @jax.vmap
    def run(key):
        given = jnp.arange(N), batches, nobody, key
        state = engine.init(algorithm, PARAMS, N)
        start = engine.make_prologue(algorithm, ECHO, N, plans.vmapped)
        step = engine.make_round(algorithm, ECHO, N, plans.vmapped)
        state, _ = start(state, *given)
        one, received = step(state, *given)
        other, _ = step(one, *given)
        return one.server.inner.seen, other.server.inner.seen[1:], received

    one, other, received = run(jax.random.split(KEY, worlds))
    assert not received.any()
    flat = lambda t: [np.asarray(x).reshape(worlds, -1) for x in jax.tree.leaves(t)]
    drawn, again = flat(one), flat(other)
    parts = np.array([1.0, 2.0, 3.0])  # of a round: a, b and the whole message
    wanted = [first * 3.0 / N, *noise * np.sqrt(3) * parts / cohort]
    pairs = zip([*drawn, *again], [*wanted, *wanted[1:]], strict=True)
    assert_standard_normal([samples / std for samples, std in pairs])
    # sensitivities over standard deviations, of a whole round
    ratios = parts / cohort / np.array(wanted[1:])
    np.testing.assert_allclose(1 / np.sqrt(np.sum(ratios**2)), noise)


def test_the_algorithm_never_learns_how_many_took_part():
    notes: list[Any] = []
    algorithm = private_clients(
        probe(notes=notes), clip_norm=1.0, noise_multiplier=1.0, **SIZES
    )
    state = engine.init(algorithm, PARAMS, N)
    batches = jax.tree.map(lambda x: jnp.zeros((N, *x.shape)), PARAMS)
    for make, size in ((engine.make_prologue, N), (engine.make_round, 2)):
        del notes[:]
        run = make(algorithm, ECHO, N, plans.vmapped)
        jax.eval_shape(run, state, jnp.arange(N), batches, jnp.ones(N), KEY)
        assert {who for who, *_ in notes} == {"broadcast", "client", "server"}
        for _, seen, fraction in notes:
            # numbers: what depended on the traced weights would be a tracer
            assert type(seen) is int
            assert type(fraction) is float
            assert (seen, fraction) == (size, size / N)


@pytest.mark.parametrize("limit", [0.5, AdaptiveClip(initial=0.5)])
def test_messages_are_clipped_as_they_arrive(limit):
    """A compressor may enlarge what it is given, also the norm that is sent."""
    thousandfold = Compressor(lambda x, key: x, lambda sent, like: 1000 * sent)
    private = partial(
        private_clients, clip_norm=limit, noise_multiplier=0.0, clients=1, cohort=1
    )
    batches = {"w": jnp.ones((1, 1, 3, 2)), "b": jnp.zeros((1, 1, 2))}
    for algorithm in (
        compress(private(fedavg(lr=1.0)), thousandfold),
        private(compress(fedavg(lr=1.0), thousandfold)),
    ):
        server = next(rounds_of(algorithm, batches, 1))
        norm = np.linalg.norm(server.params["w"])
        np.testing.assert_allclose(norm, 0.5, rtol=1e-6)


def test_low_precision_is_summed_and_noised_in_float32():
    of_type = lambda t: jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), t)
    half, data = of_type(draw_params(0)), of_type(stack(TRACE.rounds[0][1]))
    algorithm = private_clients(
        fedmuon(), clip_norm=1.0, noise_multiplier=1.0, clients=N, cohort=N
    )
    before = engine.init(algorithm, half, N)
    for make in (engine.make_prologue, engine.make_round):
        run = make(algorithm, TOY, N, plans.vmapped)
        after, _ = jax.eval_shape(run, before, jnp.arange(N), data, jnp.ones(N), KEY)
        form = lambda t: jax.tree.map(lambda x: (x.shape, x.dtype), t)
        assert form(after) == form(before)
    (*_, sent) = message_shapes(algorithm, half)
    received = jax.eval_shape(algorithm.exchanges[0].decode, sent)
    assert {x.dtype for x in jax.tree.leaves(received)} == {jnp.dtype("float32")}


FINE: dict[str, Any] = {"clip_norm": 1.0, "noise_multiplier": 1.0, **SIZES}


# ------------------------------------------------------- on the code of every algorithm

PAIR, ONES = 2, jnp.ones(2)
RNG = np.random.default_rng(0)
drawn = lambda *shape: jnp.asarray(RNG.normal(size=shape), jnp.float32)
adapter = lambda *lead: {"a": drawn(*lead, 3, 2), "b": drawn(*lead, 2, 4)}
normal = lambda *lead: {
    "w": drawn(*lead, 3, 2),
    "b": drawn(*lead, 2),
    "layer": {"kernel": drawn(*lead, 3, 4), **adapter(*lead)},
}
START, FIRST, BATCHES = normal(), normal(2, 1), normal(2, 2)
# one of all that share their clients' code, and those whose messages have other fields
METHODS = {names[0] for names in by_code(ALL)}
METHODS |= {"fedmuon", "fedmuon_unsynced", "local_muon_averaged"}
METHODS = slow_but(("fedavg", "fedmuon"), sorted(METHODS))


# of |params - batch|^2 / 2: clients pull to where their batches are
PULL = Objective(
    lambda params, batch, key: tree.sub(params, batch),
    value_and_grad=lambda params, batch, key: (jnp.ones(()), tree.sub(params, batch)),
)


def fields(message) -> dict[str, Any]:
    """The fields of a message by name, but for empty ones."""
    named = hasattr(message, "_fields")
    found = message._asdict() if named else {"message": message}
    return {name: field for name, field in found.items() if jax.tree.leaves(field)}


def limits(name, size) -> dict[str, float]:
    """Another one for every field of a method's messages."""
    messages = message_shapes(ALL[name].function(), START)
    names = sorted({name for message in messages for name in fields(message)})
    return {name: size * (2 + i) for i, name in enumerate(names)}


def finished(make, algorithm, state, batches, weights=ONES):
    """In plain Python, nothing compiled."""
    with jax.disable_jit():
        run = make(algorithm, PULL, PAIR, plans.loop)
        return run(state, jnp.arange(PAIR), batches, weights, KEY)


def begun(algorithm, batches=FIRST):
    start = engine.init(algorithm, START, PAIR)
    return finished(engine.make_prologue, algorithm, start, batches)[0]


@pytest.mark.parametrize("name", slow_but(("fedavg", "fedmuon", "fedit"), ALL))
def test_without_noise_and_binding_limits_nothing_changes(name):
    plain = ALL[name].function()
    if any(exchange.gather for exchange in plain.exchanges):
        refused(f"or {name}\\(.* replace", private_clients, plain, **FINE)
        return
    limit = 1e6 if name == "fedavg" else limits(name, 1e6)
    private = private_clients(
        plain, clip_norm=limit, noise_multiplier=0.0, clients=PAIR, cohort=PAIR
    )
    inner = lambda state: state._replace(server=state.server.inner)
    starts = begun(private), begun(plain)
    assert_same_bits(inner(starts[0]), starts[1])
    one = tree.map(lambda x: x[:, :1], BATCHES)
    ran = partial(finished, engine.make_round, batches=one)
    rounds = [starts]
    for _ in range(2):  # in the second, what the first has sent is used
        end, metrics = ran(private, rounds[-1][0])
        want = ran(plain, rounds[-1][1])
        assert_same_bits((inner(end), metrics), want)
        rounds.append((end, want[0]))
    assert private.cohort_spec == (PAIR, PAIR)
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
    limit, sizes = limits(name, 1e-5), {"clients": PAIR, "cohort": 1}
    plain = spied(ALL[name].function(), seen)
    algorithm = private_clients(plain, clip_norm=limit, noise_multiplier=0.0, **sizes)
    start = engine.init(algorithm, START, PAIR)

    def shown(make, batches, poison, present):
        del seen[:]
        spoilt = tree.map(lambda x: x.at[1].multiply(poison), batches)
        weights = ONES.at[1].set(present)
        after, received = finished(make, algorithm, start, spoilt, weights)
        assert received.tolist() == [True, bool(present)]
        assert bool(tree.all_finite(after))
        return list(seen)

    phases = [(engine.make_round, BATCHES, 1)]
    phases += [(engine.make_prologue, FIRST, PAIR)] * bool(algorithm.prologue)
    for *phase, size in phases:
        without = shown(*phase, 1.0, 0.0)
        failing = shown(*phase, jnp.nan, 1.0)
        enormous = shown(*phase, 1e3, 1.0)
        assert_same_bits(failing, without)
        # in a later exchange, the others answer to what this one has changed
        for left, spoilt in zip(without[:1], enormous[:1], strict=True):
            for name, move in fields(tree.sub(spoilt, left)).items():
                norm = np.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(move)))
                np.testing.assert_allclose(norm, limit[name] / size, rtol=1e-4)
