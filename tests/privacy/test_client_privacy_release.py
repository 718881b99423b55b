"""What private clients let out: by hand in NumPy, its noise, and an audit of it."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federation import assert_same_bits
from oracles.problem import draw_params, draw_trace, toy_grad
from scipy import stats
from traces import TOY, stack

from fedjax_muon import engine
from fedjax_muon.algorithms import fedavg, fedmuon, scaffold
from fedjax_muon.compression.compress import compress
from fedjax_muon.compression.compressors import Compressor
from fedjax_muon.core import Algorithm, Exchange, Objective, no_client_state
from fedjax_muon.engine import plans
from fedjax_muon.privacy import FullBatch, gaussian_epsilon, report
from fedjax_muon.privacy.client_accounting import client_spec
from fedjax_muon.privacy.client_mechanism import private_clients

N, KEY = 5, jax.random.key(3)

# ---------------------------------------------------------------------- by hand

TRACE = draw_trace(1, N, N, 3, 4, 5, [3, 9, 5, 14, 7])
WHO = [
    (1, 1, 0, 1, 0),
    (0, 0, 0, 1, 0),
    (1, 1, 1, 1, 1),
    (0, 0, 0, 0, 0),
    (0, 1, 1, 0, 1),
]
EXPECTED = 2


def cut(limit, part):
    """To a Euclidean norm of at most `limit`, all arrays together."""
    norm = np.sqrt(sum(np.sum(array**2) for array in part.values()))
    assert norm > limit  # the clips bind
    return {name: array * limit / norm for name, array in part.items()}


def moved(x, scale, parts):
    return {k: x[k] + scale * sum((p[k] for p in parts), 0 * x[k]) for k in x}


def private_fedavg(x, limit, lr):
    for (ids, data), present in zip(TRACE.rounds, WHO, strict=True):
        sent = []
        for i, batches in zip(ids, data, strict=True):
            if present[i]:
                y = x
                for batch in batches:
                    g = toy_grad(y, batch)
                    y = {k: y[k] - lr * g[k] for k in y}
                sent.append(cut(limit, {k: y[k] - x[k] for k in x}))
        x = moved(x, 1 / EXPECTED, sent)
        yield x


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
    sizes = {"clients": N, "cohort": EXPECTED}
    with jax.enable_x64(True):
        algorithm = private_clients(
            factory(lr=0.3), clip_norm=limit, noise_multiplier=0.0, **sizes
        )
        state = engine.init(algorithm, jax.tree.map(jnp.asarray, x), N)
        step = jax.jit(engine.make_round(algorithm, TOY, N, plans.mapped))
        want = oracle(x, limit, 0.3)
        for (ids, data), present in zip(TRACE.rounds, WHO, strict=True):
            # weights other than 0 all count the same
            weights = jnp.asarray([3.0 * present[i] for i in ids])
            batches = jax.tree.map(jnp.asarray, stack(data))
            state, received = step(state, jnp.array(ids), batches, weights, KEY)
            assert received.tolist() == [bool(present[i]) for i in ids]
            close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
            jax.tree.map(close, state.server.params, next(want))


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


def echo(params, batches, key):
    return batches


ECHO = Objective(echo)


@pytest.mark.slow
def test_the_noise_of_every_part():
    """Independent and normal, of one joint multiplier, even if nobody takes part."""
    noise, first, cohort, worlds = 1.5, 0.7, 2, 2000
    sizes = {"clients": N, "cohort": cohort}
    algorithm = private_clients(
        probe(),
        clip_norm=LIMITS,
        noise_multiplier=noise,
        prologue_noise_multiplier=first,
        **sizes,
    )
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
        return one.server.seen, other.server.seen[1:], received

    one, other, received = run(jax.random.split(KEY, worlds))
    assert not received.any()
    flat = lambda t: [np.asarray(x).reshape(worlds, -1) for x in jax.tree.leaves(t)]
    drawn, again = flat(one), flat(other)
    parts = np.array([1.0, 2.0, 3.0])  # of a round: a, b and the whole message
    wanted = [first * 3.0 / N, *noise * np.sqrt(3) * parts / cohort]
    for samples, std in zip([*drawn, *again], [*wanted, *wanted[1:]], strict=True):
        scaled = samples.ravel() / std
        assert abs(scaled.std() - 1) < 4 / np.sqrt(2 * scaled.size)
        assert stats.kstest(scaled, "norm").pvalue > 1e-3
    # sensitivities over standard deviations, of a whole round
    ratios = parts / cohort / np.array(wanted[1:])
    np.testing.assert_allclose(1 / np.sqrt(np.sum(ratios**2)), noise)
    everything = np.concatenate([*drawn, *again], axis=1)
    apart = np.corrcoef(everything, rowvar=False) - np.eye(everything.shape[1])
    assert np.abs(apart).max() < 5 / np.sqrt(worlds)


def test_the_algorithm_never_learns_how_many_took_part():
    notes: list[Any] = []
    sizes = {"clients": N, "cohort": 2}
    algorithm = private_clients(
        probe(notes=notes), clip_norm=1.0, noise_multiplier=1.0, **sizes
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


def test_a_run_is_a_function_of_its_key():
    sizes = {"clients": N, "cohort": 2}
    algorithm = private_clients(fedavg(), clip_norm=1.0, noise_multiplier=1.0, **sizes)
    x = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), draw_params(0))
    state = engine.init(algorithm, x, N)
    data = jax.tree.map(
        lambda a: jnp.asarray(a, jnp.float32), stack(TRACE.rounds[0][1])
    )
    step = jax.jit(engine.make_round(algorithm, TOY, N, plans.vmapped))
    end = lambda key: step(state, jnp.arange(N), data, jnp.ones(N), key)[0]
    assert_same_bits(end(KEY), end(KEY))
    other = end(jax.random.key(4))
    assert not np.allclose(other.server.params["w"], end(KEY).server.params["w"])


def test_messages_are_clipped_as_they_arrive():
    """A compressor may enlarge what it is given: in either order, the limit holds."""
    thousandfold = Compressor(lambda x, key: x, lambda sent, like: 1000 * sent)
    private = partial(
        private_clients, clip_norm=0.5, noise_multiplier=0.0, clients=1, cohort=1
    )
    itself = Objective(lambda params, batch, key: params)
    x = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    for algorithm in (
        compress(private(fedavg()), thousandfold),
        private(compress(fedavg(), thousandfold)),
    ):
        state = engine.init(algorithm, x, 1)
        step = jax.jit(engine.make_round(algorithm, itself, 1, plans.vmapped))
        state, _ = step(state, jnp.arange(1), jnp.zeros((1, 1)), jnp.ones(1), KEY)
        moves = [
            p - q
            for p, q in zip(
                *map(jax.tree.leaves, (state.server.params, x)), strict=True
            )
        ]
        norm = np.sqrt(sum(float((m**2).sum()) for m in moves))
        np.testing.assert_allclose(norm, 0.5, rtol=1e-6)


def test_low_precision_is_summed_and_noised_in_float32():
    half = jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), draw_params(0))
    data = jax.tree.map(
        lambda a: jnp.asarray(a, jnp.bfloat16), stack(TRACE.rounds[0][1])
    )
    algorithm = private_clients(
        fedmuon(), clip_norm=1.0, noise_multiplier=1.0, clients=N, cohort=N
    )
    before = engine.init(algorithm, half, N)
    for make in (engine.make_prologue, engine.make_round):
        run = make(algorithm, TOY, N, plans.vmapped)
        after, _ = jax.eval_shape(run, before, jnp.arange(N), data, jnp.ones(N), KEY)
        form = lambda t: jax.tree.map(lambda x: (x.shape, x.dtype), t)
        assert form(after) == form(before)
    received = jax.eval_shape(algorithm.exchanges[0].decode, algorithm.init(half))
    assert {x.dtype for x in jax.tree.leaves(received)} == {jnp.dtype("float32")}


# ----------------------------------------------------------------------- an audit


def lower_bound(scores, others, threshold, delta):
    """Epsilon that a threshold test proves, by Clopper-Pearson bounds of 97.5%."""
    count = len(scores)
    upper = lambda errors: stats.beta.ppf(0.975, errors + 1, count - errors)
    missed, false = np.sum(scores <= threshold), np.sum(others > threshold)
    mu = -stats.norm.ppf(upper(missed)) - stats.norm.ppf(upper(false))
    return gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0


@pytest.mark.slow
def test_an_audit_with_a_client_that_is_there_or_not():
    """Its bound comes near the promise, and exceeds one that is ten times too good."""
    rounds, worlds, noise, delta = 4, 2000, 1.5, 1e-2
    sizes = {"clients": N, "cohort": N}
    # one step from params to params - gradient: the gradient is what is sent
    algorithm = private_clients(
        fedavg(lr=1.0), clip_norm=0.1, noise_multiplier=noise, **sizes
    )
    rng = np.random.default_rng(0)
    batches = jnp.asarray(rng.normal(size=(N, 1, 8)), jnp.float32)
    batches = batches.at[0].set(1e3 * jnp.eye(8)[0])

    @jax.jit
    def end(keys, there):
        def one(key):
            state = engine.init(algorithm, jnp.zeros(8), N)
            step = engine.make_round(algorithm, ECHO, N, plans.vmapped)
            weights = jnp.ones(N).at[0].set(there)
            given = jnp.arange(N), batches, weights, key
            body = lambda state, _: (step(state, *given)[0], None)
            return jax.lax.scan(body, state, None, rounds)[0].server.params[0]

        return jax.vmap(one)(keys)

    keys = jax.random.split(KEY, 2 * worlds)
    scores = -np.asarray(end(keys[:worlds], 1.0))
    others = -np.asarray(end(keys[worlds:], 0.0))
    # half way between the two means, which are known
    rest = np.asarray(batches[1:, 0])
    rest = rest / np.maximum(1, np.linalg.norm(rest, axis=1, keepdims=True) / 0.1)
    threshold = rounds * (rest[:, 0].sum() + 0.05) / N
    proven = lower_bound(scores, others, threshold, delta)
    facts = {"rounds": rounds, "delta": delta, "prologue": False}
    facts["private_states"] = False
    claims = [
        report(client_spec(FullBatch(N), noise_multiplier=z, **facts)).epsilon
        for z in (noise, 10 * noise)
    ]
    assert 0.8 * claims[0] < proven < claims[0]
    assert proven > claims[1]


# --------------------------------------------------------------------- refusals

FINE: dict[str, Any] = {
    "clip_norm": 1.0,
    "noise_multiplier": 1.0,
    "clients": 5,
    "cohort": 2,
}
NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"clip_norm": 0.0}, ValueError, "^clip_norm must lie in"),
        ({"clip_norm": {"params": -1.0}}, ValueError, "^clip_norm of params must lie"),
        ({"clip_norm": "all"}, TypeError, "^clip_norm must be a number, got 'all'"),
        ({"noise_multiplier": -1.0}, ValueError, "^noise_multiplier must lie in"),
        ({"prologue_noise_multiplier": NAN}, ValueError, "^prologue_noise_multiplier"),
        ({"clients": 2.5}, TypeError, "clients must be a whole number"),
        ({"cohort": 0}, ValueError, "cohort must be at least 1, got 0"),
        ({"cohort": 6}, ValueError, r"cohort must lie in \[1, 5\], got 6"),
    ],
)
def test_bad_settings_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        private_clients(fedavg(), **{**FINE, **changes})


@pytest.mark.parametrize("limit", [{"params": 1.0}, {}, {"momentum": 1.0, "c": 1.0}])
def test_limits_name_all_parts_and_no_others(limit):
    algorithm = private_clients(fedmuon(), **{**FINE, "clip_norm": limit})
    pattern = "all messages, momentum, params; got"
    with pytest.raises(ValueError, match=pattern):
        engine.init(algorithm, {"w": jnp.ones((2, 2))}, 5)
