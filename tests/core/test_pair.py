"""Two variables against the same arithmetic on each of them by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon.core import Round, check_range, mean_direction, tree, value_at
from fedjax_muon.core.pair import Pair, as_pair, descent_ascent, on_y, per_variable

KEY = jax.random.key(0)


def draw(seed):
    """Two trees of other structures, one leaf in half precision."""
    rng = np.random.default_rng(seed)
    array = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return Pair(
        x={"w": array(2, 3), "b": array(3).astype(jnp.bfloat16)}, y=(array(4), array())
    )


ONE, OTHER = draw(0), draw(1)
RATES = Pair(0.25, -1.5)


def in_round(index):
    return Round(jnp.int32(index), KEY, 3, 2, 0.5)


def assert_same(found, expected):
    """To the last bit: the operations are those of the parts."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.float32(a), np.float32(b))


of_one, of_both = lambda s: (s, ONE), lambda s: (ONE, s, OTHER)
ARITHMETIC = {
    "scale": (lambda s, a: tree.scale(a, s), of_one, lambda s, a, b: s * a),
    "add_scaled": (tree.add_scaled, of_both, lambda s, a, b: a + s * b),
    "sub_scaled": (tree.sub_scaled, of_both, lambda s, a, b: a - s * b),
    "mix": (tree.mix, of_both, lambda s, a, b: (1 - s) * a + s * b),
    "fade": (lambda s, a: tree.fade(a, s), of_one, lambda s, a, b: (1 - s) * a),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_a_pair_of_numbers_belongs_to_the_leaves_below(name):
    function, arguments, formula = ARITHMETIC[name]
    found = function(*arguments(RATES))
    part = lambda i: function(
        *(a[i] if isinstance(a, Pair) else a for a in arguments(RATES))
    )
    assert_same(found, Pair(part(0), part(1)))
    rates = [RATES.x] * 2 + [RATES.y] * 2  # by leaf
    leaves = map(jax.tree.leaves, (ONE, OTHER, found))
    for one, other, result, rate in zip(*leaves, rates, strict=True):
        exact = formula(rate, np.float64(one), np.float64(other))
        atol = 0.03 if one.dtype == jnp.bfloat16 else 1e-6
        np.testing.assert_allclose(np.float64(result), exact, atol=atol)


def test_prefixes_may_reach_deeper_and_must_fit():
    found = tree.scale(ONE, Pair({"w": 2.0, "b": 0.0}, 1.0))
    assert_same(found, Pair({"w": 2 * ONE.x["w"], "b": 0 * ONE.x["b"]}, ONE.y))
    with pytest.raises(ValueError, match=r"(?i)arity|structure|prefix|expected"):
        tree.scale(ONE, (1.0, 2.0, 3.0))


def test_descent_ascent_and_on_y_change_y_alone():
    turned = descent_ascent(lambda params, batch, key: (batch, params.y))
    found = turned(ONE, OTHER.x, KEY)
    assert isinstance(found, Pair)
    assert_same(found, Pair(OTHER.x, tree.map(jnp.negative, ONE.y)))
    assert_same(on_y(jnp.abs)(ONE), Pair(ONE.x, tree.map(jnp.abs, ONE.y)))


def same_as_parts(pair_rule, rule_x, rule_y, steps=2, with_params=True):
    state = pair_rule.init(ONE)
    assert isinstance(state, Pair)
    state_x, state_y = rule_x.init(ONE.x), rule_y.init(ONE.y)
    for number in range(steps):
        g = draw(10 + number)
        given = (ONE,) if with_params else ()
        found, state = pair_rule.update(g, state, *given)
        x, state_x = rule_x.update(g.x, state_x, *(p.x for p in given))
        y, state_y = rule_y.update(g.y, state_y, *(p.y for p in given))
        assert_same(found, Pair(x, y))
        assert_same(state, Pair(state_x, state_y))


def test_rules_of_their_own_with_states_and_with_parameters_or_without():
    x, y = optax.trace(0.9), optax.add_decayed_weights(0.5)
    same_as_parts(per_variable(x, y), x, y)
    same_as_parts(per_variable(y, x), y, x)
    rule = optax.trace(0.5)
    same_as_parts(per_variable(rule), rule, rule, with_params=False)


def test_norms_do_not_mix_the_variables():
    grad = Pair(jnp.array([3.0, 4.0]), jnp.array([0.0, 0.5]))
    clip = optax.clip_by_global_norm(1.0)
    found, _ = per_variable(clip).update(grad, per_variable(clip).init(grad))
    np.testing.assert_allclose(found.x, [0.6, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(found.y, grad.y)
    mixed, _ = clip.update(grad, clip.init(grad))
    assert mixed.y[1] < 0.1


def test_one_value_or_pairs_of_schedules():
    assert as_pair(0.1) == Pair(0.1, 0.1)
    assert as_pair(Pair(1, 2)) == Pair(1, 2)
    value = Pair(lambda index: 0.5**index, 3.0)
    assert value_at(value, in_round(2)) == Pair(0.25, 3.0)
    assert value_at(0.7, in_round(2)) == 0.7
    assert value_at(Pair(1.0, 2.0), in_round(5)) == Pair(1.0, 2.0)


def test_the_mean_direction_of_two_learning_rates():
    last = tree.scale(ONE, 9.0)
    lr = Pair(0.1, lambda index: 0.5 + index)
    found = mean_direction(lr, in_round(1), ONE, last)
    parts = [mean_direction(0.1, in_round(1), ONE.x, last.x)]
    parts.append(mean_direction(1.5, in_round(1), ONE.y, last.y))
    assert_same(found, Pair(*parts))
    np.testing.assert_allclose(found.y[0], -ONE.y[0] / (3 * 1.5), rtol=1e-6)


@pytest.mark.parametrize("rate", [0.0, 1e-45, lambda index: 0.0 * index])
def test_there_is_no_direction_where_nothing_moves(rate):
    last = tree.scale(ONE, 9.0)
    found = mean_direction(Pair(0.1, rate), in_round(1), ONE, last)
    assert_same(found.x, mean_direction(0.1, in_round(1), ONE.x, last.x))
    assert_same(found.y, last.y)


def test_ranges_hold_for_the_parts():
    ends = {"open_low": True, "open_high": True}
    check_range("share", Pair(0.5, 0.1), 0, 1, **ends)
    check_range("lr", Pair(0.5, lambda index: index))
    with pytest.raises(ValueError, match=r"lr\.y\.y must lie in .* got -3"):
        check_range("lr", Pair(0.1, Pair(0.2, -3)))
    with pytest.raises(ValueError, match=r"share\.y must lie in \(0, 1\)"):
        check_range("share", Pair(0.1, 1.0), 0, 1, **ends)
    with pytest.raises(TypeError, match=r"lr\.y must be a number, got <function"):
        check_range("lr", Pair(0.5, lambda index: index), schedules=False)
