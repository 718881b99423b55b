"""Minimax tasks: gradients by hand in NumPy, closed forms by numerical optimisation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from fedjax_muon import minimax, simulation, tasks
from fedjax_muon.core import tree
from fedjax_muon.core.pair import Pair
from fedjax_muon.simulation.batching import (
    ExampleIndices,
    clients_of,
    full_batch,
    gradient_of_indices,
)
from fedjax_muon.simulation.evaluation import evaluate
from fedjax_muon.tasks import adversarial, agnostic, auc
from fedjax_muon.tasks.auc import Primal
from fedjax_muon.tasks.robust import agents, robust_logistic
from fedjax_muon.tasks.simplex import nearest_in_simplex, project_weights
from tests.oracles.auc import auc_grad
from tests.support.federation import Dropping, Linear, as_float64, blobs, cut, gradient

KEY = jax.random.key(0)
close = partial(np.testing.assert_allclose, atol=2e-6)
DATA = blobs()


def weights_of(task, seed=0):
    """Parameters of a linear model that are not zero."""
    params = task.init(KEY)
    rng = np.random.default_rng(seed)
    return tree.map(lambda p: jnp.float32(rng.normal(size=p.shape)), params)


def draw_batch(classes, seed=0, **more):
    rng = np.random.default_rng(seed)
    x, y = np.float32(rng.normal(size=(6, 5))), np.int32([1, 0, 0, 1, 0, 2]) % classes
    return tasks.Batch(x, y, np.float32([1, 0.5, 0, 2, 1, 0.25]), **more)


def assert_close_layers(found, expected):
    for a, b in zip(as_float64(found), expected, strict=True):
        close(a, b)


# ------------------------------------------------------------ the area under the curve

BINARY = auc(Linear(2), (5,))


def probabilities(params, x):
    w, b = as_float64(params)
    z = np.float64(x) @ w + b
    return 1 / (1 + np.exp(z[:, 0] - z[:, 1]))


def auc_params(seed=0):
    params = weights_of(BINARY, seed)
    dual = Primal(params.x.model, jnp.float32(0.7), jnp.float32(0.2))
    return Pair(dual, jnp.float32(-0.4))


def auc_by_hand(params, batch, share):
    """The oracle's gradient, and from its scores on by the chain rule."""
    h = probabilities(params.x.model, batch.x)
    at = [float(params.x.w1), float(params.x.w2), float(params.y), share]
    hand = auc_grad(h, batch.y == 1, np.float64(batch.weight), *at)
    logit = hand.h * h * (1 - h)
    logits = np.stack([-logit, logit], axis=1)
    return hand, [np.float64(batch.x).T @ logits, logits.sum(0)]


@pytest.mark.parametrize("given", [True, False])
def test_auc_gradient_by_hand(given):
    batch, params = draw_batch(2), auc_params()
    if given:
        task = auc(Linear(2), (5,), share=0.3)
    else:
        task, batch = BINARY, batch._replace(shares=np.float32([0.7, 0.3]))
    found = jax.jit(task.grad)(params, batch, KEY)
    hand, layers = auc_by_hand(params, batch, 0.3)
    assert_close_layers(found.x.model, layers)
    close([found.x.w1, found.x.w2], [hand.w1, hand.w2])
    close(found.y, -hand.w3)  # what descends
    assert abs(hand.w3) > 0.05


def binary(data=DATA):
    """Class 0 or 1 and another one."""
    two = lambda y: (y > 0).astype(np.int32)
    return data._replace(y_train=two(data.y_train), y_test=two(data.y_test))


def shared_out(data, *parts):
    return clients_of(data.x_train, data.y_train, parts)


@pytest.mark.slow
def test_a_client_has_a_share_of_its_own():
    data, params = binary(), auc_params()
    parts = cut([9, 14])
    clients = shared_out(data, *parts)
    own = jax.jit(gradient_of_indices(clients, BINARY.grad))
    for client, part in enumerate(parts):
        ids = part[:4]  # a batch, whose share is another one
        share = data.y_train[part].mean()
        assert share != data.y_train[ids].mean()
        found = own(params, ExampleIndices(jnp.array(ids), jnp.int32(client)), KEY)
        batch = tasks.Batch(data.x_train[ids], data.y_train[ids], np.ones(4))
        hand, layers = auc_by_hand(params, batch, share)
        assert_close_layers(found.x.model, layers)
        close([found.x.w1, found.x.w2, found.y], [hand.w1, hand.w2, -hand.w3])


@pytest.mark.slow
def test_a_client_of_one_class_has_no_gradient():
    data = binary()
    parts = [np.flatnonzero(data.y_train == label)[:5] for label in (0, 1)]
    own = jax.jit(gradient_of_indices(shared_out(data, *parts), BINARY.grad))
    for client, part in enumerate(parts):
        ids = ExampleIndices(jnp.array(part), jnp.int32(client))
        found = own(auc_params(), ids, KEY)
        assert all(not np.any(leaf) for leaf in jax.tree.leaves(found))


def test_padding_does_not_count():
    data, params = binary(), auc_params()
    own = jax.jit(gradient_of_indices(shared_out(data, np.arange(8)), BINARY.grad))
    rows = lambda ids: ExampleIndices(jnp.int32(ids), jnp.int32(0))
    found = own(params, rows([0, 3, -1, 5, -1]), KEY)
    jax.tree.map(close, found, own(params, rows([0, 3, 5]), KEY))
    found = own(params, rows([-1, -1, -1]), KEY)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(found))


@pytest.mark.slow
def test_auc_is_evaluated():
    data, params = binary(), auc_params(seed=3)
    parts = cut([30, 20])
    test, owned = (data.x_test, data.y_test), np.concatenate(parts)
    run = jax.jit(partial(evaluate, BINARY))
    found = run(params, shared_out(data, *parts), test)
    train = data.x_train[owned], data.y_train[owned]
    for part, (x, y) in (("train", train), ("test", test)):
        h = probabilities(params.x.model, x)
        close(found[f"{part}_auc"], roc_auc_score(y, h))
        close(found[f"{part}_loss"], log_loss(y, h), rtol=1e-5)
        close(found[f"{part}_accuracy"], accuracy_score(y, h > 0.5))


def test_auc_refuses_batches_without_shares():
    params = auc_params()
    with pytest.raises(ValueError, match=r"shares of two classes.*got None"):
        BINARY.grad(params, draw_batch(2), KEY)
    three = draw_batch(2, shares=np.float32([0.2, 0.3, 0.5]))
    for task in (BINARY, auc(Linear(2), (5,), share=0.3)):
        with pytest.raises(ValueError, match=r"shares of two classes.*got \(3,\)"):
            task.grad(params, three, KEY)


# --------------------------------------------------- the worst mixture of clients

COUNT, STRENGTH = 4, 0.3
MIXED = agnostic(Linear(3), (5,), COUNT, strength=STRENGTH)
SIMPLEX = np.array([0.1, 0.4, 0.2, 0.3])


def loss_by_hand(model, x, y):
    w, b = as_float64(model)
    z = np.float64(x) @ w + b
    return np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y])


def test_agnostic_gradient_by_hand_and_its_mean_over_clients():
    parts = cut([7, 5, 6, 8])
    clients = shared_out(DATA, *parts)
    grad = jax.jit(gradient_of_indices(clients, MIXED.grad))
    params = weights_of(MIXED)._replace(y=jnp.float32(SIMPLEX))
    model = as_float64(params.x)
    found, layers, losses = [], [], []
    for i, part in enumerate(parts):
        x, y = np.float64(DATA.x_train[part]), DATA.y_train[part]
        layers.append(gradient(model, x, y))
        losses.append(loss_by_hand(params.x, x, y))
        found.append(grad(params, ExampleIndices(jnp.array(part), jnp.int32(i)), KEY))
        mine = COUNT * SIMPLEX[i]
        assert_close_layers(found[i].x, [mine * layer for layer in layers[i]])
        ascent = COUNT * losses[i] * np.eye(COUNT)[i] - STRENGTH * (SIMPLEX - 0.25)
        close(-found[i].y, ascent)
    mean = tree.map(lambda *leaves: sum(leaves) / COUNT, *found)
    mixture = [sum(SIMPLEX[i] * layers[i][j] for i in range(COUNT)) for j in (0, 1)]
    assert_close_layers(mean.x, mixture)
    close(-mean.y, np.array(losses) - STRENGTH * (SIMPLEX - 0.25))


@pytest.mark.slow
def test_weights_stay_in_the_simplex_and_go_to_the_worst_client():
    parts, data = cut([16, 16, 16, 16]), DATA
    wrong = data.y_train.copy()
    wrong[parts[2]] = np.random.default_rng(0).integers(0, 3, 16)
    data = data._replace(y_train=wrong)
    algorithm = minimax.ALL["local_sgda"].function(lr=Pair(0.1, 0.01))
    task = agnostic(Linear(3), (5,), COUNT)
    sizes = {"cohort": COUNT, "local_steps": 2, "batch_size": 1}
    run = simulation.federate(algorithm, task, data, parts, **sizes, sampler=full_batch)
    state = run.init(KEY)
    for _ in range(20):
        state, _ = run.train_round(state)
        y = np.float64(state.params.y)
        assert y.min() >= 0
        close(y.sum(), 1)
    by_hand = partial(loss_by_hand, state.params.x)
    losses = [by_hand(data.x_train[p], data.y_train[p]) for p in parts]
    assert np.argmax(losses) == np.argmax(y) == 2
    assert y[2] > 0.4


# ------------------------------------------------ one perturbation of all examples
def test_adversarial_gradient_by_hand():
    task, batch = adversarial(Linear(3), (5,), radius=0.5, strength=0.4), draw_batch(3)
    assert not np.any(task.init(KEY).y)
    params = weights_of(task)
    found = jax.jit(task.grad)(params, batch, KEY)
    w, b = as_float64(params.x)
    moved = np.float64(batch.x) + np.float64(params.y)
    p = np.exp(moved @ w + b)
    p /= p.sum(1, keepdims=True)
    error = (p - np.eye(3)[batch.y]) * batch.weight[:, None] / batch.weight.sum()
    assert_close_layers(found.x, [moved.T @ error, error.sum(0)])
    close(-found.y, (error @ w.T).sum(0) - 0.4 * np.float64(params.y))
    plain = tasks.classification(Linear(3), (5,))
    expected = plain.evaluate(params.x, np.float32(moved), batch.y)
    jax.tree.map(close, task.evaluate(params, batch.x, batch.y), expected)


@pytest.mark.slow
def test_the_perturbation_stays_in_the_ball_and_increases_the_loss():
    radius = 0.5
    task = adversarial(Linear(3), (5,), radius=radius)
    algorithm = minimax.ALL["local_sgda"].function(lr=Pair(0.0, 1.0))
    sizes = {"cohort": 2, "local_steps": 2, "batch_size": 1}
    parts = cut([20, 20])
    run = simulation.federate(algorithm, task, DATA, parts, **sizes, sampler=full_batch)
    state, owned = run.init(KEY), np.concatenate(parts)
    x, y = DATA.x_train[owned], DATA.y_train[owned]
    clean = loss_by_hand(state.params.x, x, y)
    for _ in range(10):
        state, _ = run.train_round(state)
        assert np.linalg.norm(np.float64(state.params.y)) <= radius * (1 + 1e-6)
    delta = np.float64(state.params.y)
    assert np.linalg.norm(delta) > 0.99 * radius  # it pays to go to the edge
    worst = loss_by_hand(state.params.x, x + delta, y)
    for other in np.random.default_rng(0).normal(size=(50, 5)):
        other *= radius / np.linalg.norm(other)
        assert loss_by_hand(state.params.x, x + other, y) < worst
    assert worst > clean + 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem",
    [
        partial(auc, share=0.4),
        partial(adversarial, radius=0.5),
        partial(agnostic, num_clients=2),
    ],
)
def test_gradients_hand_their_key_to_the_model(problem):
    task = problem(Dropping(2), (5,))
    params, batch = weights_of(task), draw_batch(2, client=jnp.int32(0))
    grad = jax.jit(task.grad)
    one, again, other = (grad(params, batch, jax.random.key(i)) for i in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert np.any(jax.tree.leaves(one.x)[0] != jax.tree.leaves(other.x)[0])


@pytest.mark.slow
def test_a_client_beyond_the_last_makes_agnostic_gradients_nan():
    """So that no message of it is averaged."""
    task = agnostic(Linear(3), (5,), 2)
    grads = task.grad(task.init(KEY), draw_batch(3, client=jnp.int32(7)), KEY)
    assert all(jnp.isnan(leaf).all() for leaf in jax.tree.leaves(grads.x))


# ------------------------ robust logistic regression against its formula, in float64

RNG = np.random.default_rng(0)
EXAMPLES, FEATURES, AGENTS = 12, 4, 3
A = RNG.normal(size=(EXAMPLES, FEATURES))
LABELS = RNG.integers(0, 2, EXAMPLES)
X, Y = RNG.normal(size=FEATURES), RNG.dirichlet(np.ones(EXAMPLES))
PARAMS = Pair(jnp.float32(X), jnp.float32(Y))


def example_losses(x):
    b = 2 * LABELS - 1
    return np.array([np.log1p(np.exp(-b[j] * (A[j] @ x))) for j in range(EXAMPLES)])


def objective(losses, x, y, strength=0.001, bend=10.0):
    """Equation (22), with n for its m; y weighs `losses(x)`."""
    n = len(y)
    divergence = sum((n * y_j - 1) ** 2 for y_j in y) / (2 * n**2)
    bent = sum(bend * x_i**2 / (1 + bend * x_i**2) for x_i in x)
    return y @ losses(x) - divergence + strength * bent


def differences(f, at, step=1e-6):
    """The gradient of f by central differences."""
    units = step * np.eye(len(at))
    return np.array([(f(at + u) - f(at - u)) / (2 * step) for u in units])


def check_mean(gradients, value, y):
    """The mean over agents is the gradient of value(x, y) at X and y."""
    gx, gy = (np.mean(leaves, axis=0) for leaves in zip(*gradients, strict=True))
    np.testing.assert_allclose(gx, differences(lambda x: value(x, y), X), atol=1e-5)
    # descent in both: the second is negated
    np.testing.assert_allclose(-gy, differences(lambda y: value(X, y), y), atol=1e-5)


def batch_of(ids, weight=None):
    ids = np.asarray(ids)
    weight = np.ones(len(ids)) if weight is None else np.asarray(weight)
    x, y = np.float32(A[ids]), np.int32(LABELS[ids])
    return tasks.Batch(x, y, np.float32(weight), ids=np.int32(ids))


def test_the_mean_over_agents_is_the_gradient_of_the_formula():
    task = robust_logistic(FEATURES, EXAMPLES, regularization=0.3, bend=2.0)
    parts = np.split(RNG.permutation(EXAMPLES), AGENTS)
    found = [task.grad(PARAMS, batch_of(ids), KEY) for ids in parts]
    check_mean(found, lambda x, y: objective(example_losses, x, y, 0.3, 2.0), Y)


@pytest.mark.slow
def test_weights_of_agents():
    """The formula with the agents' mean losses, of unequally many examples each."""
    cut = np.split(RNG.permutation(EXAMPLES), [2, 7])
    y = RNG.dirichlet(np.ones(AGENTS))

    mean_losses = lambda x: [np.mean(example_losses(x)[ids]) for ids in cut]
    task = robust_logistic(FEATURES, AGENTS, agents)
    params = Pair(jnp.float32(X), jnp.float32(y))
    batches = [batch_of(ids)._replace(client=jnp.int32(i)) for i, ids in enumerate(cut)]
    found = [task.grad(params, batch, KEY) for batch in batches]
    check_mean(found, partial(objective, mean_losses), y)


def test_gradients_of_examples_data_and_public_terms_make_the_whole():
    batch = batch_of([3, 1, 7, 7, 0], [1, 1, 1, 1, 0])
    task = robust_logistic(FEATURES, EXAMPLES)
    assert task.project is project_weights
    whole = task.grad(PARAMS, batch, KEY)
    public = task.public_grad(PARAMS)
    each = task.example_grad(PARAMS, batch, KEY)
    for examples, terms, all_of_it in zip(each, public, whole, strict=True):
        assert len(examples) == 5
        assert not np.any(examples[-1])  # padding
        close(examples.sum(0) / 4 + terms, all_of_it)
    assert np.count_nonzero(each.y.sum(0)) == 3  # of the examples in the batch alone
    assert np.count_nonzero(public.y) == EXAMPLES
    unpadded = task.grad(PARAMS, batch_of([3, 1, 7, 7]), KEY)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), whole, unpadded)


def test_batches_without_numbers_are_refused():
    with pytest.raises(ValueError, match="must have its client's number"):
        MIXED.grad(MIXED.init(KEY), draw_batch(3), KEY)
    for task, ids, said in (
        (robust_logistic(FEATURES, EXAMPLES), None, "its examples' numbers"),
        (robust_logistic(FEATURES, AGENTS, agents), np.int32([1]), "its agent's numb"),
    ):
        with pytest.raises(ValueError, match=f"a batch must have {said}"):
            task.grad(PARAMS, batch_of([1])._replace(ids=ids), KEY)


# ---------------------------------------------- the projection onto the simplex

CASES = {
    "normal": RNG.normal(size=500),
    "few above": RNG.normal(size=500) * 100,
    "all above": 1e-4 * RNG.normal(size=500),
    "inside": RNG.dirichlet(np.ones(500)),
    "ties": np.repeat([0.5, 0.2, -1.0], 5),
    "one": np.array([-3.0]),
    "vertex": np.eye(7)[3] * 1e4,
    "far below": RNG.normal(size=50) - 1e3,
    "within one": -np.linspace(0, 0.9, 10),  # all count at first, and not in the end
    "staircase": -np.arange(300) / 150,  # falls out of the set one after the other
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_nearest_point(name):
    y = CASES[name]
    with jax.enable_x64(True):
        found = np.asarray(nearest_in_simplex(jnp.asarray(y)))
        sorting = optax.projections.projection_simplex(jnp.asarray(y))
        np.testing.assert_allclose(found, sorting, atol=1e-12 * max(1, np.ptp(y)))
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-12)
    # what is kept is lowered by one number, and the rest would fall below zero by it
    kept = found > 0
    t = (y - found)[kept]
    np.testing.assert_allclose(t, t[0], rtol=1e-9, atol=1e-12)
    assert (y[~kept] <= t[0] + 1e-9).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_in_single_precision(name):
    y = np.float32(CASES[name])
    found = np.asarray(nearest_in_simplex(jnp.asarray(y)), np.float64)
    with jax.enable_x64(True):
        exact = optax.projections.projection_simplex(jnp.asarray(y, jnp.float64))
    np.testing.assert_allclose(found, exact, atol=3e-7 * max(1, np.abs(y).max()))
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-5)


def test_what_is_not_a_number_stays_so():
    assert np.isnan(nearest_in_simplex(jnp.array([0.2, np.nan, 0.1]))).any()
