"""FedCoMuon at its limits: f that is linear, steep, or of large losses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_muon as fm
from fedjax_muon.core import Objective, tree
from fedjax_muon.linalg import newton_schulz as kernel
from tests.oracles.cases import FULL, ONE_STEP, PARTIAL, X
from tests.oracles.fedcomuon import fedcomuon, fedcomuon_vr
from tests.support.traces import TOY, farthest, path

IDENTITY = {"outer": lambda loss: loss}
EXACT = {"polar": kernel.polar}
UNIT = {"rule": fm.transforms.unit_directions(kernel.polar)}


@pytest.mark.parametrize("inner_momentum", [0.0, 0.9])
def test_the_identity_as_the_outer_function_is_fedmuon(inner_momentum):
    """Also with a rule that depends on the scale of the momentum."""
    for rule in (UNIT, {"rule": optax.identity()}):
        got = fm.fedcomuon(lr=0.02, inner_momentum=inner_momentum, **IDENTITY, **rule)
        want = path(fm.fedmuon(lr=0.02, **rule), X, PARTIAL)
        assert farthest(path(got, X, PARTIAL), want) <= 1e-12
        assert farthest(want[-1:], [X]) >= 1e-3


def test_a_high_temperature_is_near_to_fedmuon_and_a_low_one_is_not():
    want = path(fm.fedmuon(lr=0.02, **UNIT), X, PARTIAL)
    near, far = (
        farthest(path(fm.fedcomuon(lr=0.02, temperature=t, **EXACT), X, PARTIAL), want)
        for t in (1e6, 0.5)
    )
    assert near <= 1e-6 <= 1e-3 <= far


def test_with_one_step_and_no_past_vr_is_fedmuon_of_the_same_batches():
    """What it samples first in round r, FedMuon does last in round r - 1."""
    (ids, data), *later = ONE_STEP.rounds
    first = [data[ids.index(i)] for i in range(5)]
    got = fm.fedcomuon_vr(lr=0.02, inner_momentum=0.0, **IDENTITY, **EXACT)
    shifted = ONE_STEP._replace(first=first, rounds=later)
    want = path(fm.fedmuon(lr=0.02, **UNIT), X, shifted)
    assert farthest(path(got, X, ONE_STEP)[:-1], want) <= 1e-12


BOUNDED = {
    "fedcomuon": (PARTIAL, fedcomuon, {}, {}),
    "fedcomuon_vr": (FULL, fedcomuon_vr, {"clip_norm": 0.3}, {"radius": 0.3}),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_bind_as_in_the_oracle(name):
    trace, oracle, more, same = BOUNDED[name]
    bounds = {"temperature": 0.2, "max_slope": 4.0, "inner_momentum": 0.6}
    algorithm = getattr(fm, name)(lr=0.02, momentum=0.7, **bounds, **more, **EXACT)
    theirs = {"temperature": 0.2, "most": 4.0, "a": 0.4, **same}
    past = {"rho": 0.3, "gamma": 0.4} if same else {"b": 0.3}
    want = oracle(X, trace, 0.02, **theirs, **past)
    assert farthest(path(algorithm, X, trace), want) <= 1e-10
    for loose in ({"most": 1e9}, {"radius": 1e9} if same else {"temperature": 0.3}):
        free = oracle(X, trace, 0.02, **theirs | loose, **past)
        assert farthest(free, want) >= 1e-4, loose


@pytest.mark.parametrize("name", BOUNDED)
def test_another_outer_function(name):
    trace, oracle, *_ = BOUNDED[name]
    algorithm = getattr(fm, name)(lr=0.02, outer=jnp.square, **EXACT)
    want = oracle(X, trace, 0.02, slope=lambda u: 2 * u)
    assert farthest(path(algorithm, X, trace), want) <= 1e-10


@pytest.mark.parametrize("name", BOUNDED)
def test_no_loss_is_too_large(name):
    """In float32, exp overflows at 88 temperatures; all clients count the same then."""
    trace = BOUNDED[name][0]

    def large(params, batch, key):
        loss, g = TOY.value_and_grad(params, batch, key)
        return loss + 1e6, g

    far, linear = (
        path(algorithm, X, trace, dtype=jnp.float32, objective=objective)
        for algorithm, objective in (
            (getattr(fm, name)(), Objective(TOY.grad, value_and_grad=large)),
            (getattr(fm, name)(outer=lambda u: 100 * u), TOY),
        )
    )
    assert farthest(far, linear) <= 1e-6
    assert farthest(far[-1:], [X]) >= 1e-3


def test_of_two_clients_the_momentum_follows_the_one_with_the_larger_loss():
    """Their gradients are opposite: f'(2) : f'(1) = e^2 for a temperature of 1/2."""
    loss = lambda params, batch, key: (batch[0], {"w": jnp.sign(batch - 1.5)})
    objective = Objective(lambda *given: loss(*given)[1], value_and_grad=loss)
    plan, x = fm.engine.plans.mapped, {"w": jnp.zeros(1)}
    state = fm.engine.init(fm.fedcomuon(), x, 2)
    start = fm.engine.make_prologue(fm.fedcomuon(), objective, 2, plan)
    batches = jnp.array([[[1.0]], [[2.0]]])
    state, _ = start(state, jnp.arange(2), batches, jnp.ones(2), jax.random.key(0))
    want = (np.exp(4) - np.exp(2)) / 2
    np.testing.assert_allclose(state.server.momentum["w"], want, rtol=1e-6)
    np.testing.assert_array_equal(state.client_states, [1, 2])


def test_an_objective_without_losses_is_refused():
    gradients = Objective(lambda params, batch, key: tree.zeros_like(params))
    with pytest.raises(TypeError, match="give the Objective a value_and_grad"):
        path(fm.fedcomuon(), X, PARTIAL, objective=gradients)
