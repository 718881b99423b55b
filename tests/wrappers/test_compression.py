"""Algorithms whose messages are compressed, against NumPy in float64; their bytes."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon import engine
from fedjax_muon.algorithms import ALL, diloco, fedavg, fedmuon, fedmuon_align
from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Objective,
    broadcast_params,
    broadcast_state,
    map_exchanges,
    no_client_state,
    tree,
)
from fedjax_muon.engine import plans
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.privacy.client_mechanism import private_clients
from fedjax_muon.transforms import muon
from fedjax_muon.wrappers.compression import (
    Compressor,
    compress,
    compress_broadcasts,
    memory_share,
    no_compression,
    power_iteration,
    quantize,
    rank_share,
    top_k,
    truncated_svd,
)
from tests.oracles import compression as oracle, fedavg as avg
from tests.oracles.cases import FULL, PARTIAL, SIZES, X
from tests.oracles.outer import muloco as muloco_oracle
from tests.oracles.problem import draw_params, draw_trace, first_gradient, mean
from tests.support.federation import assert_same_bits
from tests.support.traces import TOY, farthest, path, precision, run, stack

N, KEY = 5, jax.random.key(0)
EXACT = muon(0.98, polar=kernel.polar)
ZERO = Objective(lambda params, batch, key: tree.zeros_like(params))


def sent_by(exchanges, algorithm, params=X):
    single = lambda a: jax.ShapeDtypeStruct(np.shape(a), jnp.float32)
    params, one = jax.tree.map(single, (params, np.empty(1)))
    return engine.traffic(exchanges, algorithm, ZERO, params, one)


def uploaded(algorithm, params=X):
    return sent_by(algorithm.exchanges, algorithm, params).up


def costs(algorithm):
    phases = algorithm.prologue, algorithm.exchanges
    return [sent_by(exchanges, algorithm) for exchanges in phases]


# ------------------------------------------------------------------- no compression

TWO = draw_trace(5, 2, 2, 2, 3, 2, [3, 4])


def simple(params, batch, key):
    """Quick to compile, different for every client, batch and parameter."""
    x, y, _ = batch
    return jax.tree.map(lambda p: jnp.mean(x) * p + jnp.mean(y), params)


SIMPLE = Objective(simple)


def states(algorithm):
    """The states after the prologue and each round, eagerly around compiled parts."""
    cast = lambda t: jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), t)
    given = lambda batches: (jnp.arange(2), cast(stack(batches)), jnp.ones(2), KEY)
    state = engine.init(algorithm, cast(X), 2)
    start = engine.make_prologue(algorithm, SIMPLE, 2, plans.loop)
    state, _ = start(state, *given(TWO.first))
    seen = [state]
    for _, data in TWO.rounds:
        step = engine.make_round(algorithm, SIMPLE, 2, plans.loop)
        state, received = step(state, *given(data))
        assert bool(received.all())
        seen.append(state)
    return seen


# without states, with them; with a prologue, several parts, two points, both
FAST = ["fedavg", "scaffold"]
OTHERS = ["fedmuon", "fedmuon_svd"]  # a prologue, messages that are decoded


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_the_identity_changes_no_bit(name):
    quickly = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    algorithm = ALL[name].function()

    def once(number, exchange):  # compiled once for all three
        compiled = quickly(partial(exchange.client, SIMPLE))

        def client(objective, *given):
            known = objective is SIMPLE
            return compiled(*given) if known else exchange.client(objective, *given)

        return exchange._replace(client=client)

    plain = map_exchanges(once, algorithm)
    want = states(plain)
    for feedback in (None, 1.0):
        made = compress(plain, no_compression(), feedback=feedback)
        for flag in ("uniform_weights", "full_participation"):
            assert getattr(made, flag) == getattr(plain, flag), flag
        for one, other in zip(states(made), want, strict=True):
            assert_same_bits(one.server, other.server)
            assert_same_bits(one.client_states.inner, other.client_states)
            errors = jax.tree.leaves(one.client_states.errors)
            assert bool(errors) == (feedback is not None)
            assert not any(e.any() for e in errors)
    assert costs(algorithm) == costs(
        compress(algorithm, no_compression(), feedback=1.0)
    )


# ------------------------------------------------------------------- error feedback
def by_client(state):
    """The errors of the only exchange, for each client by name (sorted, as leaves)."""
    ((_, stacked),) = state.client_states.errors.items()
    return [
        {k: e[i] for k, e in zip(sorted(X), stacked, strict=True)} for i in range(N)
    ]


@pytest.mark.parametrize(
    "feedback",
    [0.9, *(pytest.param(value, marks=pytest.mark.slow) for value in (1.0, None))],
)
def test_fedavg_with_top_k_follows_its_oracle(feedback):
    # in round 1 a client drops out, in round 3 one sends nonsense
    lost = {(1, PARTIAL.rounds[1][0][0]), (3, PARTIAL.rounds[3][0][1])}
    want, errors = oracle.fedavg(X, PARTIAL, 0.3, oracle.largest(0.4), feedback, lost)
    algorithm = compress(fedavg(lr=0.3), top_k(0.4), feedback=feedback)
    with jax.enable_x64(True):
        state = engine.init(algorithm, jax.tree.map(jnp.asarray, X), N)
        step = jax.jit(engine.make_round(algorithm, TOY, N, plans.mapped))
        for r, (ids, data) in enumerate(PARTIAL.rounds):
            weights = jnp.array(SIZES, float)[jnp.array(ids)]
            x, y, weight = (jnp.asarray(leaf) for leaf in stack(data))
            weights = weights.at[0].set(0) if r == 1 else weights
            y = y.at[1, 2, 0].set(jnp.nan) if r == 3 else y
            state, received = step(state, jnp.array(ids), (x, y, weight), weights, KEY)
            assert received.tolist() == [(r, i) not in lost for i in ids]
            assert farthest([state.server.params], [want[r]]) <= 1e-10
            if feedback is None:
                assert state.client_states.errors == {}
            else:
                assert farthest(by_client(state), errors[r]) <= 1e-10
    assert farthest(want[-1:], avg.fedavg_weighted(X, PARTIAL, 0.3)[-1:]) >= 1e-2
    if feedback is not None:
        moved = [np.abs(e["w"]).max() > 1e-3 for e in errors[-1]]
        assert sum(moved) >= 4


@pytest.mark.slow
def test_muloco_with_quantized_moves_follows_its_oracle():
    want, errors = oracle.muloco(X, PARTIAL, 0.02, oracle.on_grid(3), 0.9)
    rest = optax.scale_by_adam(0.9, 0.99)
    rule = muon(0.9, polar=kernel.polar, rest=rest)
    exact = diloco(lr=0.02, server_lr=0.8, rule=rule)
    seen = run(compress(exact, quantize(3), feedback=0.9), X, PARTIAL)
    assert farthest([s.server.params for s in seen], want) <= 1e-10
    for state, kept in zip(seen, errors, strict=True):
        assert farthest(by_client(state), kept) <= 1e-10
    assert farthest(want[-1:], muloco_oracle(X, PARTIAL, 0.02)[-1:]) >= 1e-3


# --------------------------------------------------------------- low rank, and fields

WIDE = draw_params(3, 8, 6)
WIDE_TRACE = draw_trace(4, N, 3, 3, 6, 4, SIZES, features=8, outputs=6)


@pytest.mark.parametrize(
    ("rank", "low"),
    [
        (memory_share(0.8), oracle.by_memory("0.8")),
        (rank_share(0.6), oracle.by_rank("0.6")),
    ],
    ids=["memory", "rank"],
)
def test_fedmuon_of_low_rank_follows_its_oracle(rank, low):
    want = oracle.fedmuon_svd(WIDE, WIDE_TRACE, 0.03, low)
    plain = fedmuon_align(rule=EXACT)
    made = compress(plain, truncated_svd(rank), fields=["momentum"])
    assert farthest(path(made, WIDE, WIDE_TRACE), want) <= 1e-10
    whole = oracle.fedmuon_svd(WIDE, WIDE_TRACE, 0.03, lambda v: v)
    assert farthest(whole[-1:], want[-1:]) >= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("momentum_first", [True, False])
def test_parts_may_have_compressors_of_their_own(momentum_first):
    steps = [
        partial(compress, compressor=truncated_svd(2), fields=("momentum",)),
        partial(compress, compressor=top_k(0.4), fields=("params",), feedback=0.9),
    ]
    first, second = steps if momentum_first else steps[::-1]
    made = second(first(fedmuon_align(rule=EXACT)))
    low = lambda v: oracle.low_rank(v, 2) if v.ndim > 1 else v
    largest = oracle.largest(0.4)
    want = oracle.fedmuon_svd(WIDE, WIDE_TRACE, 0.03, low, largest, 0.9)
    assert farthest(path(made, WIDE, WIDE_TRACE), want) <= 1e-10
    assert uploaded(made, WIDE) == 4 * 2 * (8 + 6 + 1) + 8 * (19 + 2)


@pytest.mark.slow
def test_what_the_prologue_sends_is_compressed_and_its_errors_forgotten():
    algorithm = compress(fedmuon(), top_k(0.4), feedback=1.0)
    with precision(jnp.float64):
        state = engine.init(algorithm, jax.tree.map(jnp.asarray, X), N)
        given = jnp.arange(N), jax.tree.map(jnp.asarray, stack(FULL.first))
        start = jax.jit(engine.make_prologue(algorithm, TOY, N, plans.vmapped))
        state, _ = start(state, *given, jnp.ones(N), KEY)
        largest, gradient = oracle.largest(0.4), partial(first_gradient, FULL, X)
        sent = [{k: largest(v) for k, v in gradient(i).items()} for i in range(N)]
        assert farthest([state.server.momentum], [mean(sent)]) <= 1e-12
        whole = mean([gradient(i) for i in range(N)])
        assert farthest([whole], [mean(sent)]) >= 1e-2
        assert list(state.client_states.errors) == [1]
        assert not any(e.any() for e in jax.tree.leaves(state.client_states.errors))


# ----------------------------------------------------------------------------- bytes


def test_compressed_bytes_are_counted():
    assert uploaded(compress(fedavg(), top_k(0.4), feedback=1.0)) == 8 * (5 + 1)
    assert uploaded(compress(fedavg(), quantize(3))) == 5 + 2 + 2 * 2 * 4
    low = truncated_svd(2, rest=quantize(8))
    assert uploaded(compress(fedavg(), low)) == 4 * 2 * (4 + 3 + 1) + 3 + 2 * 4


# ------------------------------------------------------------------------ broadcasts


def test_fedavg_with_compressed_broadcasts_follows_its_oracle():
    want, copies = oracle.fedavg_from_copies(X, PARTIAL, 0.3, oracle.largest(0.4))
    seen = run(compress_broadcasts(fedavg(lr=0.3), top_k(0.4)), X, PARTIAL)
    assert farthest([s.server.params for s in seen], want) <= 1e-10
    kept = [dict(zip(sorted(X), s.server.kept[0], strict=True)) for s in seen]
    assert farthest(kept, copies) <= 1e-10
    assert farthest(want[-1:], avg.fedavg(X, PARTIAL, 0.3)[-1:]) >= 1e-2


@pytest.mark.parametrize(
    "name", ["scaffold", pytest.param("fedmuon", marks=pytest.mark.slow)]
)
def test_broadcasts_may_be_sent_whole(name):
    plain = ALL[name].function(lr=0.1)
    made = compress_broadcasts(plain, no_compression())
    for flag in ("uniform_weights", "full_participation"):
        assert getattr(made, flag) == getattr(plain, flag), flag
    assert costs(made) == costs(plain)
    assert farthest(path(made, X, PARTIAL), path(plain, X, PARTIAL)) <= 1e-12


def test_compressed_broadcasts_are_counted():
    made = compress_broadcasts(fedavg(), top_k(0.4))
    assert costs(made) == [(0, 0), (8 * (5 + 1), 4 * 15)]
    assert costs(compress(made, quantize(3)))[1] == (48, 5 + 2 + 2 * 2 * 4)
    assert costs(compress_broadcasts(compress(fedavg(), quantize(3)), top_k(0.4)))[
        1
    ] == (48, 5 + 2 + 2 * 2 * 4)
    some = compress_broadcasts(ALL["fedcm"].function(), top_k(0.4), fields=["momentum"])
    assert costs(some)[1] == (4 * 15 + 48, 4 * 15)
    first = compress_broadcasts(fedmuon(), top_k(0.4))
    assert costs(first) == [costs(fedmuon())[0], (2 * 48, 8 * 15)]
    mechanism = {"clip_norm": 1.0, "noise_multiplier": 1.0, "clients": N, "cohort": 3}
    assert costs(private_clients(made, **mechanism))[1] == costs(made)[1]


@pytest.mark.slow
def test_both_directions_may_be_compressed():
    one = compress_broadcasts(
        compress(fedavg(lr=0.3), quantize(3), feedback=1.0), top_k(0.4)
    )
    other = compress(
        compress_broadcasts(fedavg(lr=0.3), top_k(0.4)), quantize(3), feedback=1.0
    )
    found = path(one, X, PARTIAL)
    assert farthest(found, path(other, X, PARTIAL)) == 0
    alone = path(compress_broadcasts(fedavg(lr=0.3), top_k(0.4)), X, PARTIAL)
    assert farthest(found, alone) >= 1e-3


# ------------------------------------------------------------------------- refusals


FIRST = compress(fedmuon_align(), top_k(0.5), fields=["params"])


def nameless() -> Algorithm:
    """An algorithm whose messages are no named tuples."""

    def client(objective, broadcast, client_state, batches, round):
        return objective.grad(broadcast.params, batches, round.key), client_state

    server = lambda state, mean, round: state
    main = Exchange(broadcast_params, client, server)
    return fedavg()._replace(init_client=no_client_state, exchanges=(main,))


@pytest.mark.parametrize(
    ("algorithm", "compressor", "fields", "message"),
    [
        (fedmuon_align(), no_compression(), ["momenta"], "^no message has a field"),
        (fedmuon_align(), no_compression(), ["params", "sent"], "has a field 'sent';"),
        (FIRST, no_compression(), ["sent"], "'sent'; there are momentum, params$"),
        (nameless(), no_compression(), ["params"], "^no message has a field 'params';"),
        (fedavg(), truncated_svd(1), [], r"^message.params\['b'\] can.t be .* array"),
        (fedmuon_align(), truncated_svd(4), ["momentum"], r"^message.momentum\[0\]"),
        (ALL["stem"].function(), power_iteration(1), [], r"^message.* can't be"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("feedback", [None, 1.0])
def test_misfits_are_refused_at_once(algorithm, compressor, fields, message, feedback):
    made = compress(algorithm, compressor, fields=fields, feedback=feedback)
    with pytest.raises(ValueError, match=message):
        engine.init(made, X, N)


# ---------------------------- what the engine makes of messages, whatever the algorithm
class Parts(NamedTuple):
    """One array, or a pair, for every compressor."""

    whole: Any
    low: Any
    power: Any
    sparse: Any
    coarse: Any


LOW = truncated_svd(1, rest=no_compression()), power_iteration(1, rest=quantize(3))
EACH = Parts(no_compression(), *LOW, top_k(0.3), quantize(4))


class Echo(NamedTuple):
    params: Any
    seen: tuple[Any, ...]  # the last means of messages, of two exchanges


def echo(*, exchanges=1):
    def client(objective, broadcast, client_state, batches, round):
        return objective.grad(broadcast.params, batches, round.key), client_state

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


def drawn(clients):
    """Messages with a matrix and a vector for every compressor."""
    rng = np.random.default_rng(0)
    one = lambda *shape: jnp.asarray(rng.normal(size=(clients, *shape)), jnp.float32)
    return Parts(*((one(4, 3), one(5)) for _ in EACH))


def test_messages_that_are_not_finite_are_dropped():
    # one client for every part and value, and two that are well
    poisons = [(part, v) for part in Parts._fields for v in (np.nan, np.inf, -np.inf)]
    clients = len(poisons) + 2
    messages = sound = drawn(clients)
    for i, (part, value) in enumerate(poisons):
        matrix, vector = getattr(messages, part)
        if i % 2:
            matrix = matrix.at[i, 2, 1].set(value)
        else:
            vector = vector.at[i, 3].set(value)
        messages = messages._replace(**{part: (matrix, vector)})
    algorithm = echo()
    for part, compressor in EACH._asdict().items():
        algorithm = compress(algorithm, compressor, fields=[part])
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

    algorithm = compress(echo(exchanges=2), noise, fields=["noise"])
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
