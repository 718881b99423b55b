"""Another way to find polar factors, put into a rule or a method that exists."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxprs import products

from experiments import newton_schulz_steps
from experiments.newton_schulz_steps import flops, row
from fedjax_muon import decentralized, engine, plans
from fedjax_muon.algorithms import ALL
from fedjax_muon.cli.building import algorithm_of
from fedjax_muon.cli.config import METHODS, Config, Run
from fedjax_muon.orthogonalize import gram, orthogonalize, plain, polar, schatten8
from fedjax_muon.pair import Pair
from fedjax_muon.transforms import (
    by_rank,
    has_momentum,
    muon,
    orthogonalizes,
    with_momentum,
    with_polar,
)
from fedjax_muon.transforms import orthogonalize as orthogonalized

PARAMS = {"kernel": jnp.eye(6) + 0.1, "bias": jnp.ones(6)}
BOTH = {**METHODS, **decentralized.ALL}


def still(params, batch, key):
    del batch, key
    return params


def program(rule, params=PARAMS):
    update = lambda g: rule.update(g, rule.init(params), params)[0]
    return jax.make_jaxpr(update)(params).jaxpr


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
    "alone": lambda **polar: by_rank(orthogonalized(*polar.values())),
    "muon": lambda **polar: muon(0.9, nesterov=True, **polar),
    "chained": lambda **polar: optax.chain(
        muon(0.98, **polar), optax.add_decayed_weights(0.01)
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_with_another_polar_is_the_rule_built_with_it(name):
    changed, built = with_polar(RULES[name](), polar), RULES[name](polar=polar)
    jax.tree.map(np.testing.assert_array_equal, steps(changed), steps(built))
    usual = steps(RULES[name]())
    jax.tree.map(np.testing.assert_array_equal, steps(changed)[1], usual[1])
    assert np.abs(steps(changed)[0][0]["kernel"] - usual[0][0]["kernel"]).max() > 0.01


def test_the_last_polar_counts_and_the_first_rule_stays():
    rule = muon(0.9)
    twice = with_polar(with_polar(rule, lambda x: 0 * x), lambda x: 7 * x)
    found = steps(twice, 1)[0][0]["kernel"]
    np.testing.assert_allclose(found, 7 * steps(optax.trace(0.9), 1)[0][0]["kernel"])
    assert len(products(program(rule))) == 15


@pytest.mark.parametrize("name", BOTH)
def test_methods_that_multiply_matrices_are_those_that_orthogonalize(name):
    method = BOTH[name]
    found = method.rule and products(program(method.rule, Pair(PARAMS, PARAMS)))
    assert method.orthogonalizes == bool(found)
    if method.orthogonalizes:
        changed = method.with_polar(lambda x: x)
        assert not products(program(changed.rule, Pair(PARAMS, PARAMS)))
        assert dataclasses.replace(changed, settings=method.settings) == method
        assert {**changed.settings, "rule": 0} == {**method.settings, "rule": 0}


def test_what_orthogonalizes_nothing_is_refused():
    assert not orthogonalizes(optax.scale_by_adam())
    with pytest.raises(ValueError, match="orthogonalizes nothing"):
        ALL["fedavg"].with_polar(polar)
    with pytest.raises(ValueError, match="FAFED has no local rule"):
        ALL["fafed"].with_polar(polar)


@pytest.mark.parametrize("name", ["muon", "chained"])
def test_a_rule_with_another_momentum_is_the_rule_built_with_it(name):
    of = lambda momentum: optax.chain(
        muon(momentum, nesterov=name == "muon"), optax.add_decayed_weights(0.01)
    )
    want = steps(of(0.5))
    for changed in (of(0.9), with_momentum(of(0.9), 0.1)):  # the last one counts
        got = steps(with_momentum(changed, 0.5))
        jax.tree.map(np.testing.assert_array_equal, got, want)
    assert np.abs(steps(of(0.9))[0][2]["kernel"] - want[0][2]["kernel"]).max() > 0.01


def test_methods_with_a_momentum_of_muons_are_those_built_on_it():
    found = {name for name, method in ALL.items() if method.has_momentum}
    assert found == {
        *("local_muon", "local_muon_averaged", "muloco"),
        *("fedmuon_align", "fedmuon_svd", "fedmuon_align_reset"),
    }
    assert not has_momentum(optax.trace(0.9))
    with pytest.raises(ValueError, match="no momentum of Muon's"):
        ALL["fedmuon"].with_momentum(0.5)
    with pytest.raises(ValueError, match="FAFED has no local rule"):
        ALL["fafed"].with_momentum(0.5)


def test_the_momentum_of_the_command_line_reaches_the_rule():
    def moved(**options):
        algorithm = algorithm_of(Run("fedmuon_align", {}, 0, Config(**options)))
        grad = lambda params, batch, key: jax.tree.map(lambda p: p + batch, params)
        state = engine.init(algorithm(grad), PARAMS, 1)
        play = engine.make_round(algorithm(grad), 1, plans.loop)
        batches = jnp.arange(3.0)[None]
        given = jnp.arange(1), batches, jnp.ones(1), jax.random.key(0)
        return play(state, *given)[0].server.momentum

    usual, same = moved(), moved(muon_momentum=0.98)
    jax.tree.map(np.testing.assert_array_equal, usual, same)
    other = jax.tree.leaves(moved(muon_momentum=0.5))
    assert np.abs(other[0] - jax.tree.leaves(usual)[0]).max() > 0.1


def types_in_a_round(algorithm):
    state = engine.init(algorithm, PARAMS, 1)
    play = engine.make_round(algorithm, 1, plans.loop)
    rest = jnp.arange(1), jnp.ones((1, 1)), jnp.ones(1), jax.random.key(0)
    found = products(jax.make_jaxpr(play)(state, *rest).jaxpr)
    return [product.invars[0].aval.dtype for product in found]


MUON = [name for name in ALL if ALL[name].orthogonalizes]


@pytest.mark.parametrize("name", MUON)
def test_options_of_the_command_line_reach_the_kernel(name):
    """A step on a square matrix is two products with it and one of small squares."""
    types = lambda **options: types_in_a_round(
        algorithm_of(Run(name, {}, 0, Config(**options)))(still)
    )
    # of truncated singular values too, and of the means of clients
    other = len(types()) - 15
    assert other == len(types_in_a_round(ALL[name].with_polar(lambda x: x)(still)))
    assert len(types(newton_schulz_steps=2)) == 6 + other
    assert len(types(newton_schulz_normalization="schatten8")) == 16 + other
    assert jnp.bfloat16 not in types()
    rounded = types(newton_schulz_dtype="bfloat16", newton_schulz_steps=3)
    assert rounded.count(jnp.bfloat16) == 6


def test_options_leave_other_algorithms_alone():
    config = Config(newton_schulz_steps=2, newton_schulz_dtype="bfloat16")
    assert not types_in_a_round(algorithm_of(Run("fedavg", {}, 0, config))(still))


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (40, 6)])
@pytest.mark.parametrize("steps", [2, 5])
def test_flops_are_those_of_the_products(shape, steps):
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    run = partial(orthogonalize, steps=steps)
    found = 0
    for product in products(jax.make_jaxpr(run)(x).jaxpr):
        (left, _), _ = product.params["dimension_numbers"]
        inner = product.invars[0].aval.shape[left[0]]
        found += 2 * inner * product.outvars[0].aval.size
    assert flops(shape, steps) == found


@pytest.mark.parametrize("form", [plain, gram])
def test_the_norm_shares_its_product_with_the_first_step(form):
    def compiled(**options):
        run = partial(orthogonalize, steps=2, form=form, **options)
        shape = jax.ShapeDtypeStruct((6, 20), jnp.float32)
        return str(jax.jit(run).lower(shape).compile().as_text()).count(" dot(")

    assert compiled() == compiled(normalization=schatten8) > 3


def test_rows_compare_seed_by_seed():
    first, own = np.array([[0.0, 0.5], [0.2, 0.9]]), np.array([[0.1, 0.6], [0.3, 1.0]])
    assert row(first, own) == ["80.0 ± 28.3", "10.0 ± 0.0", "50.0 ± 21.2", "10.0 ± 0.0"]


def test_the_study_writes_all_runs_and_a_table_for_every_rate(tmp_path, monkeypatch):
    def play(job, task, polar, dataset, config, seeds):
        assert len(dataset.y_train) == 1437
        base = 0.8 if "steps" in getattr(polar, "keywords", {}) else 0.9
        run = lambda lr, seed: {
            "round": np.array([0, config.rounds]),
            "test_accuracy": np.array([0.1, base + lr + 0.01 * seed]),
            **dict.fromkeys(("bytes_up", "bytes_down"), np.array([0, 10**6])),
            "train_loss": np.array([2.0, 1.0]),
        }
        return {(lr, seed): run(lr, seed) for lr in job.rates for seed in seeds}

    monkeypatch.setattr(newton_schulz_steps, "play", play)
    newton_schulz_steps.main("digits", rounds=7, seeds=(0, 2), output=tmp_path)
    points = (tmp_path / "digits.csv").read_text().splitlines()
    assert len(points) == 1 + 9 * 3 * 2 * 2
    assert points[2] == '"Frobenius, 5 steps",0.01,0,7,0.8100'
    assert len(list(tmp_path.glob("digits_*.png"))) == 3
    rows = (tmp_path / "digits.md").read_text().splitlines()[-27:]
    assert rows[8] == (
        "| 0.01 | Exact, by SVD |  | 92.0 ± 1.4 | 10.0 ± 0.0 | 51.0 ± 0.7 | 5.0 ± 0.0 |"
    )
    # 10 x 64 in the gram form, 2 x 64 x 64 step by step
    square, last = 6 * 64**3, 4 * 100 * 64
    share = (2 * 2 * square + last + 2000 * 5) / (
        2 * 5 * square + 2 * last + 2000 * (5 + 9)
    )
    assert rows[12].startswith(f"| 0.03 | Frobenius, 2 steps | {share:.2f} | 84.0")
