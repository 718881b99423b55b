"""Plans, keys, weights, draws and memory, on algorithms written for the purpose."""

from itertools import pairwise
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon import engine
from fedjax_muon.algorithms import fedavg, scaffold
from fedjax_muon.core import Algorithm, Exchange, Objective, broadcast_state
from fedjax_muon.core.tree import nbytes
from fedjax_muon.engine import plans

pytestmark = pytest.mark.portable

N, S = 7, 5
KEY = jax.random.key(11)
PLANS = {"loop": plans.loop, "mapped": plans.mapped, "vmapped": plans.vmapped}
PLANS |= {f"chunked({size})": plans.chunked(size) for size in (1, 2, 5, 8)}
FAST = ("mapped", "chunked(2)")
every_plan = pytest.mark.parametrize(
    "plan",
    [
        pytest.param(plan, id=name, marks=[pytest.mark.slow] * (name not in FAST))
        for name, plan in PLANS.items()
    ],
)
UNUSED = Objective(lambda params, batch, key: params)  # of clients that ask no gradient


class Server(NamedTuple):
    params: Any
    seen: Any  # whatever a test wants to look at


def note_keys(slot):
    """An exchange in which everybody writes down the keys that they were given."""
    data = jax.random.key_data

    def client(objective, broadcast, client_state, batches, round):
        given = {slot: data(round.key), f"{slot} draw": batches[0]}
        return jnp.zeros(()), {**client_state, **given}

    seen = lambda state, round: {**state.seen, slot: data(round.key)}
    server = lambda state, mean, round: state._replace(seen=seen(state, round))
    return Exchange(broadcast_state, client, server)


FEW = 4


def keys_of(plan, cohort, rounds):
    """All keys of some rounds: those of the clients, and those of the server."""
    nothing = jnp.zeros(2, jnp.uint32)
    slots = ("before", "one", "two")
    empty = {name: nothing for slot in slots for name in (slot, f"{slot} draw")}
    before, one, two = map(note_keys, slots)
    begin = lambda params: Server(params, dict.fromkeys(slots, nothing))
    algorithm = Algorithm(begin, lambda params: empty, (one, two), (before,))
    draw = lambda entry, key: jax.random.key_data(key)[None]
    start = jax.jit(engine.make_prologue(algorithm, UNUSED, FEW, plan, draw))
    step = jax.jit(engine.make_round(algorithm, UNUSED, FEW, plan, draw))
    state = engine.init(algorithm, jnp.zeros(2), FEW)
    state, _ = start(state, jnp.arange(FEW), jnp.zeros(FEW), jnp.ones(FEW), KEY)
    states, size = [], len(cohort)
    for _ in range(rounds):
        state, _ = step(state, cohort, jnp.zeros(size), jnp.ones(size), KEY)
        states.append(jax.tree.map(np.asarray, state))
    return states


@pytest.fixture(scope="module")
def all_keys():
    return keys_of(plans.vmapped, jnp.arange(FEW), 2)


def test_no_two_keys_are_alike(all_keys):
    first = all_keys[0]
    clients = [first.client_states[name] for name in ("before", "before draw")]
    server = [first.server.seen["before"]]
    for state in all_keys:
        given = state.client_states
        np.testing.assert_array_equal(given["one draw"], given["two draw"])
        clients += [given[name] for name in ("one", "two", "one draw")]
        server += [state.server.seen[name] for name in ("one", "two")]
    keys = np.concatenate([*clients, server]).tolist()
    assert len(keys) == (2 * 3 + 2) * FEW + 2 * 2 + 1
    assert len({tuple(key) for key in keys}) == len(keys)


@every_plan
def test_keys_depend_on_the_round_and_the_client_alone(plan, all_keys):
    cohort = jnp.array([3, 0, 2])
    for state, all_clients in zip(keys_of(plan, cohort, 2), all_keys, strict=True):
        of_cohort = lambda s: jax.tree.map(lambda x: x[cohort], s.client_states)
        for part in (of_cohort, lambda s: s.server.seen):
            got, given = part(state), part(all_clients)
            jax.tree.map(np.testing.assert_array_equal, got, given)


def newton():
    """x <- x - (mean Hessian)^-1 (mean gradient) of f_i = x' A_i x / 2 - b_i' x."""

    def slope(objective, x, client_state, batches, round):
        (a,), (b,) = batches
        return a @ x - b, {**client_state, "asked": client_state["asked"] + 1}

    def curvature(objective, broadcast, client_state, batches, round):
        seen = {"gradient": broadcast, "asked": client_state["asked"] + 1}
        return batches[0][0], seen

    begin = lambda params: {"gradient": params, "asked": jnp.int32(0)}
    sent = lambda state, round: state.params
    keep = lambda state, mean, round: state._replace(seen=mean)
    step = lambda state, mean: state.params - jnp.linalg.solve(mean, state.seen)
    solve = lambda state, mean, round: state._replace(params=step(state, mean))
    second = Exchange(lambda state, round: state.seen, curvature, solve)
    exchanges = Exchange(sent, slope, keep), second
    return Algorithm(lambda p: Server(p, p), begin, exchanges)


def quadratics():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(S, 1, 3, 3)) + 4 * np.eye(3)
    return a, rng.normal(size=(S, 1, 3)), np.array([0.5, 2.0, 0.0, 1.0, 3.0])


COHORT = jnp.array([6, 0, 3, 2, 5])


@every_plan
def test_two_exchanges_and_weighted_means(plan):
    a, b, weights = quadratics()
    as_float32 = lambda *arrays: tuple(jnp.asarray(x, jnp.float32) for x in arrays)
    algorithm = newton()
    run = jax.jit(engine.make_round(algorithm, UNUSED, N, plan))
    state = engine.init(algorithm, jnp.ones(3), N)
    given = as_float32(a, b), *as_float32(weights), KEY
    state, received = run(state, COHORT, *given)
    gradients = np.einsum("skij,j->ski", a, np.ones(3)) - b
    mean = np.average(gradients[:, 0], axis=0, weights=weights)
    np.testing.assert_allclose(state.server.seen, mean, rtol=1e-5)
    total = lambda leaf: np.einsum("s,s...->...", weights, leaf[:, 0])
    minimiser = np.linalg.solve(total(a), total(b))
    np.testing.assert_allclose(state.server.params, minimiser, rtol=1e-4, atol=1e-5)
    assert received.tolist() == [True, True, False, True, True]
    expected = np.zeros(N)
    expected[np.asarray(COHORT)] = [2, 2, 0, 2, 2]
    np.testing.assert_array_equal(state.client_states["asked"], expected)
    np.testing.assert_allclose(state.client_states["gradient"][6], mean, rtol=1e-5)
    np.testing.assert_array_equal(state.client_states["gradient"][3], np.ones(3))
    assert int(state.index) == 1


@every_plan
def test_who_is_lost_in_one_exchange_is_not_asked_in_the_next(plan):
    a, b, weights = quadratics()
    run = jax.jit(engine.make_round(newton(), UNUSED, N, plan))
    state = engine.init(newton(), jnp.ones(3), N)
    batches = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
    ill = batches[0], batches[1].at[1].set(jnp.nan)
    weights = jnp.asarray(weights, jnp.float32)
    without, _ = run(state, COHORT, batches, weights.at[1].set(0), KEY)
    after, received = run(state, COHORT, ill, weights, KEY)
    assert received.tolist() == [True, False, False, True, True]
    jax.tree.map(np.testing.assert_array_equal, after, without)


def census():
    """Everybody writes down what they are told of the round."""
    numbers = lambda r: (r.index, r.steps, r.clients, r.fraction)
    told = lambda round: jnp.stack([jnp.float32(v) for v in numbers(round)])
    client = lambda _, broadcast, __, batches, round: (
        batches[0] * broadcast,
        told(round),
    )
    server = lambda state, mean, round: state._replace(seen=told(round))
    exchange = Exchange(lambda state, round: state.params, client, server)
    nobody = jnp.zeros(4)
    return Algorithm(lambda p: Server(p, nobody), lambda p: nobody, (exchange,))


@every_plan
def test_everyone_knows_how_many_take_part(plan):
    run = jax.jit(engine.make_round(census(), UNUSED, N, plan))
    state = engine.init(census(), jnp.float32(1), N)
    batches = jnp.ones((S, 3)).at[4].set(jnp.nan)
    state, received = run(state, COHORT, batches, jnp.ones(S).at[0].set(0), KEY)
    assert received.tolist() == [False, True, True, True, False]
    # the clients are told who was asked, the server who answered
    np.testing.assert_allclose(state.client_states[3], [0, 3, 4, 4 / N], rtol=1e-6)
    np.testing.assert_allclose(state.server.seen, [0, 3, 3, 3 / N], rtol=1e-6)
    np.testing.assert_array_equal(state.client_states[5], np.zeros(4))


@pytest.mark.slow
def test_chunks_run_without_compilation_too():
    algorithm, objective = fedavg(), Objective(lambda p, batch, key: p - batch)
    state = engine.init(algorithm, jnp.zeros(2), N)
    given = state, COHORT, jnp.ones((S, 3, 2)), jnp.ones(S), KEY
    run = lambda plan: engine.make_round(algorithm, objective, N, plan)(*given)
    a, b = run(plans.vmapped), run(plans.chunked(2))
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=1e-6), a, b)


FEATURES, CLASSES, BATCH, STEPS = 8, 4, 4, 2
MODEL = nn.Sequential([nn.Dense(32), nn.relu, nn.Dense(CLASSES)])


def mlp_grad(params, batch, key):
    x, y = batch

    def loss(p):
        logits = MODEL.apply({"params": p}, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    return jax.grad(loss)(params)


MLP = Objective(mlp_grad)


def compiled(algorithm, plan, clients, donate=False):
    """A round of all of so many clients, who draw their batches by themselves."""

    def run(state, cohort, weights, key, x, y):
        def draw(client, key):
            rows = (client + jax.random.randint(key, (STEPS, BATCH), 0, 50)) % len(x)
            return x[rows], y[rows]

        round = engine.make_round(algorithm, MLP, clients, plan, draw)
        return round(state, cohort, cohort, weights, key)

    example = jnp.zeros((1, FEATURES))
    params = jax.eval_shape(MODEL.init, KEY, example)["params"]
    state = jax.eval_shape(lambda p: engine.init(algorithm, p, clients), params)
    shaped = lambda dtype, *shape: jax.ShapeDtypeStruct(shape, dtype)
    given = shaped(jnp.int32, clients), shaped(jnp.float32, clients)
    given += jax.eval_shape(lambda: KEY), shaped(jnp.float32, 1000, FEATURES)
    given += (shaped(jnp.int32, 1000),)
    jitted = jax.jit(run, donate_argnums=0 if donate else ())
    memory = jitted.lower(state, *given).compile().memory_analysis()
    return memory, nbytes(params), nbytes(state)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_cohort():
    # A client costs what its row holds: an id, a weight and two keys, 24 bytes, and a
    # note of one byte; not its batches (288 bytes), and not a model (1,680).
    plan, sizes = plans.chunked(10), (100, 1000)
    runs = [compiled(fedavg(), plan, size) for size in sizes]
    model = runs[0][1]
    assert model == 4 * (FEATURES * 32 + 32 + 32 * CLASSES + CLASSES)
    temporary = [memory.temp_size_in_bytes for memory, _, _ in runs]
    for (n, small), (m, large) in pairwise(zip(sizes, temporary, strict=True)):
        assert (large - small) / (m - n) <= 25
    few, many = (compiled(fedavg(), plans.vmapped, size)[0] for size in sizes[:2])
    assert (many.temp_size_in_bytes - few.temp_size_in_bytes) / 900 > model


@pytest.mark.slow
def test_private_rows_are_streamed_and_the_state_is_reused():
    memory, model, state = compiled(scaffold(), plans.chunked(10), 10_000, donate=True)
    client_states = 10_000 * model
    assert memory.temp_size_in_bytes < 25 * 10_000 + 50 * model < client_states / 10
    assert memory.alias_size_in_bytes >= client_states
    assert state - client_states <= 3 * model


@pytest.mark.parametrize("plan", ["mapped", "chunked(2)"])
def test_the_donated_state_is_reused(plan):
    memory, _, state = compiled(scaffold(), PLANS[plan], N, donate=True)
    assert memory.alias_size_in_bytes >= state


def test_init_copies_the_parameters():
    params, algorithm = {"w": jnp.ones(2)}, scaffold()
    state = engine.init(algorithm, params, N)
    assert jax.tree.map(jnp.shape, state.client_states) == {"w": (N, 2)}
    round = engine.make_round(algorithm, UNUSED, N, plans.vmapped)
    run = jax.jit(round, donate_argnums=0)
    run(state, COHORT, jnp.ones((S, 1)), jnp.ones(S), KEY)
    np.testing.assert_array_equal(params["w"], [1, 1])
    assert engine.init(algorithm, {"w": np.ones(2)}, 1).server.params["w"].shape == (2,)


@every_plan
def test_without_a_prologue_or_states_nothing_happens_before_round_0(plan):
    algorithm = fedavg()
    state = engine.init(algorithm, jnp.ones(2), N)
    assert state.client_states == algorithm.init_client(jnp.ones(2)) == ()
    start = jax.jit(engine.make_prologue(algorithm, UNUSED, N, plan))
    given = jnp.arange(N), jnp.ones((N, 1)), jnp.ones(N).at[2].set(0), KEY
    after, received = start(state, *given)
    jax.tree.map(np.testing.assert_array_equal, after, state)
    assert received.tolist() == [i != 2 for i in range(N)]


def test_the_plan_of_cpus_is_mapped():
    assert jax.default_backend() == "cpu"
    assert plans.default_plan() is plans.mapped
