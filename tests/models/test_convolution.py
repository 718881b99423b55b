"""The convolution against lax: values, gradients, layouts, transformations."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from fedjax_muon import models
from fedjax_muon.models import winograd
from fedjax_muon.models.convolution import by_patches, convolution

LAYOUT = {
    n: (f"N{d}C", f"{d}IO", f"N{d}C") for n, d in enumerate(("H", "HW", "HWD"), 1)
}


def whole_numbers(seed, *shape):
    """Small integers: float32 sums of their products are exact in any order."""
    draw = np.random.default_rng(seed).integers(-4, 5, shape)
    return jnp.asarray(draw, jnp.float32)


@partial(jax.jit, static_argnames=("convolve", "strides", "padding", "options"))
def compiled_outputs(convolve, x, w, strides, padding, options):
    """Value and both gradients, for a cotangent of whole numbers."""

    def run(x, w):
        return convolve(x, w, strides, padding, **dict(options))

    y, pullback = jax.vjp(run, x, w)
    return y, *pullback(whole_numbers(9, *y.shape).astype(y.dtype))


def outputs(convolve, x, w, strides, padding, **options):
    return compiled_outputs(convolve, x, w, strides, padding, tuple(options.items()))


def primitives(convolve, x, w, strides, padding, **options):
    run = lambda x, w: convolve(x, w, strides, padding, **options)
    return [equation.primitive.name for equation in jax.make_jaxpr(run)(x, w).eqns]


def assert_equals_lax(*case, **options):
    ours = outputs(convolution, *case, **options)
    theirs = outputs(lax.conv_general_dilated, *case, **options)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


SHAPES = [
    ((3, 7, 6, 2), (3, 2, 2, 4)),
    ((2, 9, 8, 1), (2, 3, 1, 3)),
    ((2, 3, 4, 2), (4, 4, 2, 3)),  # a kernel larger than the data
    ((2, 9, 8, 2), (5, 6, 2, 3)),  # by squares of 4 x 4
    ((2, 11, 7, 1), (5, 5, 1, 12)),  # by squares of 2 x 2
    ((2, 3, 4, 2), (6, 5, 2, 3)),
    ((6, 9, 8, 32), (3, 3, 32, 64)),  # by Winograd's algorithm
    ((2, 4, 3, 256), (3, 3, 256, 256)),  # by products of patches
    ((2, 7, 6, 32), (1, 1, 32, 40)),
]
PADDINGS = ["SAME", "VALID", "SAME_LOWER", ((1, 3), (0, 2)), ((-1, 0), (2, -1))]
STRIDES = [(1, 1), (2, 3)]
DILATIONS = [(1, 1), (2, 1)]


@pytest.mark.parametrize("dilation", DILATIONS)
@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize(
    "shape",
    [SHAPES[0], *(pytest.param(shape, marks=pytest.mark.slow) for shape in SHAPES[1:])],
)
def test_convolution_equals_lax(shape, strides, dilation):
    x, w = whole_numbers(0, *shape[0]), whole_numbers(1, *shape[1])
    options = {"rhs_dilation": dilation, "dimension_numbers": LAYOUT[2]}

    def all_paddings(convolve, x, w):
        return [outputs(convolve, x, w, strides, p, **options) for p in PADDINGS]

    ours, theirs = (
        jax.jit(partial(all_paddings, f))(x, w)
        for f in (convolution, lax.conv_general_dilated)
    )
    for padding, mine in zip(PADDINGS, ours, strict=True):
        names = primitives(convolution, x, w, strides, padding, **options)
        reached = ["custom_vjp_call"] if mine[0].size else ["conv_general_dilated"]
        assert names == reached, "the case does not reach the new code"
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize("images", [1, 2, 3])
def test_winograd_by_parts_equals_lax(images, monkeypatch):
    """Halves of whole numbers are exact in float32 too."""
    shape = (images, 21, 22, 32)
    x, w = whole_numbers(0, *shape), whole_numbers(1, 3, 3, 32, 64)
    monkeypatch.setattr(winograd, "_BYTES_OF_PART", 2 * 11 * 11 * 16 * 64 * 4)
    case = (x, w, (1, 1), ((1, 0), (3, 1)))
    assert_equals_lax(*case, dimension_numbers=LAYOUT[2])


CHOSEN = [
    # data, kernel, strides, type, the form on CPUs
    ((6, 12, 12, 32), (3, 3, 32, 64), (1, 1), jnp.float32, "winograd"),
    ((1, 12, 12, 32), (3, 3, 32, 64), (1, 1), jnp.float32, "convolution"),  # 36 tiles
    ((6, 12, 12, 32), (3, 3, 32, 32), (1, 1), jnp.float32, "convolution"),
    ((6, 12, 12, 16), (3, 3, 16, 64), (1, 1), jnp.float32, "convolution"),
    ((6, 12, 12, 32), (3, 3, 32, 64), (1, 2), jnp.float32, "convolution"),
    ((6, 12, 12, 32), (3, 3, 32, 64), (1, 1), jnp.bfloat16, "convolution"),
    ((6, 12, 12, 32), (3, 3, 32, 64), (1, 1), jnp.float64, "convolution"),
    ((50, 4, 4, 512), (3, 3, 512, 512), (1, 1), jnp.float32, "products"),
    ((50, 8, 8, 256), (3, 3, 256, 512), (2, 2), jnp.float32, "products"),
    ((50, 16, 16, 128), (3, 3, 128, 256), (2, 2), jnp.float32, "convolution"),
    ((50, 8, 8, 256), (1, 1, 256, 512), (2, 2), jnp.float32, "products"),
    ((50, 8, 8, 3), (1, 1, 3, 64), (2, 2), jnp.float32, "convolution"),
]


@pytest.mark.parametrize(("data", "kernel", "strides", "dtype", "form"), CHOSEN)
def test_the_form_depends_on_shapes(data, kernel, strides, dtype, form):
    def gradients(x, w):
        convolve = partial(convolution, dimension_numbers=LAYOUT[2])
        y, pullback = jax.vjp(lambda x, w: convolve(x, w, strides, "SAME"), x, w)
        return pullback(y)

    def written(platform):
        traced = jax.jit(gradients).trace(x, w)
        return traced.lower(lowering_platforms=(platform,)).as_text()

    with jax.enable_x64(dtype == jnp.float64):
        x, w = (jax.ShapeDtypeStruct(shape, dtype) for shape in (data, kernel))
        cpu, gpu = map(written, ("cpu", "cuda"))
    plain, batched = ("stablehlo.convolution" in cpu), ("tensor<16x" in cpu)
    forms = {(False, True): "winograd", (False, False): "products"}
    assert forms.get((plain, batched), "convolution") == form
    assert gpu.count("stablehlo.convolution") == 3


@pytest.mark.parametrize(("ndim", "padding"), [(1, ((2, 0),)), (3, "SAME")])
def test_convolution_in_one_and_three_dimensions(ndim, padding):
    x = whole_numbers(0, 2, *(7, 5, 6)[:ndim], 3)
    w = whole_numbers(1, *(3, 2, 3)[:ndim], 3, 2)
    case = (x, w, (2, 1, 2)[:ndim], padding)
    options = {"dimension_numbers": LAYOUT[ndim], "rhs_dilation": (2, 3, 1)[:ndim]}
    assert primitives(convolution, *case, **options) == ["custom_vjp_call"]
    assert_equals_lax(*case, **options)


HANDED_TO_LAX = {
    "groups": ((2, 6, 6, 4), (3, 3, 2, 4), {"feature_group_count": 2}),
    "dilated input": ((2, 6, 6, 2), (3, 3, 2, 4), {"lhs_dilation": (2, 1)}),
    "channels first": ((2, 2, 6, 6), (4, 2, 3, 3), {"dimension_numbers": None}),
    "batch groups": ((2, 6, 6, 2), (3, 3, 2, 4), {"batch_group_count": 2}),
    "nothing comes out": ((2, 2, 6, 2), (3, 3, 2, 4), {}),
}


@pytest.mark.parametrize("name", HANDED_TO_LAX)
def test_other_convolutions_go_to_lax_as_they_are(name):
    x, w, options = HANDED_TO_LAX[name]
    case = (whole_numbers(0, *x), whole_numbers(1, *w), (1, 1), ((0, 0), (0, 0)))
    options = {"dimension_numbers": LAYOUT[2], **options}
    assert "custom_vjp_call" not in primitives(convolution, *case, **options)
    assert_equals_lax(*case, **options)


def test_half_precision_and_precision():
    x, w = whole_numbers(0, 2, 6, 6, 2), whole_numbers(1, 3, 3, 2, 4)
    case = (x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), (2, 1), "SAME")
    options = {"dimension_numbers": LAYOUT[2], "precision": lax.Precision.HIGHEST}
    assert primitives(convolution, *case, **options) == ["custom_vjp_call"]
    ours = outputs(convolution, *case, **options)
    theirs = outputs(lax.conv_general_dilated, *case, **options)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == jnp.bfloat16
        # sums up to 9 x 2 x 16 or 2 x 6 x 3 x 16 round in bfloat16: 8 bits
        np.testing.assert_allclose(*map(np.float32, (a, b)), rtol=2.0**-7)


def squares(convolve, w, x):
    y = convolve(x, w, (1, 1), "SAME", dimension_numbers=LAYOUT[2])
    return jnp.mean(jnp.tanh(y) ** 2)


CHANNELS = {12: (32, 64)}  # by size; the images of 12 x 12 by Winograd's algorithm


def random_case(*lead, size=6):
    rng = np.random.default_rng(0)
    inputs, outputs = CHANNELS.get(size, (2, 4))
    space = (max(size, 6), max(size, 5))
    w = rng.normal(size=(*lead, 3, 3, inputs, outputs)) / inputs
    x = rng.normal(size=(*lead, 2, *space, inputs))
    return w, x[..., :size, :size, :]


def through_scan(gradient):
    def step(w, x):
        return w - 0.1 * gradient(w, x), None

    return lambda w, xs: lax.scan(step, w, xs)[0]


def reversed_scan(gradient):
    """The gradient of the last loss with respect to the first weights."""
    return jax.grad(lambda w, xs: jnp.sum(through_scan(gradient)(w, xs) ** 2))


TRANSFORMATIONS = {
    "vmap over weights": ((3,), jax.vmap),
    "second derivative": ((), lambda g: jax.grad(lambda w, x: jnp.sum(g(w, x) ** 2))),
    "gradient in a scan": ((3,), lambda g: lambda w, x: through_scan(g)(w[0], x)),
    "gradient of a scan": ((3,), lambda g: lambda w, x: reversed_scan(g)(w[0], x)),
    "map": ((3,), lambda g: lambda w, x: lax.map(lambda both: g(*both), (w, x))),
    "remat": ((), jax.remat),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, 6) for name in TRANSFORMATIONS),
        ("vmap over weights", 2),  # a kernel larger than the data
        ("second derivative", 2),
        *((name, 12) for name in TRANSFORMATIONS),
    ],
)
def test_under_transformations(name, size):
    lead, transform = TRANSFORMATIONS[name]
    with jax.enable_x64(True):
        w, x = random_case(*lead, size=size)
        ours, theirs = (
            jax.jit(transform(jax.grad(partial(squares, f))))
            for f in (convolution, lax.conv_general_dilated)
        )
        dtype = jnp.float32 if size in CHANNELS else jnp.float64
        ours, theirs = ours(w.astype(dtype), x.astype(dtype)), theirs(w, x)
        assert ours.dtype == dtype
    scale = np.abs(theirs).max()
    assert scale > 0
    rounding = 2e-6 if size in CHANNELS else 1e-13
    np.testing.assert_allclose(ours, theirs, atol=rounding * scale)


def test_forward_mode_is_refused():
    w, x = map(jnp.asarray, random_case())
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(lambda w: squares(convolution, w, x), (w,), (w,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shared", "check", "size"),
    [
        *((shared, True, 6) for shared in ("nothing", "weights", "data")),
        ("nothing", False, 6),
        ("weights", True, 2),  # a kernel larger than the data
        *((shared, True, 12) for shared in ("nothing", "weights", "data")),
    ],
)
def test_inside_shard_map(shared, check, size):
    """Weights and data varying over devices or not: the gradients that lax has."""
    mesh = jax.make_mesh((4,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    w, x = (jnp.asarray(a, jnp.float32) for a in random_case(4, size=size))

    def gradients(convolve):
        def body(w, x):
            dw, dx = jax.grad(partial(squares, convolve), argnums=(0, 1))(w[0], x[0])
            # a gradient that does not vary is made to, so that it can be gathered
            lift = jax.lax.axis_index("clients") * 0.0
            return dw[None] + lift, dx[None] + lift

        split = P("clients")
        specs = tuple(P() if shared == name else split for name in ("weights", "data"))
        options = {"in_specs": specs, "out_specs": split, "check_vma": check}
        return jax.jit(jax.shard_map(body, mesh=mesh, **options))(w, x)

    ours, theirs = gradients(convolution), gradients(lax.conv_general_dilated)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), ours, theirs)


def layouts(module):
    """The layout of every convolution in a compiled loop over gradient steps."""
    xs = jnp.ones((2, 3, 12, 12, 1))
    params = jax.eval_shape(module.init, jax.random.key(0), xs[0])
    gradient = jax.grad(lambda params, x: jnp.sum(module.apply(params, x) ** 2))

    def step(params, x):
        return jax.tree.map(lambda p, g: p - g, params, gradient(params, x)), None

    run = jax.jit(lambda params, xs: lax.scan(step, params, xs)[0])
    text = run.lower(params, xs).compile().as_text()
    return re.findall(r"convolution\(.*dim_labels=(\w+->\w+)", text)


@pytest.mark.slow
@pytest.mark.parametrize("model", [models.EmnistCNN(), models.LeNet()])
def test_every_convolution_in_a_scan_is_canonical(model):
    # two forward, two of weights, one of data: none for the images themselves. The
    # second result of LeNet is 2 x 2, less than its kernel.
    assert layouts(model) == 5 * ["b01f_01io->b01f"]


@pytest.mark.slow
def test_plain_convolutions_in_a_scan_are_not():
    """The premise of the module: where it fails, `convolution` can be retired."""
    plain = models.EmnistCNN(convolution=lax.conv_general_dilated)
    assert set(layouts(plain)) != {"b01f_01io->b01f"}


@pytest.mark.slow
def test_other_backends_get_the_gradients_of_lax(monkeypatch):
    w, x = map(jnp.asarray, random_case())
    of_ours = jax.jit(jax.grad(partial(squares, convolution)))
    of_lax = jax.jit(jax.grad(partial(squares, lax.conv_general_dilated)))

    def written(traced, platform):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        return set(re.findall(r"dim_numbers = (\S+)", text))

    ours, plain = of_ours.trace(w, x), of_lax.trace(w, x)
    other_layouts = written(plain, "cuda") - written(ours, "cpu")
    assert other_layouts, "lax now writes canonical gradients itself"
    assert other_layouts <= written(ours, "cuda")

    other = lambda *args, default, **_: default(*args)
    monkeypatch.setattr(lax, "platform_dependent", other)
    jax.clear_caches()  # of functions traced before the patch
    np.testing.assert_allclose(of_ours(w, x), of_lax(w, x), atol=1e-7)


CASES = [
    # space, kernel, strides, padding, dilation
    ((8, 9), (3, 3), (1, 1), "SAME", (1, 1)),
    ((8, 9), (3, 3), (2, 2), "SAME", (1, 1)),
    ((9, 8), (3, 2), (2, 3), "VALID", (2, 1)),
    ((7, 7), (1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1)),
    ((6, 6), (3, 3), (1, 2), ((1, 1), (0, 2)), (1, 1)),
    ((7,), (4,), (2,), "SAME", (1,)),
    ((2, 2), (5, 5), (1, 1), ((2, 2), (2, 2)), (1, 1)),
    ((4, 3, 5), (2, 2, 3), (1, 1, 2), "SAME", (1, 1, 1)),
]


def gaussian(shape, seed):
    values = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(values, jnp.float32)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_lax(case):
    space, window, strides, padding, dilation = case
    x, kernel = gaussian((2, *space, 3), 0), gaussian((*window, 3, 4), 1)
    options = {"rhs_dilation": dilation, "dimension_numbers": LAYOUT[len(space)]}

    def results(convolve):
        f = lambda x, w: convolve(x, w, strides, padding, **options)
        value, pullback = jax.vjp(f, x, kernel)
        return value, *pullback(jnp.cos(value))

    ours, theirs = results(by_patches), results(lax.conv_general_dilated)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(close, ours, theirs)


@pytest.mark.slow
def test_models_of_two_clients_compute_the_same_with_products_alone():
    images = gaussian((2, 3, 8, 8, 3), 2)
    make = partial(models.ResNet18, 4, widths=(4, 4), groups=2)
    init = make().init
    params = jax.vmap(init, (0, None))(jax.random.split(jax.random.key(0)), images[0])

    def gradients(model):
        loss = lambda params, x: jnp.sum(jnp.cos(model.apply(params, x)))
        return jax.vmap(jax.grad(loss))

    ours, theirs = gradients(make(convolution=by_patches)), gradients(make())
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    lowered = jax.jit(ours).lower(params, images)
    assert "convolution" not in lowered.as_text()
    found, expected = lowered.compile()(params, images), jax.jit(theirs)(params, images)
    jax.tree.map(close, found, expected)
