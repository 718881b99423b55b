"""How far local steps of Muon move at most, and nearly do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize

from experiments.studies.muon_bound import JORDAN_LARGEST, muon_bound
from fedjax_muon.algorithms import fedavg
from fedjax_muon.core import Objective, Round
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.transforms import muon, spectral, unscaled

LR, STEPS, KEY = 0.02, 5, jax.random.key(0)
PARAMS = {"a": jnp.ones((12, 8)), "b": jnp.ones((3, 3, 2, 5))}
FANS, RANKS = ((12, 8), (18, 5)), (8, 5)


def test_the_largest_singular_value():
    """p maps [0, its largest value] into itself: the value holds for all steps."""
    ((a, b, c),) = kernel.JORDAN
    p = lambda s: a * s + b * s**3 + c * s**5
    peak = optimize.minimize_scalar(lambda s: -p(s), (0, 0.5, 1)).x
    assert 0 < peak < 1
    assert p(peak) <= JORDAN_LARGEST < p(peak) + 1e-7
    grid = np.linspace(0, JORDAN_LARGEST, 10**6)
    assert p(grid).min() >= 0
    assert p(grid).max() <= JORDAN_LARGEST


def sent(rule, gradients, decay=0.0):
    """A client's message, of gradients [K, ...]: start - end."""
    rule = optax.chain(rule, optax.add_decayed_weights(decay)) if decay else rule
    objective = Objective(lambda params, batch, key: batch)
    client = fedavg(lr=LR, rule=rule).exchanges[0].client
    round = Round(jnp.int32(0), KEY, STEPS, 1, 1.0)
    message, _ = client(objective, (PARAMS, []), (), gradients, round)
    return message.params


def norm(message):
    return np.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(message)))


def drawn(key, scale):
    """Gradients of any size in any direction."""
    keys = dict(zip(PARAMS, jax.random.split(key), strict=True))
    wild = lambda key, x: jax.random.cauchy(key, (STEPS, *x.shape))
    return {name: scale * wild(keys[name], x) for name, x in PARAMS.items()}


def adversarial():
    """One large singular value, and all others where five steps end highest."""
    rng = np.random.default_rng(0)

    def one(x):
        shape = int(np.prod(x.shape[:-1])), x.shape[-1]
        u, _, v = np.linalg.svd(rng.normal(size=shape), full_matrices=False)
        s = np.full(len(v), 0.00411)
        s[0] = np.sqrt(1 - np.sum(s[1:] ** 2))
        matrix = ((u * s) @ v).reshape(x.shape)
        return jnp.asarray(np.broadcast_to(matrix, (STEPS, *x.shape)), jnp.float32)

    return jax.tree.map(one, PARAMS)


@pytest.mark.slow
@pytest.mark.parametrize(("shape_scale", "decay"), [(unscaled, 0.5), (spectral, 0.0)])
def test_no_message_is_longer(shape_scale, decay):
    rule = muon(0.9, shape_scale=shape_scale)
    bound = muon_bound(PARAMS, lr=LR, steps=STEPS, decay=decay, shape_scale=shape_scale)
    scales = [shape_scale(*fans) ** 2 for fans in FANS]
    weight = sum(scales) / np.dot(scales, RANKS)
    one = jax.jit(partial(sent, rule, decay=decay))
    decayed = jax.tree.map(lambda x: (1 - (1 - LR * decay) ** STEPS) * x, PARAMS)
    longest = 0.0
    for i in range(20):
        gradients = drawn(jax.random.fold_in(KEY, i), 10.0 ** (i - 10))
        part = jax.tree.map(jnp.subtract, one(gradients), decayed)
        longest = max(longest, norm(part))
    worst = norm(jax.tree.map(jnp.subtract, one(adversarial()), decayed))
    assert 0.3 * bound < longest <= bound
    # all singular values but the two large ones end where they are largest
    assert np.sqrt(1 - weight) * bound < worst <= bound


def test_the_formula():
    squares = np.dot([spectral(*fans) ** 2 for fans in FANS], RANKS)
    moves = sum(0.98**k for k in range(5))
    options = {"lr": LR, "steps": 5, "decay": 1.0, "largest": 1.0}
    found = muon_bound(PARAMS, **options, shape_scale=spectral)
    assert found == pytest.approx(LR * moves * np.sqrt(squares))


def test_bad_arguments_are_refused():
    for changes, message in (
        ({"params": {"b": jnp.ones(3)}}, "no matrix among the parameters"),
        ({"lr": 0.0}, "lr must lie in"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"decay": 51.0}, r"decay must lie in \[0, 50\]"),
        ({"largest": 0.0}, "largest must lie in"),
    ):
        given = {"params": PARAMS, "lr": LR, "steps": STEPS, **changes}
        with pytest.raises(ValueError, match=message):
            muon_bound(**given)
