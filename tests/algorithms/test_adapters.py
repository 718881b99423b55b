"""Averages of low-rank adapters against dense transcriptions, and their laws."""

import importlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_muon as fm
from fedjax_muon import engine, transforms
from fedjax_muon.algorithms.fedsubmuon import _turned
from fedjax_muon.core import Objective, streams
from fedjax_muon.engine import plans
from fedjax_muon.linalg import newton_schulz as kernel
from fedjax_muon.tasks.lora import draw_a
from tests.oracles.cases import ALONE, PARTIAL, SIZES, X
from tests.oracles.lora import adapters, fedsubmuon, turned
from tests.oracles.problem import draw_params, draw_trace
from tests.support import traces

SCALE = 1.5
RANKS = (1, 2, 3, 0, 3)
IN, RANK, OUT = 4, 3, 3
DRAWN = np.random.default_rng(4)
PAIR = {"a": DRAWN.normal(size=(IN, RANK)), "b": DRAWN.normal(size=(RANK, OUT))}
START = {"layer": {"kernel": X["w"], **PAIR}, "b": X["b"]}
FLAT = {**X, "A": PAIR["a"], "B": PAIR["b"]}


def whole(p):
    pair = p["layer"]
    return {"w": pair["kernel"] + SCALE * pair["a"] @ pair["b"], "b": p["b"]}


def grad(params, batch, key):
    """By automatic differentiation, of the kernel too, which nobody may use."""
    model, pull = jax.vjp(whole, params)
    return pull(traces.grad_fn(model, batch, key))[0]


def states(algorithm, trace=PARTIAL, start=START, **options):
    return traces.run(algorithm, start, trace, objective=Objective(grad), **options)


def flat(params):
    pair = params["layer"]
    return {"w": pair["kernel"], "A": pair["a"], "B": pair["b"], "b": params["b"]}


def model(p):
    return p["w"] + SCALE * p["A"] @ p["B"]


def path(algorithm, trace=PARTIAL, **options):
    return [flat(s.server.params) for s in states(algorithm, trace, **options)]


def drawn(r, i):
    """FLoRA's new A, from the key of the client's training."""
    with traces.precision(jnp.float64):
        keys = engine.round.exchange_keys(
            jax.random.key(0), r, 0, 0, jnp.array([i]), PARTIAL.num_clients
        )
        key = jax.random.fold_in(keys.members[0], streams.ADAPTERS)
        return np.asarray(draw_a(jax.random.fold_in(key, 0), (IN, RANK), jnp.float64))


PLAIN = {"lr": 0.1, "rule": optax.identity()}
METHODS = {
    "fedit": fm.fedit(**PLAIN),
    "ffa_lora": fm.ffa_lora(**PLAIN),
    "rolora": fm.rolora(**PLAIN),
    "fedsa_lora": fm.fedsa_lora(**PLAIN),
    "fedex_lora": fm.fedex_lora(**PLAIN, scale=SCALE),
    "flora": fm.flora(**PLAIN, scale=SCALE),
    "flexlora": fm.flexlora(**PLAIN),
}
RANKED = {
    "flora": fm.flora(**PLAIN, scale=SCALE, ranks=RANKS),
    "flexlora": fm.flexlora(**PLAIN, ranks=(1, 2, 3, 1, 3)),
}
PLANS = {"mapped": plans.mapped, "vmapped": plans.vmapped, "chunked": plans.chunked(2)}


def assert_same_models(found, want):
    """Factors up to signs of singular vectors: equal kernels, products and biases."""
    for p, q in zip(found, want, strict=True):
        for name in ("w", "b"):
            np.testing.assert_allclose(p[name], q[name], rtol=0, atol=1e-12)
        product = p["A"] @ p["B"]
        np.testing.assert_allclose(product, q["A"] @ q["B"], rtol=0, atol=1e-12)


ADAPTERS = fm.algorithms.ADAPTERS


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_a_model_without_adapters_is_refused(name):
    """On it, all of them would be FedAvg with Adam."""
    algorithm = fm.algorithms.ALL[name].function()
    said = r"trains low-rank adapters, but the model has none; make .*lora_language$"
    with pytest.raises(ValueError, match=said):
        engine.init(algorithm, X, 3)
    with pytest.raises(ValueError, match=said.replace("trains", "is for")):
        transforms.lora_muon(2.0).init(X)


def test_methods_for_adapters_are_known():
    parts = ("lora", "fedsubmuon")
    modules = [importlib.import_module(f"fedjax_muon.algorithms.{n}") for n in parts]
    defined = {name for each in modules for name in vars(each)} & {*fm.algorithms.ALL}
    assert defined == ADAPTERS == {*METHODS, "fedsubmuon", "fedsubmuon_gt"}


@pytest.mark.parametrize("name", METHODS)
def test_every_average_follows_its_oracle(name):
    """Unequal clients with their weights, of which three of five take part."""
    sizes = np.array(SIZES)
    weigh = {"weigh": lambda ids: sizes[np.array(ids)]}
    found = states(METHODS[name], **weigh)
    want, own = adapters(FLAT, PARTIAL, 0.1, SCALE, name, weights=SIZES, draw=drawn)
    params = [flat(state.server.params) for state in found]
    assert_same_models(params, want)
    assert traces.farthest(want[-1:], [FLAT]) > 0.05
    if name != "flexlora":
        assert traces.farthest(params, want) < 1e-12
    if name == "fedsa_lora":
        kept = [state.client_states.params["layer"]["b"] for state in found]
        np.testing.assert_allclose(kept, own, rtol=0, atol=1e-12)
    plain, _ = adapters(FLAT, PARTIAL, 0.1, SCALE, "fedit", weights=SIZES)
    models = [
        [p["w"] + SCALE * p["A"] @ p["B"] for p in each] for each in (want, plain)
    ]
    differs = np.max(np.abs(models[0][-1] - models[1][-1]))
    assert (differs < 1e-15) == (name == "fedit")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", RANKED)
def test_ranks_of_clients_follow_their_oracle(name, plan):
    ranks = RANKS if name == "flora" else (1, 2, 3, 1, 3)
    want, _ = adapters(FLAT, PARTIAL, 0.1, SCALE, name, ranks=ranks, draw=drawn)
    assert_same_models(path(RANKED[name], plan=PLANS[plan]), want)
    full, _ = adapters(FLAT, PARTIAL, 0.1, SCALE, name, draw=drawn)
    assert traces.farthest(full, want) > 1e-3


EXACT = ("ffa_lora", "rolora", "fedex_lora", "flora", "flexlora")


@pytest.mark.parametrize("name", EXACT)
def test_a_rounds_model_is_the_mean_of_the_models_of_its_clients(name):
    """From what each client alone would have. FlexLoRA's is, since q = out."""
    (ids, data), *_ = PARTIAL.rounds
    only = lambda ids, data: PARTIAL._replace(rounds=[(ids, data)])
    pairs = zip(ids, data, strict=True)
    each = [model(path(METHODS[name], only([i], [d]))[0]) for i, d in pairs]
    (mean,) = path(METHODS[name], only(ids, data))
    np.testing.assert_allclose(model(mean), np.mean(each, axis=0), rtol=0, atol=1e-13)
    (naive,) = path(METHODS["fedit"], only(ids, data))
    assert np.max(np.abs(model(naive) - np.mean(each, axis=0))) > 1e-4


def test_nothing_is_folded_for_one_client_or_identical_ones_or_a_fixed_factor():
    (ids, data), *_ = PARTIAL.rounds
    same = PARTIAL._replace(rounds=[(ids, data[:1] * len(ids))])
    for trace in (ALONE, same):
        for p in path(METHODS["fedex_lora"], trace):
            np.testing.assert_allclose(p["w"], X["w"], rtol=0, atol=1e-15)
    labels = {"layer": {"a": "fixed", "b": "trained"}, "b": "trained"}
    rules = {"fixed": optax.set_to_zero(), "trained": optax.identity()}
    fixed = fm.fedex_lora(0.1, scale=SCALE, rule=optax.partition(rules, labels))
    found = path(fixed)
    np.testing.assert_array_equal(found[-1]["A"], FLAT["A"])
    np.testing.assert_allclose(found[-1]["w"], X["w"], rtol=0, atol=1e-15)
    assert traces.farthest(found, path(METHODS["ffa_lora"])) < 1e-15


def test_fedit_is_fedavg_of_adapters():
    plain = {"layer": PAIR, "b": X["b"]}

    def of_factors(params, *given):
        pair = {**params["layer"], "kernel": jnp.asarray(X["w"])}
        g = grad({**params, "layer": pair}, *given)
        return {**g, "layer": {name: g["layer"][name] for name in "ab"}}

    objective = Objective(of_factors)
    found, want = (
        traces.path(algorithm, plain, PARTIAL, objective=objective)
        for algorithm in (METHODS["fedit"], fm.fedavg(0.1))
    )
    for one, other in zip(found, want, strict=True):
        jax.tree.map(partial(np.testing.assert_allclose, atol=1e-15), one, other)


def test_rolora_moves_b_first_since_a_has_no_gradient_at_the_start():
    start = {**START, "layer": {**START["layer"], "b": np.zeros((RANK, OUT))}}
    first, second, *_ = path(METHODS["rolora"], start=start)
    np.testing.assert_array_equal(first["A"], FLAT["A"])
    assert np.any(first["B"])
    np.testing.assert_array_equal(second["B"], first["B"])
    assert np.any(second["A"] != first["A"])


def test_flexlora_sends_an_orthonormal_factor_and_cuts_the_smallest_values():
    (*_, last) = path(METHODS["flexlora"])
    np.testing.assert_allclose(last["A"].T @ last["A"], np.eye(RANK), atol=1e-13)
    # one factor less than the rank of the product: the error is what is cut
    thin = {"a": PAIR["a"][:, :1], "b": PAIR["b"][:1]}
    start = {**START, "layer": {"kernel": X["w"], **thin}}
    (ids, data), *_ = PARTIAL.rounds
    trace = PARTIAL._replace(rounds=[(ids, data)])
    (found,) = path(METHODS["flexlora"], trace, start=start)
    (exact,) = path(METHODS["fedex_lora"], trace, start=start)
    product = (exact["w"] - X["w"]) / SCALE + exact["A"] @ exact["B"]
    lost = np.linalg.norm(found["A"] @ found["B"] - product)
    cut = np.linalg.norm(np.linalg.svd(product)[1][1:])
    assert cut > 1e-3
    np.testing.assert_allclose(lost, cut, rtol=1e-10)


def test_factors_with_more_columns_than_the_kernel_has_rows():
    wide = {"a": np.ones((IN, 6)), "b": np.ones((6, OUT))}
    start = {**START, "layer": {"kernel": X["w"], **wide}}
    for p in path(METHODS["flexlora"], ALONE, start=start):
        assert p["A"].shape == (IN, 6)
        assert not np.any(p["A"][:, OUT:])


# ---------------------------------------------------------------- FedSubMuon

exact = lambda m: (lambda u, s, vt: u @ vt)(*np.linalg.svd(m, full_matrices=False))
MUON = transforms.muon(0.9, polar=kernel.polar, rest=optax.identity())
SPACE = {"a": PAIR["a"][:, :2], "b": PAIR["b"][:2]}
BEGIN = {**START, "layer": {"kernel": X["w"], **SPACE}}
THIN = {**X, "A": SPACE["a"], "B": SPACE["b"]}
GIVEN = {"scale": SCALE, "rule": MUON}


def bases(r, shapes=((IN, 2), (2, OUT))):
    """The subspaces that are drawn before a round, from the server's key."""
    with traces.precision(jnp.float64):
        keys = engine.round.exchange_keys(
            jax.random.key(0), r, 0, 0, jnp.arange(1), PARTIAL.num_clients
        )
        key = jax.random.fold_in(keys.server, streams.ADAPTERS)
        halves = jax.random.split(jax.random.fold_in(key, 0))
        draw = jax.nn.initializers.orthogonal()
        sides = zip(halves, shapes, strict=True)
        return [np.asarray(draw(key, shape, jnp.float64)) for key, shape in sides]


SUBSPACES = {
    "drawn": (fm.fedsubmuon(0.1, refresh=2, **GIVEN), {"refresh": 2}),
    "kept": (fm.fedsubmuon(0.1, refresh=None, **GIVEN), {"refresh": None}),
    "turned": (
        fm.fedsubmuon_gt(0.1, refresh=2, step=0.3, **GIVEN),
        {"refresh": 2, "step": 0.3},
    ),
}


@pytest.mark.parametrize("name", SUBSPACES)
def test_fedsubmuon_follows_its_oracle(name):
    algorithm, options = SUBSPACES[name]
    sizes = np.array(SIZES)
    found = path(algorithm, start=BEGIN, weigh=lambda ids: sizes[np.array(ids)])
    given = {"momentum": 0.9, "draw": bases, "weights": SIZES, **options}
    want = fedsubmuon(THIN, PARTIAL, 0.1, SCALE, direction=exact, **given)
    assert traces.farthest(found, want) < 1e-11
    assert traces.farthest(want[-1:], [THIN]) > 0.1
    for p in found:  # orthonormal, whatever the turns
        np.testing.assert_allclose(p["A"].T @ p["A"], np.eye(2), atol=1e-13)


def test_a_turn_does_not_change_the_model():
    """Neither does a fold, whose round begins where the last one has ended."""
    (ids, data), *_ = PARTIAL.rounds
    trace = PARTIAL._replace(rounds=3 * [(ids, data)])
    ends = {name: path(SUBSPACES[name][0], trace, start=BEGIN) for name in SUBSPACES}
    kept, turned = ends["kept"][1], ends["turned"][1]  # at the end of the second round
    np.testing.assert_allclose(model(turned), model(kept), rtol=0, atol=1e-13)
    assert np.max(np.abs(turned["A"] - kept["A"])) > 0.01
    folded = fm.fedsubmuon(lambda index: 0.1 * (index < 2), refresh=2, **GIVEN)
    *_, before, after = path(folded, trace, start=BEGIN)
    np.testing.assert_allclose(model(after), model(before), rtol=0, atol=1e-13)
    assert not np.any(after["B"])


def test_turns_gain_gradient_energy():
    rng = np.random.default_rng(0)
    g = rng.normal(size=(6, 5))
    left, right = (np.linalg.qr(rng.normal(size=(n, 2)))[0] for n in (6, 5))
    energy = lambda u: np.linalg.norm(u.T @ g @ right)
    for step in (0.01, 0.1):
        with traces.precision(jnp.float64):
            moved = np.asarray(_turned(jnp.asarray(left), jnp.asarray(g @ right), step))
        assert energy(moved) > energy(left)
        np.testing.assert_allclose(moved, turned(left, g @ right, step), atol=1e-12)
    none = np.asarray(_turned(jnp.asarray(left), jnp.zeros((6, 2)), 0.1))
    np.testing.assert_allclose(none, left, atol=1e-6)


def test_muon_in_the_whole_space_is_muon_of_the_kernel():
    """orth(U^T G V^T) = U^T orth(G) V^T, if U and V are square."""
    x = draw_params(0, 4, 4)
    trace = draw_trace(1, 5, 3, 4, 6, 3, SIZES, outputs=4)
    rng = np.random.default_rng(1)
    whole = {"kernel": x["w"], "a": rng.normal(size=(4, 4)), "b": np.zeros((4, 4))}
    start = {"layer": whole, "b": x["b"]}
    found = path(fm.fedsubmuon(0.1 / SCALE, **GIVEN), trace, start=start)
    rule = optax.partition(
        {"w": MUON, "b": optax.scale(1 / SCALE)}, {"w": "w", "b": "b"}
    )
    want = traces.path(fm.fedavg(0.1, rule=rule), x, trace)
    for p, q in zip(found, want, strict=True):
        np.testing.assert_allclose(model(p), q["w"], rtol=0, atol=1e-12)
        np.testing.assert_allclose(p["b"], q["b"], rtol=0, atol=1e-12)
