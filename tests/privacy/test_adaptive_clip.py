"""Adaptive clipping: by hand in NumPy, its noise, its sensitivity, and its runs."""

import dataclasses
import itertools
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon import engine
from fedjax_muon.algorithms import fedavg, fedmuon, local_sgdm, scaffold
from fedjax_muon.core import Objective, streams, tree
from fedjax_muon.engine import plans
from fedjax_muon.privacy import (
    AdaptiveClip,
    ClientPrivacy,
    Poisson,
    cost_of,
    joint_multiplier,
)
from fedjax_muon.privacy.client_mechanism import (
    LARGEST,
    SMALLEST,
    MechanismState,
    contribution,
    private_clients,
)
from fedjax_muon.privacy.client_privacy import client_spec
from tests.oracles.adaptive_clip import Draw, Settings, adaptive_fedavg
from tests.oracles.problem import draw_params
from tests.privacy.private_rounds import (
    ECHO,
    KEY,
    SIZES,
    TRACE,
    WHO,
    N,
    assert_standard_normal,
    rounds_of,
    rounds_of_trace,
)
from tests.support.cases import slow_but
from tests.support.error_lines import refused
from tests.support.federation import assert_same_bits, federation

private = partial(private_clients, **SIZES)
alone = partial(private_clients, noise_multiplier=0.0, **SIZES)  # without noise


# ---------------------------------------------------------------------- by hand
def draws_of(x, index) -> Draw:
    """The noise of a round, from the engine's key of the server."""
    in_round = jax.random.split(jax.random.fold_in(KEY, index))[0]
    server_key = jax.random.fold_in(jax.random.fold_in(in_round, 0), N)
    key = jax.random.fold_in(server_key, streams.CLIENT_PRIVACY)
    flat = np.asarray(jax.random.normal(key, (sum(v.size for v in x.values()) + 1,)))
    b = flat[: x["b"].size].reshape(x["b"].shape)
    w = flat[x["b"].size : -1].reshape(x["w"].shape)
    return Draw({"b": b, "w": w}, float(flat[-1]))


@pytest.mark.parametrize("noise", slow_but(1, [0.7, 0.0]))
def test_by_hand_in_cohorts_of_any_size(noise):
    x = draw_params(0)
    settings = Settings(0.3, 2, noise, 0.6, quantile=0.4, initial=0.2, clip_lr=0.5)
    clip = AdaptiveClip(quantile=0.4, initial=0.2, lr=0.5, count_noise=0.6)
    with jax.enable_x64(True):
        algorithm = private(fedavg(lr=0.3), clip_norm=clip, noise_multiplier=noise)
        draws = [draws_of(x, index) for index in range(len(WHO))]
        # a pseudo-gradient x - y is sent, so that its noise has the other sign
        signed = [Draw(tree.scale(d.update, -1.0), d.count) for d in draws]
        want = adaptive_fedavg(x, TRACE, WHO, signed, settings)
        shares, before = set(), settings.initial
        for server, one in zip(rounds_of_trace(algorithm, x), want, strict=True):
            params, after, norms = one
            close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
            jax.tree.map(close, server.params, params)
            close(server.kept.clip, after)
            shares |= {norm <= before for norm in norms}
            before = after
    assert shares == {True, False}  # messages on both sides of the norm


# ------------------------------------------------------------------------- noise
@pytest.mark.parametrize(("z", "count"), [(1.0, 0.51), (0.3, 2.0), (7.0, 1e4)])
def test_sum_and_count_have_the_multiplier_together(z, count):
    noise = AdaptiveClip(count_noise=count).noise(z, 10)
    assert noise.below == count
    # sensitivities of 1 and 1/2
    assert joint_multiplier(noise.message, noise.below / 0.5) == pytest.approx(z)
    assert noise.message > z


@pytest.mark.slow
def test_the_noise_of_sum_and_count():
    """Independent and normal, even if nobody takes part; of the size that is claimed.

    In the second round, the noise of the sum is that of the new norm.
    """
    z, count, cohort, worlds = 0.8, 0.9, 2, 3000
    clip = AdaptiveClip(quantile=0.3, initial=0.5, lr=0.2, count_noise=count)
    algorithm = private(fedavg(lr=1.0), clip_norm=clip, noise_multiplier=z)
    batches = {"a": jnp.ones((N, 1, 3, 2)), "b": jnp.ones((N, 1, 4))}

    @jax.jit
    @jax.vmap
    def run(key):
        state = engine.init(algorithm, jax.tree.map(lambda x: x[0, 0], batches), N)
        step = engine.make_round(algorithm, ECHO, N, plans.vmapped)
        given = jnp.arange(N), batches, jnp.zeros(N), key
        seen = [state.server]
        for _ in range(2):
            state, _ = step(state, *given)
            seen.append(state.server)
        return seen

    states = run(jax.random.split(KEY, worlds))
    flat = lambda t: np.concatenate(
        [np.asarray(x).reshape(worlds, -1) for x in jax.tree.leaves(t)], axis=1
    )
    columns = []
    for before, after in itertools.pairwise(states):
        norm = np.asarray(before.kept.clip, np.float64)
        z_sum = (z**-2 - (2 * count) ** -2) ** -0.5
        moves = (flat(after.params) - flat(before.params)) * cohort
        columns.append(moves / (z_sum * norm)[:, None])
        b = 0.3 - np.log(np.asarray(after.kept.clip, np.float64) / norm) / 0.2
        columns.append((b[:, None] - 0.5) * cohort / count)
    assert sum(drawn.shape[1] for drawn in columns) == 2 * 11
    assert_standard_normal(columns)


# ------------------------------------------------------------------- sensitivity

SENT = jax.jit(contribution)


@pytest.mark.parametrize("clip", [1e-30, 0.1, 1.0, 1e30, 0.0, -1.0, np.inf, np.nan])
def test_no_message_and_no_norm_exceeds_the_sensitivity(clip):
    """Whatever happened to the message, and to the norm that came with it."""
    for size in (0.0, 1e-42, 1e-20, 0.3, 1e20, 3e38, np.inf, np.nan):
        message = {"w": jnp.full((3, 2), size), "b": jnp.array([-size, 0.0])}
        sent = SENT(jnp.float32(clip), message)
        assert float(optax.tree.norm(sent.message)) <= 1 + 1e-6
        assert abs(float(sent.below)) == (0.5 if np.isfinite(size) else 0.0)
        if not np.isfinite(size):
            assert float(optax.tree.norm(sent.message)) == 0.0


CLIPS, RATIOS = [1e-30, 1e-3, 1.0, 1e30], [1e-4, 0.99, 1.01, 1e8]


@pytest.mark.parametrize(
    ("clip", "ratio"), [*itertools.product(CLIPS, RATIOS), (1e-30, 1e60), (1e-3, 1e41)]
)
def test_messages_of_any_size_are_clipped_to_the_norm(clip, ratio):
    """(3, 4) / 5 times their product, also where squares or ratios overflow."""
    size = np.float32(clip * ratio)
    sent = SENT(jnp.float32(clip), {"a": 0.6 * size, "b": jnp.array([0.8 * size])})
    length = min(1.0, ratio)
    np.testing.assert_allclose(sent.message["a"], 0.6 * length, rtol=1e-5)
    np.testing.assert_allclose(sent.message["b"], 0.8 * length, rtol=1e-5)
    assert float(sent.below) == (0.5 if ratio < 1 else -0.5)


def test_one_client_changes_the_sums_by_its_share():
    """One that fails by nothing, an enormous one by 1 and 1/2 over the cohort."""
    clip = AdaptiveClip(quantile=0.5, initial=0.25, lr=0.2)
    algorithm = alone(fedavg(lr=1.0), clip_norm=clip)
    batches = {"w": 0.1 * jax.random.normal(KEY, (N, 1, 3))}

    def after(poison, present):
        spoilt = tree.map(lambda x: x.at[1].multiply(poison), batches)
        weights = jnp.ones(N).at[1].set(present)
        return next(rounds_of(algorithm, spoilt, 1, weights))

    without, failed, enormous = after(1.0, 0.0), after(jnp.nan, 1.0), after(1e30, 1.0)
    assert_same_bits(failed, without)
    move = tree.sub(enormous.params, without.params)
    np.testing.assert_allclose(np.linalg.norm(move["w"]), 0.25 / 2, rtol=1e-5)
    ratio = float(enormous.kept.clip / without.kept.clip)
    np.testing.assert_allclose(ratio, math.exp(0.2 * 0.5 / 2), rtol=1e-5)


@pytest.mark.slow
def test_the_norm_stays_in_range():
    """All messages are zero, and then all are large, for longer than float32 holds."""
    for size, end in ((0.0, SMALLEST), (1e38, LARGEST)):
        algorithm = alone(fedavg(lr=1.0), clip_norm=AdaptiveClip(lr=20.0))
        *_, last = rounds_of(algorithm, {"w": jnp.full((N, 1, 3), size)}, 12)
        assert float(last.kept.clip) == np.float32(end)
        assert bool(tree.all_finite(last))


# -------------------------------------------------------------------- the server
@pytest.mark.parametrize("make", slow_but(1, [scaffold, fedavg, local_sgdm]))
@pytest.mark.parametrize("dtype", slow_but(1, [jnp.bfloat16, jnp.float32]))
def test_states_keep_their_form(make, dtype):
    """With several fields, with client states, and in low precision."""
    algorithm = private(make(), clip_norm=AdaptiveClip(), noise_multiplier=0.1)
    batches = {"w": jnp.ones((N, 1, 3), dtype)}
    start = algorithm.init({"w": jnp.zeros(3, dtype)})
    assert isinstance(start.kept, MechanismState)
    assert start.kept.noise == ()
    *_, last = rounds_of(algorithm, batches, 2)
    assert jax.tree.structure(last) == jax.tree.structure(start)
    dtypes = lambda t: [x.dtype for x in jax.tree.leaves(t)]
    assert dtypes(last) == dtypes(start)
    assert last.kept.clip.dtype == jnp.float32


def test_parameters_are_projected():
    algorithm = private(fedavg(), clip_norm=AdaptiveClip(), noise_multiplier=0.1)
    box = Objective(ECHO.grad, project=lambda p: tree.map(lambda x: x.clip(0, 1), p))
    state = engine.init(algorithm, {"w": 5 * jnp.ones(40)}, N, project=box.project)
    step = jax.jit(engine.make_round(algorithm, box, N, plans.mapped))
    batches = {"w": jnp.zeros((N, 1, 40))}  # nothing but noise
    state, _ = step(state, jnp.arange(N), batches, jnp.ones(N), KEY)
    assert isinstance(state.server.kept, MechanismState)
    w = np.asarray(state.server.params["w"])
    assert w.max() == 1.0  # noise that left the set
    assert w.min() < 1.0


# -------------------------------------------------------------------- simulations

PRIVACY = ClientPrivacy(
    clip_norm=AdaptiveClip(quantile=0.6, initial=0.3, count_noise=0.9),
    cohort=3,
    rounds=4,
    delta=1e-2,
    noise_multiplier=1.2,
    insecure_fixed_noise=True,
)


def simulation_of(privacy=PRIVACY, **given):
    return federation(privacy=privacy, cohort=None, **given)


def test_the_guarantee_is_that_of_a_fixed_norm_and_says_what_is_adapted():
    prepared = simulation_of()
    fixed = simulation_of(dataclasses.replace(PRIVACY, clip_norm=0.3))
    less, more = fixed.meter.bytes_after(2), prepared.meter.bytes_after(2)
    # one more number each way: two rounds of three clients, 4 bytes of float32
    assert (more.up - less.up, more.down - less.down) == (2 * 3 * 4, 2 * 3 * 4)
    adaptive, plain = prepared.guarantee, fixed.guarantee
    # all of the noise multiplier is in the accounting, whatever the norm
    assert cost_of(adaptive.spec) == cost_of(plain.spec)
    assert adaptive.report().delta == plain.report().delta
    for words in (
        "noisy counts of messages that were short enough",
        "adapted by a private quantile",
        "(quantile 0.6); the noise of the count, 0.9, and that of the sum, 1.61 clip",
    ):
        assert words in adaptive.statement()
        assert words not in plain.statement()


def test_epsilon_decides_the_noise_of_both():
    changes = {"clip_norm": AdaptiveClip(count_noise=4.0), "cohort": 6}  # all
    changes |= {"noise_multiplier": None, "epsilon": 6.0, "insecure_fixed_noise": False}
    privacy = dataclasses.replace(PRIVACY, **changes)
    simulation = simulation_of(privacy)
    report = simulation.guarantee.report()
    assert report.epsilon == pytest.approx(6.0, rel=1e-3)
    (release,) = simulation.guarantee.spec.releases.values()
    noise = privacy.clip_norm.noise(release.noise.multiplier, 6)
    # the noise of the algorithm that runs is that of the accounting
    recipe = simulation.settings.algorithm.recipe.arguments
    assert recipe["noise_multiplier"] == release.noise.multiplier
    assert recipe["clip_norm"] == privacy.clip_norm
    whole = 1 / math.hypot(1 / noise.message, 0.5 / noise.below)
    assert whole == pytest.approx(release.noise.multiplier)


# --------------------------------------------------------------------- refusals

FACTS: dict[str, Any] = {"rounds": 3, "delta": 1e-5, "private_states": False}
WRAP = {"clip_norm": AdaptiveClip(), "noise_multiplier": 0.05, **SIZES}
wrapped = lambda *given, **changes: lambda: private_clients(*given, **WRAP | changes)
WRONG = {
    r"quantile must lie in \[0, 1\]": lambda: AdaptiveClip(quantile=1.5),
    "initial must lie in": lambda: AdaptiveClip(initial=0.0),
    r"lr must lie in \(0": lambda: AdaptiveClip(lr=0.0),
    r"count_noise must lie in \(0": lambda: AdaptiveClip(count_noise=0.0),
    # a cohort of 2 has count noise of 0.1
    r"\(cohort / 20\) must be above 0.1, .*, got 0.1; give AdaptiveClip a larger": (
        wrapped(fedavg(), noise_multiplier=0.2)
    ),
    "count_noise must be above 0.6": lambda: simulation_of(
        dataclasses.replace(PRIVACY, clip_norm=AdaptiveClip(count_noise=0.6))
    ),
    "has a prologue; give a number as clip_norm": wrapped(fedmuon()),
    "this one has a prologue": lambda: simulation_of(algorithm=fedmuon()),
    "has several exchanges in a round; give a number": wrapped(
        fedavg()._replace(exchanges=fedavg().exchanges * 2)
    ),
    "without a prologue, got prologue=True": lambda: client_spec(
        Poisson(100, 5),
        **FACTS,
        noise_multiplier=1.0,
        prologue=True,
        adaptive_clip=True,
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_not_private_or_not_defined_is_refused(message):
    refused(message, WRONG[message])
