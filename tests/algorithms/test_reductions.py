"""Methods off their published settings: rates, options, keys, special cases, bounds."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon import engine
from fedjax_muon.algorithms import (
    ALL,
    diloco,
    fedavg,
    fedmuon_align,
    fedmuon_correct,
    fedprox,
    local_muon_persistent,
    scaffold,
)
from fedjax_muon.core import Objective, after_first, tree
from fedjax_muon.engine import plans
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.transforms import muon, scale_by_soap
from fedjax_muon.wrappers.compression import no_compression, top_k
from tests.oracles import fedavg as avg
from tests.oracles.cases import (
    ALONE,
    COSINE,
    FULL,
    ONE_STEP,
    ONE_STEP_PARTIAL,
    PARTIAL,
    SIZES,
    X,
)
from tests.oracles.compression import largest
from tests.oracles.fedlada import fedlada
from tests.oracles.fedmuon import fedmuon_align as aligned, fedpac_soap
from tests.oracles.guided import (
    fedavg_m,
    fedavg_vr,
    padamfed_vr,
    scaffold_m,
    scaffold_vr,
)
from tests.oracles.outer import ef21_muon, heloco, streaming_diloco
from tests.oracles.problem import Trace, add, draw_trace, mean, polar, sub, times
from tests.oracles.scaffold import scaffold_momentum
from tests.oracles.two_sided import fafed, stem
from tests.support.traces import TOY, farthest, grad_fn, path, run, stack

pytestmark = pytest.mark.slow

FIRST = ONE_STEP._replace(rounds=ONE_STEP.rounds[:1])
# three batches before round 0, where the other traces have one
PREPARED = draw_trace(6, 5, 5, 4, 6, 5, SIZES, first=3)
cosine = lambda r: 0.05 * 0.5 * (1 + jnp.cos(jnp.pi * r / 6))  # as `COSINE`


def assert_follows(got, want):
    assert farthest(want[-1:], [X]) >= 1e-2
    assert farthest(got, want) <= 1e-10


def test_fedexp_of_one_client_is_fedavg():
    got = path(ALL["fedexp"].function(lr=0.2), X, ALONE)
    assert_follows(got, avg.fedavg(X, ALONE, 0.2))


def test_without_server_momentum_fedavgm_is_fedavg():
    got = path(ALL["fedavg_server_momentum"].function(0.2, momentum=0.0), X, PARTIAL)
    assert_follows(got, avg.fedavg(X, PARTIAL, 0.2))


def test_feddyn_begins_with_steps_of_fedprox_and_a_longer_step_of_the_server():
    """All linear terms are zero: the server adds 1 + S/N mean changes."""
    got = path(ALL["feddyn"].function(lr=0.2, alpha=0.3), X, FIRST)
    near = path(ALL["fedprox"].function(lr=0.2, mu=0.3), X, FIRST)
    (ids, _) = FIRST.rounds[0]
    factor = 1 + len(ids) / FIRST.num_clients
    want = [{k: X[k] + factor * (near[0][k] - X[k]) for k in X}]
    assert_follows(got, want)


def test_the_first_round_of_fedadamw_is_local_adamw():
    """Moments and the mean direction are zero, and both counts are of local steps."""
    got = path(ALL["fedadamw"].function(lr=0.02), X, FIRST)
    assert_follows(got, avg.local_adamw(X, FIRST, 0.02))


def test_fedadamw_may_average_moments_entry_by_entry():
    got = path(ALL["fedadamw"].function(lr=0.02, whole_moments=True), X, ONE_STEP)
    want = avg.fedadamw(X, ONE_STEP, 0.02, whole=True)
    assert_follows(got, want)
    assert farthest(want, avg.fedadamw(X, ONE_STEP, 0.02)) > 1e-3


def test_streaming_diloco_in_one_fragment_is_diloco():
    """Bitwise, operation by operation; XLA fuses the two programs differently."""
    pair = ALL["streaming_diloco"].function(lr=0.02, fragments=1), diloco(0.02)
    got, want = (path(algorithm, X, FULL) for algorithm in pair)
    assert_follows(got, want)
    assert farthest(got, want) <= 1e-15
    ids, data = FULL.rounds[0]
    with jax.enable_x64(True), jax.disable_jit():
        batches, ones = jax.tree.map(jnp.asarray, stack(data)), jnp.ones(len(ids))
        ends = []
        for algorithm in pair:
            state = engine.init(algorithm, jax.tree.map(jnp.asarray, X), len(ids))
            round = engine.make_round(algorithm, TOY, len(ids), plans.loop)
            for _ in range(2):
                given = jnp.array(ids), batches, ones, jax.random.key(0)
                state, _ = round(state, *given)
            ends.append(state.server.params)
        jax.tree.map(np.testing.assert_array_equal, *ends)


@jax.enable_x64(True)
def plainly(rule, lr, trace):
    """Plain training on the mean gradient of all batches of a step."""
    x = jax.tree.map(jnp.asarray, X)
    opt, ends = rule.init(x), []
    for _, data in trace.rounds:
        for step in zip(*data, strict=True):
            grads = [grad_fn(x, jax.tree.map(jnp.asarray, one), None) for one in step]
            g = jax.tree.map(lambda *each: sum(each) / len(each), *grads)
            u, opt = rule.update(g, opt, x)
            x = jax.tree.map(lambda a, b: a - lr * b, x, u)
        ends.append(jax.tree.map(np.asarray, x))
    return ends


AVERAGING = {"server_lr": 1.0, "server_rule": optax.identity()}
DECAYED = optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(0.1))
INNER = {  # of clients, whose state persists, with schedules by local step
    "sgd": optax.identity(),
    "adamw": DECAYED,
    "muon": muon(0.9, polar=kernel.polar),
    "warm-up": optax.chain(
        optax.scale_by_adam(),
        optax.scale_by_schedule(optax.warmup_cosine_decay_schedule(0.0, 1.0, 5, 20)),
    ),
}


@pytest.mark.parametrize("name", INNER)
def test_diloco_of_one_worker_is_plain_training(name):
    """With an outer rate of 1, also over several local steps."""
    algorithm = diloco(0.02, rule=INNER[name], **AVERAGING)
    want, got = plainly(INNER[name], 0.02, ALONE), path(algorithm, X, ALONE)
    assert_follows(got, want)
    assert farthest(got, want) <= 1e-14
    if name != "sgd":  # a rule whose state is lost in every round is another one
        again = path(fedavg(0.02, rule=INNER[name]), X, ALONE)
        assert farthest(again, want) > 1e-3


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_workers_with_one_step_each_are_data_parallel(momentum):
    """With the outer rule on the mean gradient, whose rate is the product of both."""
    rule = optax.trace(momentum, nesterov=True)
    outer = {"server_lr": 0.5, "server_rule": rule}
    algorithm = diloco(0.2, rule=optax.identity(), **outer)
    want, got = plainly(rule, 0.1, ONE_STEP), path(algorithm, X, ONE_STEP)
    assert_follows(got, want)
    assert farthest(got, want) <= 1e-14


@pytest.mark.parametrize(("fragments", "own_share"), [(2, 0.5), (4, 0.0), (7, 0.3)])
def test_all_that_streaming_diloco_keeps_follows_its_oracle(fragments, own_share):
    """Also if fragments do not divide the model, and for clients that are absent."""
    options = {"fragments": fragments, "own_share": own_share}
    algorithm = ALL["streaming_diloco"].function(lr=0.02, **options)
    want = streaming_diloco(X, PARTIAL, 0.02, **options)
    states = run(algorithm, X, PARTIAL)
    assert_follows([s.server.params for s in states], [x for x, _ in want])
    for state, (_, x_i) in zip(states, want, strict=True):
        own = state.client_states.params
        got = [{k: own[k][i] for k in own} for i in range(len(SIZES))]
        assert farthest(got, x_i) <= 1e-10


def test_fragments_are_irrelevant_to_identical_clients():
    """Which receive what they have, from a server that takes their mean."""
    same = FULL._replace(rounds=[(ids, data[:1] * 5) for ids, data in FULL.rounds])
    plain = {"lr": 0.02, "server_lr": 1.0, "server_rule": optax.identity()}
    make = ALL["streaming_diloco"].function
    seen = [run(make(fragments=p, **plain), X, same) for p in (1, 2, 3)]
    first, *others = [[s.client_states.params for s in states] for states in seen]
    assert max(farthest(first, other) for other in others) <= 1e-12
    assert farthest([seen[1][0].server.params], [seen[0][0].server.params]) > 1e-3


def test_sparseloco_that_sends_everything_is_diloco_without_server_momentum():
    algorithm = ALL["sparseloco"].function(lr=0.02, server_lr=0.7, k=99, bits=None)
    plain = diloco(0.02, server_lr=0.7, server_rule=optax.identity())
    states = run(algorithm, X, PARTIAL)
    assert not any(e.any() for e in jax.tree.leaves(states[-1].client_states.errors))
    got = [s.server.params for s in states]
    assert farthest(got, path(plain, X, PARTIAL)) == 0


# ---------------------------------------------------------------------------- HeLoCo


def test_options_of_heloco_follow_too():
    options = {"threshold": 0.9, "shrink": 3.0, "turn": 2.0, "kappa": 0.5}
    theirs = {"c_ok": 0.9, "k_s": 3.0, "k_d": 2.0, "kappa": 0.5}
    make = ALL["heloco"].function
    algorithm = make(lr=cosine, server_lr=0.5, momentum=0.8, weight=0.6, **options)
    want = heloco(X, PARTIAL, COSINE, outer_lr=0.5, mu=0.8, rho=0.6, **theirs)
    assert_follows(path(algorithm, X, PARTIAL), want)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_heloco_that_corrects_nothing_is_a_momentum_that_looks_ahead(momentum):
    """A first round of one client moves by server_lr (1 + mu (1 - mu)) messages."""
    off = {"threshold": 0.0, "shrink": 0.0}
    algorithm = ALL["heloco"].function(0.02, momentum=momentum, **off)
    plain = diloco(0.02, **AVERAGING)
    first = ALONE._replace(rounds=ALONE.rounds[:1])
    (end,) = path(plain, X, first)
    factor = 0.7 * (1 + momentum * (1 - momentum))
    got = path(algorithm, X, first)
    assert_follows(got, [add(X, times(factor, sub(end, X)))])
    want = heloco(X, PARTIAL, 0.02, mu=momentum, c_ok=-1.0)
    assert_follows(path(algorithm, X, PARTIAL), want)
    if momentum == 0:  # and without a look-ahead it is DiLoCo without momentum
        plain = diloco(0.02, server_rule=optax.identity())
        assert farthest(path(plain, X, PARTIAL), want) <= 1e-12


# ------------------------------------------------------- error feedback in both ways


def test_ef21_muon_without_compression_steps_along_the_mean_momentum():
    whole = {"compressor": no_compression(), "broadcast_compressor": no_compression()}
    rule = muon(0.0, polar=kernel.polar, rest=optax.scale_by_sign())
    algorithm = ALL["ef21_muon"].function(lr=cosine, rule=rule, **whole)
    seen = run(algorithm, X, FULL)
    m = [FULL.grad(X, batches[0]) for batches in FULL.first]
    step = lambda m: {"w": polar(m["w"]), "b": np.sign(m["b"])}
    x, want = sub(X, times(COSINE(0), step(mean(m)))), []
    for r, (ids, data) in enumerate(FULL.rounds):
        for i, batches in zip(ids, data, strict=True):
            g = mean([FULL.grad(x, batch) for batch in batches])
            m[i] = add(times(0.9, m[i]), times(0.1, g))
        for at in (seen[r].server.kept[1], [x["b"], x["w"]]):
            assert farthest([dict(zip("bw", at, strict=True))], [x]) <= 1e-12
        x = sub(x, times(COSINE(r), step(mean(m))))
        want.append(x)
    assert_follows([s.server.params for s in seen], want)
    errors = jax.tree.leaves([s.client_states.errors for s in seen])
    assert max(np.abs(e).max() for e in errors) < 1e-15


def test_all_that_ef21_muon_keeps_follows_its_oracle():
    """And g is the mean of all g_i, also of clients that are absent."""
    compressor, sparse = top_k(0.3), largest(0.3)
    algorithm = ALL["ef21_muon"].function(
        lr=0.03,
        momentum=0.7,
        compressor=compressor,
        broadcast_compressor=top_k(0.5),
        polar=kernel.polar,
    )
    want = ef21_muon(X, PARTIAL, 0.03, sparse, largest(0.5), b=0.3)
    states = run(algorithm, X, PARTIAL)
    assert_follows([s.server.params for s in states], [x for x, *_ in want])
    for state, (_, w, g, g_i) in zip(states, want, strict=True):
        server, (m, errors) = state.server, state.client_states
        assert farthest([dict(zip("bw", server.kept[1], strict=True))], [w]) <= 1e-12
        assert farthest([server.inner.momentum], [g]) <= 1e-12
        known = {k: m[k] - e for k, e in zip("bw", errors[1], strict=True)}
        for i in range(len(SIZES)):
            assert farthest([{k: known[k][i] for k in known}], [g_i[i]]) <= 1e-12
        assert farthest([{k: known[k].mean(0) for k in known}], [g]) <= 1e-12


def test_ef21_muon_stays_where_all_gradients_are_zero():
    flat = Objective(lambda params, batch, key: tree.zeros_like(params))
    for state in run(ALL["ef21_muon"].function(), X, PARTIAL, objective=flat):
        assert farthest([state.server.params], [X]) == 0


# ---------------------------------------------------------------------------- FedPAC
SOAP = scale_by_soap(every=2, first_step=True)


def test_fedpac_of_muon_is_fedmuon():
    """With the momentum of its paper, bit for bit; and without alignment and decay."""
    options = {"lr": 0.03, "momentum": 0.98, "polar": kernel.polar}
    got = path(ALL["fedpac_muon"].function(**options), X, PARTIAL)
    assert farthest(got, path(fedmuon_align(**options), X, PARTIAL)) == 0
    assert_follows(got, aligned(X, PARTIAL, 0.03))


def test_fedpac_of_soap_refreshes_its_bases_within_a_round():
    got = path(
        fedmuon_align(lr=cosine, rule=SOAP, averaged_state=("grams",)), X, PARTIAL
    )
    assert_follows(got, fedpac_soap(X, PARTIAL, COSINE, every=2))
    assert farthest(got, fedpac_soap(X, PARTIAL, COSINE)) > 1e-4


def test_fedpac_without_mean_preconditioners_and_alignment_is_local_soap():
    got = path(fedavg(lr=0.03, rule=SOAP), X, PARTIAL)
    off = {"align": 0.0, "decay": 0.0, "every": 2}
    assert_follows(got, fedpac_soap(X, PARTIAL, 0.03, share_grams=False, **off))
    assert farthest(got, fedpac_soap(X, PARTIAL, 0.03, **off)) > 1e-4


def test_the_preconditioner_of_a_single_client_is_its_average_of_all_rounds():
    """Its mean is itself: no gradient is lost or counted twice between rounds."""
    zero = fedmuon_align(lr=1e-9, rule=SOAP, averaged_state=("grams",))
    left, right = run(zero, X, ALONE)[-1].server.momentum
    L, R = np.zeros((4, 4)), np.zeros((3, 3))
    for _, ((*batches,),) in ALONE.rounds:
        for batch in batches:
            g = ALONE.grad(X, batch)["w"]
            L, R = 0.95 * L + 0.05 * g @ g.T, 0.95 * R + 0.05 * g.T @ g
    np.testing.assert_allclose(left, L, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(right, R, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("plan", [plans.vmapped, plans.chunked(2)])
def test_plans_of_fedpac_agree(plan):
    algorithm = ALL["fedpac_soap"].function(lr=0.03)
    want = path(algorithm, X, PARTIAL)
    assert_follows(path(algorithm, X, PARTIAL, plan=plan), want)


# ------------------------------------------------------------- schedules and options

GUIDED = {
    "fedavg_m": (fedavg_m, 0.7),
    "fedavg_vr": (fedavg_vr, after_first(0.7)),
    "scaffold_m": (scaffold_m, after_first(0.7)),
    "scaffold_vr": (scaffold_vr, after_first(0.7)),
    "padamfed_vr": (padamfed_vr, after_first(0.7)),
}
# what the library and what the oracle calls the options, none at its default
ADAPTIVE: dict[str, tuple[dict[str, float], Any, Trace]] = {
    "fedlada": (
        {"amend": 0.4, "b1": 0.8, "b2": 0.9, "eps": 0.1, "server_lr": 0.7},
        partial(fedlada, alpha=0.4, b1=0.8, b2=0.9, eps=0.1, server_lr=0.7),
        PARTIAL,
    ),
    "fafed": (
        {"momentum": 0.6, "beta": 0.8, "floor": 0.2},
        partial(fafed, a=0.4, beta=0.8, rho=0.2),
        PREPARED,
    ),
    "stem": ({"momentum": 0.6}, partial(stem, a=0.4), PREPARED),
}


@pytest.mark.parametrize("name", GUIDED)
def test_schedules_and_server_rates_follow(name):
    oracle, momentum = GUIDED[name]
    algorithm = ALL[name].function(lr=cosine, server_lr=0.7, momentum=momentum)
    want = oracle(X, PARTIAL, COSINE, b=0.3, server_lr=0.7)
    assert_follows(path(algorithm, X, PARTIAL), want)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_schedules_and_options_follow(name):
    hyper, oracle, trace = ADAPTIVE[name]
    got = path(ALL[name].function(lr=cosine, **hyper), X, trace)
    assert_follows(got, oracle(X, trace, COSINE))


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("fedavg_m", avg.fedavg_momentum),
        ("scaffold_m", scaffold_momentum),
        ("padamfed_vr", scaffold_momentum),
    ],
)
def test_local_rules_keep_their_state_through_a_round(name, oracle):
    rule = optax.trace(0.9)
    algorithm = ALL[name].function(lr=0.05, momentum=0.0, rule=rule)
    assert_follows(path(algorithm, X, PARTIAL), oracle(X, PARTIAL, 0.05))


# --------------------------------------------------- both ends of both intervals

CLIPPED = {
    "adam_biclip": lambda trace, lr: avg.adam_biclip(X, trace, lr, 1e-5, 0.1, 0.01),
    "bi2clip": lambda trace, lr: avg.bi2clip(X, trace, lr, 1e-5, 0.1, 1e-5, 0.1, 1.0),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_small_gradients_and_moves_are_lifted(name):
    """Gradients of about 1e-5: the toy's own lie above it, and so do its moves."""
    small = lambda params, *given: tree.scale(grad_fn(params, *given), 1e-4)
    trace = PARTIAL._replace(grad=lambda p, batch: times(1e-4, PARTIAL.grad(p, batch)))
    want = CLIPPED[name](trace, 0.1)
    assert farthest(want[-1:], [X]) >= 1e-6
    got = path(ALL[name].function(), X, PARTIAL, objective=Objective(small))
    assert farthest(got, want) <= 1e-13


def test_large_moves_of_bi2clip_are_cut():
    """Four local steps of 0.1 move by 0.04 at the preset's rate, by 0.8 at this."""
    want = CLIPPED["bi2clip"](PARTIAL, 2.0)
    assert_follows(path(ALL["bi2clip"].function(lr=2.0), X, PARTIAL), want)


# ------------------------------------------------- two gradients at one sample
@pytest.mark.parametrize("name", ["fedavg_vr", "scaffold_vr"])
def test_a_first_step_is_the_fresh_share_of_the_gradient(name):
    """x_ begins at x, so that the old gradient is the new one, and g at 0."""
    algorithm = ALL[name].function(lr=0.2, momentum=0.7)
    want = avg.fedavg(X, FIRST, 0.3 * 0.2)
    assert farthest(want, [X]) >= 1e-3
    assert farthest(path(algorithm, X, FIRST), want) <= 1e-12


def test_a_first_normalised_step_has_the_direction_of_the_gradient():
    algorithm = ALL["padamfed_vr"].function(lr=0.05, momentum=0.7)
    want = padamfed_vr(X, FIRST, 0.05, b=1.0)
    assert farthest(want, [X]) >= 1e-3
    assert farthest(path(algorithm, X, FIRST), want) <= 1e-12


def noise(params, batch, key):
    """A gradient of the sample alone, the sample being the key: no point is in it."""
    del batch
    words = jax.random.key_data(key)
    return jax.tree.map(lambda p: jnp.full_like(p, jnp.sin(words % 1000).sum()), params)


NOISE = Objective(noise)


SINGLES = {"fedavg_vr": "fedavg_m", "scaffold_vr": "scaffold_m"}
SINGLES["padamfed_vr"] = "padamfed"


@pytest.mark.parametrize(("name", "other"), SINGLES.items())
def test_both_gradients_have_one_key(name, other):
    """The old gradient is the new one then: the method of one gradient is left."""
    hyper = {"lr": 0.01, "momentum": after_first(0.7)}
    want = path(ALL[other].function(**hyper), X, PARTIAL, objective=NOISE)
    assert farthest(want[-1:], [X]) >= 1e-2
    got = path(ALL[name].function(**hyper), X, PARTIAL, objective=NOISE)
    assert farthest(got, want) <= 1e-12


def test_both_gradients_of_stem_have_one_key():
    """d <- d + grad(x) - grad(x_) never changes then: steps of one length."""
    algorithm = ALL["stem"].function(lr=0.01, momentum=1.0)
    states = run(algorithm, X, FULL, objective=NOISE)
    d = states[0].server.momentum
    for r, state in enumerate(states, start=1):
        want = {k: X[k] - 0.01 * (4 * r + 1) * d[k] for k in X}
        assert farthest([state.server.momentum], [d]) <= 1e-12
        assert farthest([state.server.params], [want]) <= 1e-12
    assert np.max(np.abs(d["w"])) > 0.1


def test_both_gradients_of_fafed_have_one_key():
    """m never changes then; v does, since the samples differ."""
    algorithm = ALL["fafed"].function(lr=0.01, momentum=1.0)
    states = run(algorithm, X, FULL, objective=NOISE)
    means = [s.server.mean for s in states]
    assert farthest(means, means[:1] * len(means)) <= 1e-12
    assert farthest([states[0].server.square], [states[1].server.square]) >= 1e-3
    assert np.max(np.abs(means[0]["w"])) > 0.1


# ---------------------------------------------------------------- where Muon stalls


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_local_muon_never_leaves_the_start_of_theorem_1(momentum):
    """arXiv:2509.26337: f_1 = ||X||^2 / 2, f_2 = ||X + A||^2 / 2, at X = -A / 4.

    Both gradients have the norm of A / 4 or 3 A / 4, but opposite directions.
    """
    targets = Objective(lambda p, b, key: {"x": p["x"] - b[0]})
    a = {"x": 4.0 * np.eye(3)}
    data = [[(0 * a["x"],)], [(-a["x"],)]]
    trace = PARTIAL._replace(num_clients=2, first=data, rounds=[([0, 1], data)] * 20)
    start = times(-1 / 4, a)
    options = {"lr": 0.1, "momentum": momentum, "polar": kernel.polar}
    stuck = path(local_muon_persistent(**options), start, trace, objective=targets)
    assert farthest(stuck, [start] * 20) <= 1e-12
    moving = path(fedmuon_correct(**options), start, trace, objective=targets)
    assert farthest(moving[-1:], [start]) >= 0.7  # of 1, to the optimum -A / 2


# ------------------------------------------------- options with which two coincide

NOTHING, BALL, MUON = optax.identity(), optax.trace(0.9), muon(0.98)
DECAYED = optax.chain(MUON, optax.add_decayed_weights(0.1))

# trace; the one method; the other
SAME: dict[str, tuple[Any, ...]] = {
    "one step without LMO and past: bias correction is SCAFFOLD at the rate S/N": (
        ONE_STEP_PARTIAL,
        fedmuon_correct(lr=0.2, momentum=0.0, rule=NOTHING),
        scaffold(lr=0.2, server_lr=3 / 5),
    ),
    "alignment and momentum aggregation off: Local Muon": (
        PARTIAL,
        fedmuon_align(lr=cosine, align=0, decay=0.1, rule=MUON, averaged_state=()),
        fedavg(lr=cosine, rule=DECAYED),
    ),
    "alignment off: Local Muon with averaged momentum": (
        PARTIAL,
        fedmuon_align(lr=cosine, align=0.0, decay=0.0, rule=MUON),
        fedavg(lr=cosine, rule=MUON, averaged_state=("trace",)),
    ),
    "persistent Local Muon without LMO and past: FedAvg at the server rate S/N": (
        PARTIAL,
        local_muon_persistent(lr=0.1, momentum=0.0, rule=NOTHING),
        fedavg(lr=0.1, server_lr=3 / 5),
    ),
    "FedProx without its term: FedAvg": (
        PARTIAL,
        fedprox(mu=0.0, rule=BALL),
        fedavg(rule=BALL),
    ),
    "DiLoCo whose clients have no state: FedAvg with that server": (
        PARTIAL,
        diloco(lr=0.1, rule=NOTHING, server_rule=BALL),
        fedavg(lr=0.1, server_lr=0.7, server_rule=BALL),
    ),
    "one step, averaged momentum: the server's heavy ball": (
        ONE_STEP,
        fedavg(rule=BALL, averaged_state=("trace",)),
        fedavg(server_rule=BALL),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_methods_that_coincide(name):
    trace, one, other = SAME[name]
    a = path(one, X, trace)
    assert farthest(a, path(other, X, trace)) <= 1e-12
    assert farthest(a[-1:], [X]) >= 1e-2
