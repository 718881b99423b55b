"""Another way to find polar factors, put into the methods that orthogonalize."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon import decentralized, engine, minimax
from fedjax_muon.algorithms import ADAPTERS, ALL
from fedjax_muon.core import Objective
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized.gossip import Iteration
from fedjax_muon.engine import plans
from fedjax_muon.linalg.newton_schulz import orthogonalize, polar, schatten8
from fedjax_muon.transforms import (
    by_rank,
    default_rule,
    muon,
    orthogonalize as orthogonalized,
)
from tests.support.jaxprs import products

PARAMS = {"kernel": jnp.eye(6) + 0.1, "bias": jnp.ones(6)}
PLAIN = {name: m for name, m in ALL.items() if name not in ADAPTERS}
BOTH = {**PLAIN, **minimax.ALL, **decentralized.ALL}
KEY = jax.random.key(0)


def takes(method, argument):
    """Whether a method has an argument of this name."""
    return argument in inspect.signature(method.function).parameters


def steady(params, batch, key):
    """A gradient without any product."""
    del batch, key
    return params


STEADY = Objective(
    steady,
    example_grad=lambda *given: jax.tree.map(lambda x: x[None], steady(*given)),
    value_and_grad=lambda *given: (0.0, steady(*given)),
)


def steps(rule, number=3):
    gradients = [
        {"kernel": np.float32(rng.normal(size=(5, 8))), "bias": np.ones(8, np.float32)}
        for rng in map(np.random.default_rng, range(number))
    ]
    state, found = rule.init(gradients[0]), []
    for g in gradients:
        u, state = rule.update(g, state, g)
        found.append(u)
    return found, state


RULES = {
    "alone": lambda polar: by_rank(orthogonalized(polar)),
    "muon": lambda polar: muon(0.9, nesterov=True, polar=polar),
    "chained": lambda polar: optax.chain(
        muon(0.98, polar=polar), optax.add_decayed_weights(0.01)
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_the_default_rule_has_the_given_polar(name):
    rule = RULES[name]
    changed, built = default_rule(None, polar, rule), rule(polar)
    jax.tree.map(np.testing.assert_array_equal, steps(changed), steps(built))
    usual = steps(default_rule(None, None, rule))
    jax.tree.map(np.testing.assert_array_equal, usual, steps(rule(orthogonalize)))
    jax.tree.map(np.testing.assert_array_equal, steps(changed)[1], usual[1])
    assert np.abs(steps(changed)[0][0]["kernel"] - usual[0][0]["kernel"]).max() > 0.01


def test_a_rule_and_a_polar_are_refused_together():
    own = optax.identity()
    assert default_rule(own, None, muon) is own
    taking = [m for m in BOTH.values() if takes(m, "polar") and takes(m, "rule")]
    assert {"fedmuon", "fedmuon_align"} <= {method.name for method in taking}
    for method in taking:
        with pytest.raises(ValueError, match="give either rule or polar"):
            method.function(rule=own, polar=polar)


def types_in_a_round(algorithm, params=PARAMS):
    state = engine.init(algorithm, params, 1)
    run = engine.make_round(algorithm, STEADY, 1, plans.loop)
    rest = jnp.arange(1), jnp.ones((1, 1)), jnp.ones(1), KEY
    found = products(jax.make_jaxpr(run)(state, *rest).jaxpr, "tpu")
    return [product.invars[0].aval.dtype for product in found]


def types_in_an_iteration(algorithm, params):
    iteration, batch = Iteration(jnp.int32(1), KEY, KEY), jnp.ones(1)
    mix = lambda message: message

    def run(params):
        state = algorithm.start(STEADY, params, mix, batch, iteration)
        return algorithm.step(STEADY, state, mix, batch, iteration)

    found = products(jax.make_jaxpr(run)(params).jaxpr, "tpu")
    return [product.invars[0].aval.dtype for product in found]


@pytest.mark.slow
def test_methods_that_multiply_matrices_are_those_that_take_a_polar():
    for name, method in BOTH.items():
        both = name in minimax.ALL or name in decentralized.ALL
        params = Pair(PARAMS, PARAMS) if both else PARAMS
        agents = name in decentralized.ALL
        look = types_in_an_iteration if agents else types_in_a_round
        found = look(method.function(), params)
        if not takes(method, "polar"):
            # SOAP multiplies by its bases
            assert bool(found) == (name in ("fedpac_soap", "local_soap")), name
            continue
        other = look(method.function(polar=lambda x: x), params)
        # of truncated singular values, and of the means of clients
        assert bool(other) == (name == "fedmuon_svd"), name
        # a step on a square matrix is two products with it and one of small squares
        assert len(found) > len(other), name
        assert (len(found) - len(other)) % 15 == 0, name


@pytest.mark.slow
def test_the_momentum_reaches_the_rule():
    def momentum_after_a_round(**hyper):
        grad = lambda params, batch, key: jax.tree.map(lambda p: p + batch, params)
        algorithm = ALL["fedmuon_align"].function(**hyper)
        state = engine.init(algorithm, PARAMS, 1)
        run = engine.make_round(algorithm, Objective(grad), 1, plans.loop)
        batches = jnp.arange(3.0)[None]
        return run(state, jnp.arange(1), batches, jnp.ones(1), KEY)[0].server.momentum

    usual, same = momentum_after_a_round(), momentum_after_a_round(momentum=0.98)
    jax.tree.map(np.testing.assert_array_equal, usual, same)
    other = momentum_after_a_round(momentum=0.5)
    assert np.abs(jax.tree.leaves(other)[0] - jax.tree.leaves(usual)[0]).max() > 0.1


MUON = [name for name in PLAIN if takes(ALL[name], "polar")]


@pytest.mark.slow
@pytest.mark.parametrize("name", MUON)
def test_options_of_the_polar_reach_the_kernel(name):
    """A step on a square matrix is two products with it and one of small squares."""

    def types(**options):
        given = {"polar": partial(orthogonalize, **options)} if options else {}
        return types_in_a_round(ALL[name].function(**given))

    # of truncated singular values too, and of the means of clients
    other = len(types()) - 15
    assert other == len(types_in_a_round(ALL[name].function(polar=lambda x: x)))
    assert len(types(steps=2)) == 6 + other
    assert len(types(normalization=schatten8)) == 16 + other
    assert jnp.bfloat16 not in types()
    assert types(dtype=jnp.bfloat16, steps=3).count(jnp.bfloat16) == 6
