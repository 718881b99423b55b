"""The local loop, hyperparameters, wrappers, and arithmetic on pytrees."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Objective,
    Round,
    after_first,
    broadcast_state,
    check_range,
    descend,
    local_steps,
    map_exchanges,
    mean_gradient,
    move,
    no_client_state,
    tree,
    value_at,
)
from fedjax_muon.transforms import muon, orthogonalize

pytestmark = pytest.mark.portable

KEY = jax.random.key(3)
K = 5
NO_OBJECTIVE = Objective(lambda params, batch, key: params)  # moves ask no gradient


def in_round(index):
    return Round(jnp.int32(index), KEY, K, 3, 0.5)


# -------------------------------------------------------------------- the local loop
def test_local_steps_are_a_python_loop():
    batches = {"a": jnp.arange(2.0 * K).reshape(K, 2), "b": jnp.ones((K, 3))}

    def step(carry, batch, key):
        x, count = carry
        noise = jax.random.normal(key, (2,))
        x = 0.5 * x + batch["a"] + noise
        return (x, count + 1), {"x": x, "sum": jnp.sum(batch["b"]) * x[0]}

    start = jnp.ones(2), 0
    run = jax.jit(lambda: local_steps(step, start, batches, in_round(0)))
    (x, count), seen = run()
    now, each = start, []
    rows = [{name: b[k] for name, b in batches.items()} for k in range(K)]
    for row, key in zip(rows, jax.random.split(KEY, K), strict=True):
        now, what = step(now, row, key)
        each.append(what)
    np.testing.assert_allclose(x, now[0], rtol=1e-6)
    assert count == K
    for name in ("x", "sum"):
        by_numpy = np.mean([np.asarray(what[name], float) for what in each], axis=0)
        np.testing.assert_allclose(seen[name], by_numpy, rtol=1e-6)


def test_every_local_step_has_another_key():
    def step(carry, batch, key):
        k, keys = carry
        return (k + 1, keys.at[k].set(jax.random.key_data(key))), ()

    carry = jnp.int32(0), jnp.zeros((K, 2), jnp.uint32)
    (_, keys), seen = local_steps(step, carry, jnp.zeros(K), in_round(0))
    assert seen == ()
    assert len({tuple(key) for key in np.asarray(keys).tolist()}) == K


def test_local_steps_store_no_more_than_one_of_what_they_see():
    size = 1000
    step = lambda carry, batch, key: (carry, jnp.full(size, batch))
    run = lambda batches: local_steps(step, 0.0, batches, in_round(0))[1]
    jaxpr = jax.make_jaxpr(run)(jnp.zeros(K))
    shapes = [v.aval.shape for eqn in jaxpr.eqns for v in eqn.outvars]
    assert (size,) in shapes
    assert all(math.prod(shape) <= size for shape in shapes)


def test_mean_gradient_is_taken_at_one_point():
    gradient = lambda p, batch, key: p * batch + jax.random.normal(key)
    batches = jnp.arange(4.0)
    got = mean_gradient(Objective(gradient), jnp.float32(2.0), batches, in_round(0))
    noise = [float(jax.random.normal(key)) for key in jax.random.split(KEY, 4)]
    assert float(got) == pytest.approx(2 * 1.5 + np.mean(noise), rel=1e-6)


def test_move_is_descent_along_the_rules_direction():
    params = {"w": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}
    gradient = {"w": jnp.array([0.3, 0.1]), "b": jnp.array(-1.0)}
    rule = optax.chain(optax.trace(0.9), optax.add_decayed_weights(0.1))
    optimiser = optax.chain(rule, optax.scale(-0.2))
    x, opt = params, rule.init(params)
    y, state = params, optimiser.init(params)
    for _ in range(3):
        x, opt = move(NO_OBJECTIVE, x, 0.2, rule, opt, gradient)
        updates, state = optimiser.update(gradient, state, y)
        y = optax.apply_updates(y, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), x, y)


def test_moves_are_projected_and_descents_are_not():
    nearest = lambda params: jax.tree.map(lambda x: jnp.clip(x, -1, 1), params)
    params, gradient = {"w": jnp.array([0.5, -0.5])}, {"w": jnp.array([-1.0, -0.2])}
    rule = optax.trace(0.9)
    opt = rule.init(params)
    boxed = NO_OBJECTIVE._replace(project=nearest)
    moved, after = move(boxed, params, 2.0, rule, opt, gradient)
    free, same = descend(params, 2.0, rule, opt, gradient)
    np.testing.assert_allclose(free["w"], [2.5, -0.1], rtol=1e-6)
    np.testing.assert_allclose(moved["w"], [1.0, -0.1], rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, after, same)


# ---------------------------------------------------------------- hyperparameters
def test_hyper_parameters_are_numbers_or_schedules_of_the_round():
    assert value_at(0.3, in_round(4)) == 0.3
    assert float(value_at(lambda index: 0.5**index, in_round(3))) == 0.125
    assert float(value_at(jnp.float32(0.25), in_round(3))) == 0.25


def test_after_first():
    found = [float(value_at(after_first(0.9), in_round(i))) for i in (0, 1, 7)]
    assert found == pytest.approx([0.0, 0.9, 0.9])
    falling = after_first(lambda index: 1 / (1 + index), first=9.0)
    values = [float(value_at(falling, in_round(index))) for index in (0, 1, 3)]
    assert values == pytest.approx([9.0, 0.5, 0.25])


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (-1.0, {}, r"^lr must lie in \[0, infinity\), got -1.0$"),
        (0.0, {"open_low": True}, r"^lr must lie in \(0, infinity\), got 0.0$"),
        (0.5, {"low": 1.0, "high": 2.5}, r"^lr must lie in \[1, 2.5\], got 0.5$"),
        (1.0, {"high": 1.0, "open_high": True}, r"^lr must lie in \[0, 1\), got 1.0$"),
        (jnp.float32(2), {"high": 1.0}, r"^lr must lie in \[0, 1\], got 2.0$"),
    ],
)
def test_numbers_out_of_range_are_refused(value, options, message):
    with pytest.raises(ValueError, match=message):
        check_range("lr", value, **options)


@pytest.mark.parametrize(
    "value", [(0.1, 0.2), [0.1], jnp.ones(3), np.ones((1, 1)), "0.1", None]
)
def test_only_numbers_and_schedules_are_hyper_parameters(value):
    with pytest.raises(TypeError, match=r"^lr must be a number or a schedule, got "):
        check_range("lr", value)


# ------------------------------------------------------------------------- wrappers
def test_map_exchanges_wraps_the_prologue_too():
    def client(objective, broadcast, client_state, batches, round):
        return broadcast, client_state

    main = Exchange(broadcast_state, client, lambda state, mean, round: mean)
    algorithm = Algorithm(
        lambda p: p, no_client_state, (main, main), (main,), uniform_weights=True
    )

    def times(number, exchange):
        def twice(*args):
            message, client_state = exchange.client(*args)
            return (2 + number) * message, client_state

        return exchange._replace(client=twice)

    wrapped = map_exchanges(times, algorithm)
    assert (len(wrapped.exchanges), len(wrapped.prologue)) == (2, 1)
    for number, exchange in enumerate((*wrapped.prologue, *wrapped.exchanges)):
        sent = exchange.client(NO_OBJECTIVE, 3.0, (), None, in_round(0))
        assert sent == (3.0 * (2 + number), ())
        assert exchange.server is main.server
    assert wrapped[:2] == algorithm[:2]
    assert wrapped.uniform_weights
    assert broadcast_state("state", in_round(0)) == "state"
    assert no_client_state("params") == ()


# ------------------------------------------------------------------------- pytrees

PARAMS = {"dense": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}}
NESTED = optax.chain(muon(0.9), optax.chain(optax.trace(0.5)))


@pytest.mark.parametrize(
    ("rule", "names", "shapes"),
    [
        (optax.trace(0.9), ("trace",), [(2,), (3, 2)]),
        (optax.identity(), (), []),
        (optax.scale_by_adam(), ("mu", "nu"), [(2,), (3, 2)] * 2),
        (optax.scale_by_adam(), ("count", "nu"), [(), (2,), (3, 2)]),
        (optax.chain(optax.trace(0.9), orthogonalize()), ("trace",), [(2,), (3, 2)]),
        # partitioned: either rule's state masks the leaves of the other
        (muon(0.9), ("trace",), [(3, 2)]),
        (muon(0.9), ("mu",), [(2,)]),
        (muon(0.9), ("momentum",), [(3, 2), (2,)]),
        (NESTED, ("trace",), [(3, 2), (2,), (3, 2)]),
    ],
)
def test_pick_and_put_parts_of_an_optax_state(rule, names, shapes):
    state = rule.init(PARAMS)
    picked = tree.pick(state, names)
    assert [leaf.shape for leaf in picked] == shapes
    marked = [jnp.full_like(leaf, 7 + i) for i, leaf in enumerate(picked)]
    changed = tree.put(state, names, marked)
    assert str(jax.tree.structure(changed)) == str(jax.tree.structure(state))
    again = tree.pick(changed, names)
    jax.tree.map(np.testing.assert_array_equal, again, marked)
    total = lambda t: sum(float(jnp.sum(leaf)) for leaf in jax.tree.leaves(t))
    assert total(changed) == pytest.approx(total(state) - total(picked) + total(marked))
    rule.update(PARAMS, changed, PARAMS)  # still a state of the rule


def test_arithmetic():
    a = {"x": jnp.array([1.0, 2.0]), "y": jnp.array(3.0)}
    b = {"x": jnp.array([5.0, -1.0]), "y": jnp.array(0.5)}
    cases = (
        (tree.add(a, b), lambda u, v: u + v),
        (tree.sub(a, b), lambda u, v: u - v),
        (tree.scale(a, 3.0), lambda u, v: 3 * u),
        (tree.add_scaled(a, -0.5, b), lambda u, v: u - 0.5 * v),
        (tree.mix(a, 0.25, b), lambda u, v: 0.75 * u + 0.25 * v),
        (tree.zeros_like(a), lambda u, v: 0 * u),
        (tree.where(jnp.bool_(True), a, b), lambda u, v: u),
        (tree.where(jnp.bool_(False), a, b), lambda u, v: v),
        (tree.map(jnp.maximum, a, b), np.maximum),
    )
    for got, want in cases:
        for name in a:
            by_numpy = want(np.asarray(a[name]), np.asarray(b[name]))
            np.testing.assert_allclose(got[name], by_numpy, rtol=1e-6)


def test_float32_scalars_never_widen_bfloat16():
    a = {"x": jnp.ones(3, jnp.bfloat16), "y": jnp.ones((), jnp.float32)}
    s = jnp.float32(0.3)
    lr = optax.cosine_decay_schedule(0.1, 10)(jnp.int32(3))
    assert lr.dtype == jnp.float32
    rule = optax.identity()
    moved = move(NO_OBJECTIVE, a, lr, rule, rule.init(a), a)[0]
    for b in (tree.scale(a, s), tree.add_scaled(a, s, a), tree.mix(a, s, a), moved):
        assert {k: v.dtype for k, v in b.items()} == {k: v.dtype for k, v in a.items()}
    shapes = jax.eval_shape(lambda: a)
    assert tree.zeros_like(shapes)["x"].dtype == jnp.bfloat16
    assert tree.nbytes(a) == tree.nbytes(shapes) == 3 * 2 + 4
    assert tree.nbytes(()) == 0


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_all_finite(value, dtype):
    zeros = jnp.zeros(3, dtype)
    rest = {"n": jnp.arange(2), "key": KEY, "none": ()}
    assert bool(tree.all_finite({"a": zeros, **rest}))
    assert not tree.all_finite({"a": zeros.at[1].set(value), **rest})
    assert bool(tree.all_finite({"key": KEY, "n": jnp.int32(3)}))
    assert bool(tree.all_finite(()))
