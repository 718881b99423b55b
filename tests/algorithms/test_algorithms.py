"""Laws that every method obeys, whatever it computes.

Presets of one method share its code, and the laws do not see their rules: one preset
stands for each code. What the engine alone is responsible for needs three methods.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_muon import data, engine, models, partition
from fedjax_muon.algorithms import ADAPTERS, ALL
from fedjax_muon.core import Algorithm, tree
from fedjax_muon.engine import plans
from fedjax_muon.engine.sharding import REPLICATED, SHARDED, across, placed, sharded
from fedjax_muon.simulation.federated import federate
from fedjax_muon.tasks import classification
from tests.oracles.cases import PARTIAL, X
from tests.support.traces import TOY, by_code, compilations, stack

N, S = 5, 3
KEY = jax.random.key(7)


def close(a, b):
    """Equal up to float32 sums in another order, which Adam's division by the root of
    a small second moment, and U V' of a momentum far from orthogonal, magnify."""
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, 1e-5, 1e-5), a, b)


def identical(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def copy(state):
    """The rounds here consume the state that they are given."""
    return jax.tree.map(jnp.copy, state)


def arguments(r):
    """Cohort, batches, weights and key of a round of the trace."""
    ids, data = PARTIAL.rounds[r]
    batches = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), stack(data))
    return jnp.array(ids, jnp.int32), batches, jnp.ones(S), KEY


class Warm(NamedTuple):
    """A method in the middle of its work."""

    name: str
    algorithm: Algorithm
    step: Any  # a compiled round, all clients at once
    state: engine.State  # after two rounds
    given: tuple  # the arguments of the third

    def third(self, **changes):
        names = ("cohort", "batches", "weights", "key")
        given = {**dict(zip(names, self.given, strict=True)), **changes}
        return self.step(copy(self.state), *given.values())


# adapters, which X does not have, are tested in test_adapters
WITHOUT = {name: method for name, method in ALL.items() if name not in ADAPTERS}
ONE_OF_EACH = [names[-1] for names in by_code(WITHOUT)]
ONE_OF_EACH += ["fedmuon_svd"]  # its code differs below the wrapper
# without a state, with clients' states, and with a prologue besides
ENGINE = ["fedavg", "scaffold_adam", "fedmuon_unsynced"]
OTHERS = [name for name in ONE_OF_EACH if name not in ENGINE]
SLOW = pytest.mark.slow
WITH_PLANS = [*ENGINE[:2], pytest.param(ENGINE[2], marks=SLOW)]
WITH_DEVICES = [ENGINE[1], *(pytest.param(name, marks=SLOW) for name in ENGINE[::2])]


@pytest.fixture(
    scope="module",
    params=[*ENGINE, *(pytest.param(name, marks=SLOW) for name in OTHERS)],
)
def warm(request):
    algorithm = ALL[request.param].function()
    cast = lambda t: jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), t)
    state = engine.init(algorithm, cast(X), N)
    if algorithm.prologue:
        start = jax.jit(engine.make_prologue(algorithm, TOY, N, plans.vmapped))
        first = cast(stack(PARTIAL.first))
        state, _ = start(state, jnp.arange(N), first, jnp.ones(N), KEY)
    round = engine.make_round(algorithm, TOY, N, plans.vmapped)
    step = jax.jit(round, donate_argnums=0)
    for r in range(2):
        given = copy(state)
        state, received = step(given, *arguments(r))
        assert bool(received.all())
        assert all(x.is_deleted() for x in jax.tree.leaves(given.server))
    assert compilations(step) == 1
    return Warm(request.param, algorithm, step, state, arguments(2))


# ------------------------------------------------------------------------ execution
def by_hand(warm, state, cohort, batches, weights, key):
    """The same round in plain Python, one client after the other, nothing compiled."""
    with jax.disable_jit():
        round = engine.make_round(warm.algorithm, TOY, N, plans.loop)
        return round(state, cohort, batches, weights, key)


@pytest.mark.parametrize("warm", WITH_PLANS, indirect=True)
def test_plans_agree(warm):
    want = by_hand(warm, warm.state, *warm.given)
    close(warm.third(), want)
    moved = tree.sub(want[0].server.params, warm.state.server.params)
    assert max(float(jnp.max(jnp.abs(u))) for u in jax.tree.leaves(moved)) > 1e-3
    for plan in (plans.mapped, plans.chunked(2)):
        step = jax.jit(engine.make_round(warm.algorithm, TOY, N, plan))
        close(step(warm.state, *warm.given), want)


def test_a_round_is_a_function_of_its_arguments_and_compiled_once(warm):
    identical(warm.third(), warm.third())
    assert compilations(warm.step) == 1


def test_a_round_keeps_structure_shapes_and_dtypes(warm):
    """Of bfloat16 too, which a float32 rate from a schedule must not widen."""
    algorithm = ALL[warm.name].function(lr=lambda index: 0.1 / (1.0 + index))
    cast = lambda t: jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), t)
    before = engine.init(algorithm, cast(X), N)
    cohort, batches, weights, key = warm.given
    for make in (engine.make_prologue, engine.make_round):
        run = make(algorithm, TOY, N, plans.chunked(2))
        given = before, cohort, cast(batches), weights, key
        after, received = jax.eval_shape(run, *given)
        form = lambda t: jax.tree.map(lambda x: (x.shape, x.dtype), t)
        assert form(after) == form(before)
        assert (received.shape, received.dtype) == ((S,), bool)
    dtypes = {x.dtype for x in jax.tree.leaves(before.server.params)}
    assert dtypes == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("warm", WITH_DEVICES, indirect=True)
def test_devices_agree(warm):
    """Three clients of a cohort on two devices, the states of three on each."""
    devices, specs = jax.devices()[:2], engine.State(REPLICATED, REPLICATED, SHARDED)
    round = engine.make_round(warm.algorithm, TOY, N, sharded(plans.mapped, N))
    round = across(devices, round, (specs, *[REPLICATED] * 4), (specs, REPLICATED))
    pad = lambda x: jnp.concatenate([x, x[: N % 2]])
    padded = jax.tree.map(pad, warm.state.client_states)
    state = warm.state._replace(client_states=padded)
    step = jax.jit(round)
    got, received = step(placed(state, devices, specs), *warm.given)
    client_states = jax.tree.map(lambda x: x[:N], got.client_states)
    close((got._replace(client_states=client_states), received), warm.third())


# -------------------------------------------------------------------- who takes part
def test_the_order_of_the_cohort_is_irrelevant(warm):
    cohort, batches, weights, _ = warm.given
    flip = jnp.array([2, 0, 1])
    batches = jax.tree.map(lambda a: a[flip], batches)
    weights = jnp.array([0.5, 1.0, 2.0])
    state, received = warm.third(weights=weights)
    flipped = warm.third(cohort=cohort[flip], batches=batches, weights=weights[flip])
    close(state, flipped[0])
    # nothing is summed there, but what several exchanges sum
    same = identical if len(warm.algorithm.exchanges) == 1 else close
    same(state.client_states, flipped[0].client_states)
    identical(received[flip], flipped[1])


def test_absent_clients_keep_their_state(warm):
    after, _ = warm.third()
    away = np.setdiff1d(np.arange(N), warm.given[0])
    identical(
        *(tree.map(lambda v: v[away], s.client_states) for s in (after, warm.state))
    )
    for before, now in zip(
        *map(jax.tree.leaves, (warm.state.client_states, after.client_states)),
        strict=True,
    ):
        moved = [not np.array_equal(before[i], now[i]) for i in warm.given[0]]
        assert all(moved) or warm.name == "fedmuon_unsynced"  # it keeps the first ones


@pytest.mark.parametrize("warm", WITH_PLANS, indirect=True)
def test_a_client_that_drops_out_was_never_sampled(warm):
    dropped, received = warm.third(weights=jnp.array([1.0, 0.0, 1.0]))
    assert received.tolist() == [True, False, True]
    left = jnp.array([0, 2])
    cohort, batches, weights, key = warm.given
    batches = jax.tree.map(lambda a: a[left], batches)
    fewer = cohort[left], batches, weights[left], key
    close(dropped, by_hand(warm, warm.state, *fewer)[0])


@pytest.mark.parametrize("poison", [jnp.nan, jnp.inf])
def test_a_client_that_sends_nonsense_was_never_sampled(warm, poison):
    x, y, weight = warm.given[1]
    step = 3 if len(warm.algorithm.exchanges) == 1 else 0  # in the first exchange
    state, received = warm.third(batches=(x, y.at[1, step, 0].set(poison), weight))
    if warm.name == "bi2clip" and poison == jnp.inf and bool(received.all()):
        # XLA may sum an infinite gradient without a NaN, and clipping makes it finite
        assert bool(tree.all_finite(state))
        return
    assert received.tolist() == [True, False, True]
    dropped, _ = warm.third(weights=jnp.array([1.0, 0.0, 1.0]))
    identical(state, dropped)
    assert bool(tree.all_finite(state))


def test_a_round_without_any_message_changes_nothing(warm):
    x, y, weight = warm.given[1]
    for changes in ({"weights": jnp.zeros(S)}, {"batches": (x, y * jnp.nan, weight)}):
        state, received = warm.third(**changes)
        assert not received.any()
        identical(state, warm.state._replace(index=jnp.int32(3)))


# ------------------------------------------------------------------- communication

# (down, up) in models of 15 numbers, 12 of them in the matrix: only matrices have a
# momentum that travels
MATRIX = 12 / 15
FACTORS = (4 + 1 + 3) / 15  # of that matrix of 4 x 3, at the least rank
TWICE = (
    "scaffold scaffold_momentum scaffold_adam scaffold_m padamfed stem local_sgdm "
    "fedmuon fedmuon_unsynced fedmuon_correct fedmuon_correct_euclidean "
    "fedmuon_correct_max_norm fedcomuon fedcomuon_vr"
)
# of 2 bits, with 16 bits for a position and four means, of arrays of 12 and 3
BINNED = (3 + 24 + 8 + 1 + 6 + 8) / (2 * 15)
SIGNS = (2 + 1) / (2 * 15)  # of 12 and of 3 bits
SPARSE = 2 * (2 + 4) / (2 * 15)  # an entry of each array, and its position
COST = dict.fromkeys(TWICE.split(), (2, 2)) | {
    "fedmuon_align": (2 + MATRIX, 1 + MATRIX),
    "fedmuon_svd": (2 + MATRIX, 1 + FACTORS),
    "fedmuon_align_reset": (2, 1),
    "fedpac_muon": (2 + MATRIX, 1 + MATRIX),
    "fedpac_soap": (2, 1),
    "local_muon_averaged": (1 + MATRIX, 1 + MATRIX),
    "ef21_muon": (SPARSE, SPARSE),
    "sparseloco": (1, BINNED),
    **dict.fromkeys(("sign_vote", "signmuon", "muonusign"), (1, SIGNS)),
    "muonsign": (SIGNS + 2 / 15, SIGNS),  # and the scale of each array
    "streaming_diloco": (1 / 3, 1 / 3),
    "fedadamw": (2, 1),
    "fedcm": (2, 1),
    "fedavg_m": (2, 1),
    "fedavg_vr": (3, 1),
    "scaffold_vr": (3, 2),
    "padamfed_vr": (3, 3),
    "fedlada": (3, 2),
    "fafed": (3, 3),
    "adam_biclip": (1, 1),
    "bi2clip": (1, 1),
    "local_sgd_align": (3, 2),
    "local_adamw_align": (4, 3),
}
BEFORE = {"ef21_muon": (1, 1), "fedmuon": (1, 1), "stem": (1, 1)}
BEFORE["fedcomuon"] = 1, 1
BEFORE |= {"fedmuon_unsynced": (1, 0), "fafed": (1, 2)}


def test_traffic_is_the_papers():
    shaped = lambda a: jax.ShapeDtypeStruct(np.shape(a), jnp.bfloat16)
    params = jax.tree.map(shaped, X)
    batches = jax.tree.map(lambda a: shaped(a[0]), arguments(0)[1])
    for name, method in WITHOUT.items():
        algorithm = method.function()
        for exchanges, sizes in (
            (algorithm.exchanges, COST.get(name, (1, 1))),
            (algorithm.prologue, BEFORE.get(name, (0, 0))),
        ):
            if name in ("fednova", "fedexp") and exchanges:  # a number in float32
                sizes = np.add(sizes, (0, 4 / tree.nbytes(params)))
            if name == "fedadamw" and exchanges:  # one for each leaf
                count = 4 * len(jax.tree.leaves(params)) / tree.nbytes(params)
                sizes = np.add(sizes, (count, count))
            if name == "fedpac_soap" and exchanges:  # g g^T and g^T g, in float32
                sizes = np.add(sizes, 4 * (4**2 + 3**2) / tree.nbytes(params))
            sent = engine.traffic(exchanges, algorithm, TOY, params, batches)
            share = np.array(sent) / tree.nbytes(params)
            np.testing.assert_allclose(share, sizes, err_msg=name)
            assert all(type(count) is int for count in sent)


# ------------------------------------------------------------------------- the rows
def test_labels_are_unique_and_cost_rows_exist():
    assert len({method.label for method in ALL.values()}) == len(ALL)
    assert ALL.keys() >= COST.keys()
    assert ALL.keys() >= BEFORE.keys()


# ------------------------------------------------------------------- differentiation
@pytest.mark.slow
def test_a_round_can_be_differentiated_by_its_learning_rate():
    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, (*stack(PARTIAL.rounds[0][1]), X))
        *batches, params = given
        cohort = jnp.array(PARTIAL.rounds[0][0], jnp.int32)
        x, y, weight = (a.reshape(-1, *a.shape[3:]) for a in batches)

        def loss(lr):
            algorithm = ALL["fedavg"].function(lr=lr)
            state = engine.init(algorithm, params, N)
            round = engine.make_round(algorithm, TOY, N, plans.mapped)
            p = round(state, cohort, tuple(batches), jnp.ones(S), KEY)[0].server.params
            error = jnp.tanh(x @ p["w"] + p["b"][None, :]) - y
            return jnp.sum(weight[:, None] * error**2)

        both = jax.jit(jax.value_and_grad(loss))
        slope, h = both(0.2)[1], 1e-5
        differences = (both(0.2 + h)[0] - both(0.2 - h)[0]) / (2 * h)
        np.testing.assert_allclose(slope, differences, rtol=1e-7)
        assert abs(float(slope)) > 1


# ------------------------------------------------------------------ default rates
FRAGILE = ("scaffold_vr", "stem", "fedadagrad")  # of clients, of both, of the server


@functools.cache
def images() -> tuple[Any, Any, Any]:
    """A task of LeNet on enlarged digits, and clients by Dirichlet(0.1)."""
    small, grow = data.load("digits"), np.ones((1, 3, 3, 1), np.float32)
    border = ((0, 0), (2, 2), (2, 2), (0, 0))
    larger = lambda x: np.pad(np.kron(np.asarray(x), grow), border, mode="edge")
    digits = small._replace(x_train=larger(small.x_train), x_test=larger(small.x_test))
    parts = partition.dirichlet(digits.y_train, 16, alpha=0.1, key=jax.random.key(0))
    return classification(models.LeNet(10), digits), digits, parts


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAGILE)
def test_default_rates_train_lenet_on_clients_that_differ(name):
    """Of methods that ten times their rate makes diverge there."""
    algorithm = ALL[name].function()
    cohort = 16 if algorithm.full_participation else 8
    sizes = {"cohort": cohort, "local_steps": 5, "batch_size": 8}
    simulation = federate(algorithm, *images(), **sizes)
    state = simulation.init(jax.random.key(0))
    begin = simulation.evaluate(state)["train_loss"]
    state, metrics = simulation.train_rounds(state, 20)
    assert not np.asarray(metrics.lost).any()
    assert simulation.evaluate(state)["train_loss"] < begin / 1.5
