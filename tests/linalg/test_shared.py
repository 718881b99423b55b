"""Newton-Schulz steps whose work several devices share."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from support.jaxprs import equations

from fedjax_muon import data, models, partition, transforms
from fedjax_muon.algorithms import fedavg
from fedjax_muon.engine.sharding import CLIENTS
from fedjax_muon.linalg import newton_schulz
from fedjax_muon.linalg.newton_schulz import CUBIC, DION, QUINTIC, schatten8
from fedjax_muon.linalg.shared import orthogonalize
from fedjax_muon.simulation.federated import federate
from fedjax_muon.tasks import classification


def gaussian(shape):
    values = np.random.default_rng(sum(shape)).normal(size=shape)
    return jnp.asarray(values, jnp.float32)


def over(devices, **options):
    mesh = jax.make_mesh(
        (devices,), (CLIENTS,), (AxisType.Auto,), devices=jax.devices()[:devices]
    )
    all_of_it = PartitionSpec()
    run = jax.shard_map(
        partial(orthogonalize, axis_name=CLIENTS, **options),
        mesh=mesh,
        in_specs=all_of_it,
        out_specs=all_of_it,
        check_vma=False,
    )
    return jax.jit(run)


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("shape", [(12, 20), (20, 12), (1, 7, 7), (2, 3, 9, 5)])
def test_devices_share_the_work_and_not_the_result(devices, shape):
    x = 1e3 * gaussian(shape)
    found = over(devices)(x)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, newton_schulz.orthogonalize(x), atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"coefficients": QUINTIC, "steps": 8},
        {"coefficients": CUBIC, "steps": 3},
        {"coefficients": DION},
        {"normalization": schatten8},
        {"steps": 0},
    ],
)
@pytest.mark.parametrize("shape", [(10, 6), (5, 6, 10)])
def test_options_are_those_of_the_whole(options, shape):
    x = gaussian(shape)
    expected = newton_schulz.orthogonalize(x, **options)
    np.testing.assert_allclose(over(4, **options)(x), expected, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(8, 12), (5, 8, 12)])
def test_small_types(shape):
    x = gaussian(shape).astype(jnp.bfloat16)
    found = over(4, dtype=jnp.bfloat16)(x)
    assert found.dtype == jnp.bfloat16
    expected = newton_schulz.orthogonalize(x, dtype=jnp.bfloat16)
    difference = jnp.abs(found - expected.astype(jnp.float32)).max()
    assert difference < 0.05  # a few roundings to 8 bits


def test_zero_and_non_finite_matrices():
    assert not over(4)(jnp.zeros((4, 6))).any()
    found = over(4)(gaussian((4, 6)).at[1, 2].set(jnp.inf))
    assert jnp.isnan(found).all()
    assert over(4)(jnp.zeros((0, 6))).shape == (0, 6)


@pytest.mark.parametrize(
    ("shape", "sums", "gathers"), [((8, 16), 5, 6), ((8, 8, 16), 0, 1)]
)
def test_communication_is_that_of_the_module(shape, sums, gathers):
    traced = jax.make_jaxpr(over(4))(gaussian(shape)).jaxpr
    names = [equation.primitive.name for equation in equations(traced)]
    kinds = [n for n in names if n.startswith("psum")], names.count("all_gather")
    assert (len(kinds[0]), kinds[1]) == (sums, gathers)


@pytest.mark.slow
def test_operations_are_divided():
    count = lambda f: f.lower(jnp.ones((64, 256))).compile().cost_analysis()
    alone = jax.jit(partial(newton_schulz.orthogonalize, form=newton_schulz.plain))
    ours, whole = count(over(4))["flops"], count(alone)["flops"]
    assert ours < 0.27 * whole


def test_without_devices_nothing_is_shared():
    x = gaussian((4, 6))
    expected = newton_schulz.orthogonalize(x)
    np.testing.assert_array_equal(orthogonalize(x, axis_name=CLIENTS), expected)


@pytest.mark.slow
def test_a_server_that_orthogonalizes():
    polar = partial(orthogonalize, axis_name=CLIENTS)
    rule = transforms.scale_by_muon(0.9, polar=polar)
    algorithm = fedavg(lr=0.1, server_lr=0.05, server_rule=rule)

    digits = data.load("digits")
    parts = partition.iid(digits.y_train, 4, key=jax.random.key(0))
    task = classification(models.MLP(10, (16,)), digits)
    sizes = {"cohort_size": 4, "local_steps": 2, "batch_size": 8}

    def trained(devices):
        chosen = jax.devices()[:devices]
        simulation = federate(algorithm, task, digits, parts, devices=chosen, **sizes)
        state = simulation.init(jax.random.key(0))
        return simulation.train_rounds(state, 3)[0].params

    close = lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5)
    jax.tree.map(close, trained(0), trained(3))


@pytest.mark.parametrize("shape", [(3,), ()])
def test_vectors_are_refused_before_any_device_runs(shape):
    with pytest.raises(ValueError, match="needs matrices"):
        over(2)(jnp.ones(shape))
    with pytest.raises(ValueError, match="schedule of exactly 5"):
        over(2, coefficients=DION, steps=4)(jnp.ones((3, 3)))
