"""What orthogonalization does not depend on: scale, layout, batch, devices, form."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

from fedjax_muon.linalg.newton_schulz import (
    CUBIC,
    POLAR_EXPRESS,
    QUINTIC,
    frobenius,
    gram,
    orthogonalize,
    plain,
    rows,
    schatten8,
)
from tests.support import jaxprs

FORMS = [plain, gram]


def gaussian(shape, seed=0):
    values = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(values, jnp.float32)


def rotation(n, seed):
    return np.linalg.qr(gaussian((n, n), seed))[0]


def distance(a, b):
    return np.linalg.norm(np.asarray(a, np.float64) - np.asarray(b, np.float64), 2)


# ------------------------------------------------------------------ invariances
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normalization", [frobenius, schatten8])
def test_powers_of_two_change_no_bit(form, normalization):
    apply = partial(orthogonalize, form=form, normalization=normalization)
    x = gaussian((24, 40))
    expected = apply(x)
    # 126: the largest entry is near the end of float32, its inverse no normal number.
    for exponent in (-100, -60, -20, 20, 60, 100, 120, 126):
        scaled = jnp.ldexp(x, exponent)
        assert np.all(np.isfinite(scaled))
        np.testing.assert_array_equal(apply(scaled), expected)


@pytest.mark.parametrize("form", FORMS)
def test_equivariance(form):
    apply = partial(orthogonalize, form=form)
    x = gaussian((24, 40))
    y = apply(x)
    u, v = rotation(24, 1), rotation(40, 2)
    np.testing.assert_array_equal(apply(-x), -y)
    assert distance(apply(x.T), y.T) <= 2e-6
    assert distance(apply(u @ x @ v), u @ y @ v) <= 5e-6


@pytest.mark.parametrize("form", FORMS)
def test_padding_with_zeros_changes_nothing(form):
    apply = partial(orthogonalize, form=form, coefficients=QUINTIC)
    x = gaussian((24, 40))
    y = apply(x)
    wider = apply(jnp.pad(x, ((0, 0), (0, 9))))
    assert distance(wider[:, :40], y) <= 1e-6
    assert not np.any(wider[:, 40:])
    higher = apply(jnp.pad(x, ((0, 6), (0, 0))))
    assert distance(higher[:24], y) <= 5e-6
    assert not np.any(higher[24:])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normalization", [frobenius, schatten8])
@pytest.mark.parametrize("steps", [0, 5])
def test_zero_stays_zero(form, normalization, steps):
    zeros = jnp.zeros((2, 3, 5))
    found = orthogonalize(zeros, form=form, normalization=normalization, steps=steps)
    np.testing.assert_array_equal(found, zeros)


# ------------------------------------------------------------------ batches
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_batch_equals_loop_equals_vmap(form):
    apply = partial(orthogonalize, form=form)
    x = gaussian((3, 2, 8, 20))
    batched = apply(x)
    loop = np.stack([apply(matrix) for row in x for matrix in row]).reshape(x.shape)
    np.testing.assert_allclose(batched, loop, atol=1e-6)
    np.testing.assert_array_equal(batched, jax.vmap(apply)(x))
    np.testing.assert_array_equal(batched, jax.vmap(jax.vmap(apply))(x))
    last = jax.vmap(apply, in_axes=-1, out_axes=-1)(jnp.moveaxis(x[0], 0, -1))
    # another layout, whose products some processors round otherwise
    np.testing.assert_allclose(batched[0], jnp.moveaxis(last, -1, 0), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normalization", [frobenius, schatten8])
@pytest.mark.parametrize("steps", [0, 5])
def test_a_non_finite_matrix_is_lost_alone(form, normalization, steps):
    options = {"form": form, "normalization": normalization, "steps": steps}
    x = gaussian((4, 8, 20))
    expected = orthogonalize(x, **options)
    broken = x.at[0, 2, 3].set(jnp.nan).at[1, 7, 0].set(jnp.inf)
    found = orthogonalize(broken.at[2, 0, 0].set(-jnp.inf), **options)
    assert not np.any(np.isfinite(found[:3]))
    np.testing.assert_array_equal(found[3], expected[3])


def test_clients_on_devices_need_no_communication():
    mesh = jax.make_mesh((4,), ("clients",), axis_types=(AxisType.Auto,))
    run, each = partial(orthogonalize, form=gram), P("clients")
    sharded = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=each, out_specs=each))
    x = gaussian((8, 8, 20))
    np.testing.assert_allclose(sharded(x), run(x), atol=2e-6)
    program = sharded.lower(x).compile().as_text()
    for collective in ("all-reduce", "all-gather", "all-to-all", "collective"):
        assert collective not in program


# ------------------------------------------------------------------ structure
def products(x, platform="cpu", **options):
    traced = jax.make_jaxpr(partial(orthogonalize, **options))(x)
    return len(jaxprs.products(traced.jaxpr, platform))


def one_stage(schedule, dtype):
    del dtype
    return (schedule,)


# T steps with r fresh starts: 3 T products one by one, 4 T - 3 - 3 r + 2 (1 + r) else.
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"form": plain}, 15),
        ({"form": gram}, 18),
        ({"form": one_stage}, 19),
        ({"form": gram, "dtype": jnp.bfloat16}, 17),
        ({"form": gram, "steps": 2}, 7),
        ({"form": gram, "steps": 8}, 4 * 8 - 3 - 3 * 3 + 2 * 4),
        ({"form": plain, "coefficients": CUBIC}, 10),
        ({"steps": 0}, 1),
    ],
)
def test_number_of_matrix_products(options, expected):
    assert products(jnp.ones((16, 40)), "tpu", **options) == expected


# All products but those with a large matrix on either side: 2 a stage.
@pytest.mark.parametrize(
    ("options", "expected", "precision"),
    [
        ({"form": plain}, 15 - 2 * 5, "HIGHEST"),
        ({"form": gram}, 18 - 2 * 2, "HIGHEST"),
        ({"form": gram, "dtype": jnp.bfloat16}, 17 - 2 * 3, "HIGH"),
    ],
)
def test_small_products_are_precise_on_every_device(options, expected, precision):
    # GPUs and TPUs would round their factors to TF32 and bfloat16 by default, and with
    # HIGH to TF32 and to three numbers in bfloat16.
    apply = partial(orthogonalize, **options)
    traced = str(jax.make_jaxpr(apply)(jnp.ones((16, 40))))
    assert traced.count(f"(Precision.{precision}, Precision.{precision})") == expected


@pytest.mark.parametrize(
    ("shape", "dtype", "form"),
    [
        ((16, 25), jnp.float32, gram),
        ((25, 16), jnp.float32, gram),
        ((16, 24), jnp.float32, plain),
        ((16, 16), jnp.float32, plain),
        ((16, 64), jnp.float16, plain),
    ],
)
def test_the_form_is_chosen_by_shape_and_precision(shape, dtype, form):
    x = jnp.ones(shape)
    assert products(x, dtype=dtype) == products(x, dtype=dtype, form=form)
    assert products(x, "tpu", dtype=dtype) == products(x, form=plain)
    assert products(x, form=plain) != products(x, form=gram)


@pytest.mark.parametrize("form", FORMS)
def test_schatten8_costs_no_matrix_product(form):
    def operations(normalization):
        options = {"form": form, "normalization": normalization}
        run = partial(orthogonalize, dtype=jnp.float32, **options)
        compiled = jax.jit(run).lower(jnp.ones((64, 192))).compile()
        return compiled.cost_analysis()["flops"]

    one_product = 2 * 64**3
    assert operations(schatten8) - operations(frobenius) < one_product / 10


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_stages_are_a_partition_of_the_schedule(dtype):
    for steps, form in itertools.product(range(12), FORMS):
        schedule = rows(POLAR_EXPRESS, steps)
        stages = form(schedule, jnp.dtype(dtype))
        assert sum(stages, ()) == schedule
        assert all(stages)


# ------------------------------------------------------------------ bounds
@pytest.mark.slow
def test_quintic_and_cubic_never_leave_the_spectral_ball():
    wide = gaussian((12, 30))
    batch = jnp.stack([wide, jnp.ones((12, 30)), jnp.eye(12, 30)])
    apply = partial(orthogonalize, normalization=schatten8)
    for row, steps, form in itertools.product((QUINTIC, CUBIC), (0, 1, 4, 9), FORMS):
        found = apply(batch, coefficients=row, steps=steps, form=form)
        assert np.linalg.norm(found, 2, axis=(-2, -1)).max() <= 1 + 1e-5


@pytest.mark.slow
def test_schatten8_bounds_the_spectral_norm_tightly():
    for x in (
        gaussian((16, 144)),
        jnp.abs(gaussian((16, 4096))),
        jnp.ones((16, 144)),
        jnp.ones((1, 1)),
        gaussian((16, 1)) * gaussian((1, 4096)),
        jnp.eye(16),
        jnp.full((64, 64), 2.0**15),
    ):
        largest = np.linalg.norm(np.asarray(x, np.float64), 2)
        ratio = float(schatten8(x @ x.T)) * largest
        assert ratio <= 1
        assert ratio >= 16**-0.125 - 1e-5  # attained by the identity
