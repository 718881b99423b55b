"""Options of a config that change the algorithm: decay, scales, coefficients."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon import models
from fedjax_muon.core.recipe import recipe_of
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.runs.build import algorithm_of, has_plain_rule
from fedjax_muon.runs.config import METHODS, MODELS, Config, Run
from fedjax_muon.runs.config_json import ADDED, from_json, to_json
from fedjax_muon.transforms import moonlight

PLAIN = {"fedavg", "fedprox", "scaffold", "fedcm", "fedavg_m", "scaffold_m"}


def arguments(name, **options):
    return recipe_of(algorithm_of(Run(name, {}, 0, Config(**options)))).arguments


def test_methods_with_plain_steps():
    found = {name for name, method in METHODS.items() if has_plain_rule(method)}
    assert found == PLAIN | {"padamfed_vr", "stem", "fess_gda"}


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_weight_decay_is_added_to_plain_steps(name):
    rule = arguments(name, weight_decay=0.5)["rule"]
    x, g = jnp.array([2.0, -4.0]), jnp.array([1.0, 1.0])
    moved, _ = rule.update(g, rule.init(x), x)
    np.testing.assert_allclose(moved, [2.0, -1.0])
    plain = arguments(name)["rule"]
    np.testing.assert_array_equal(plain.update(g, plain.init(x), x)[0], g)


def test_other_methods_keep_their_own_decay():
    algorithm = arguments("local_adamw", weight_decay=0.5)
    assert algorithm == arguments("local_adamw")
    with pytest.raises(ValueError, match="weight_decay must lie in"):
        Config(weight_decay=-0.1)


@pytest.mark.parametrize("name", ["fedmuon_correct", "local_muon_persistent"])
def test_scales_by_shape_reach_the_algorithm(name):
    assert arguments(name, shape_scale="moonlight")["shape_scale"] is moonlight


def test_coefficients_reach_the_kernel():
    matrix = jax.random.normal(jax.random.key(0), (6, 4))
    exact = kernel.polar(matrix)
    far = {}
    for name in ("jordan", "quintic"):
        options = {"newton_schulz_steps": 20, "newton_schulz_coefficients": name}
        polar = arguments("fedmuon", **options)["polar"]
        far[name] = float(jnp.abs(polar(matrix) - exact).max())
    assert far["quintic"] < 1e-4 < 0.01 < far["jordan"]


def test_configs_from_before_these_options_are_read():
    run = Run("fedavg", {}, 0, Config())
    words = json.loads(to_json(run))
    for name in ADDED:
        del words["config"][name]
    assert from_json(json.dumps(words)) == run
    changed = dataclasses.replace(run, config=Config(weight_decay=0.1))
    assert from_json(to_json(changed)) == changed


def test_the_identity_is_what_a_plain_rule_is():
    assert optax.identity().init(0.0) == optax.EmptyState()


def test_models_are_those_of_the_library():
    assert {*MODELS} == {*models.ALL, "roberta"}
