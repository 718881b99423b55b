"""Gradients against NumPy and finite differences, scores against scikit-learn."""

import dataclasses
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from sklearn.metrics import accuracy_score, log_loss, matthews_corrcoef

import fedjax_muon as fm
from fedjax_muon import models, problems, simulation, tasks
from fedjax_muon.algorithms import stem
from fedjax_muon.data import Dataset
from fedjax_muon.simulation import evaluation
from fedjax_muon.tasks import classification
from fedjax_muon.tasks.augmentation import augmented, crop_and_flip, draw as draw_crops
from fedjax_muon.tasks.classification import logits_of
from tests.support.federation import Dropping

KEY = jax.random.key(0)


def draw(shape_of_example, classes, size=6):
    """A batch with unequal weights, one of them zero."""
    rng = np.random.default_rng(0)
    return tasks.Batch(
        x=rng.normal(size=(size, *shape_of_example)).astype(np.float32),
        y=rng.integers(0, classes, size).astype(np.int32),
        weight=np.array([1.0, 0.5, 0.0, 2.0, 1.0, 0.25], np.float32)[:size],
    )


def small(classes=3):
    """A task, its parameters and a batch."""
    task = tasks.classification(models.MLP(features=(5,), classes=classes), (4,))
    return task, task.init(KEY), draw((4,), classes)


def softmax(z):
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return z / z.sum(axis=1, keepdims=True)


def mlp_gradient(params, batch):
    """Back-propagation by hand, float64."""
    x, weight = np.float64(batch.x).reshape(len(batch.x), -1), np.float64(batch.weight)
    w1, b1 = (np.float64(params["Dense_0"][n]) for n in ("kernel", "bias"))
    w2, b2 = (np.float64(params["head"][n]) for n in ("kernel", "bias"))
    hidden = np.maximum(x @ w1 + b1, 0)
    error = softmax(hidden @ w2 + b2) - np.eye(len(b2))[batch.y]
    error *= weight[:, None] / weight.sum()
    back = (error @ w2.T) * (hidden > 0)
    return {
        "Dense_0": {"kernel": x.T @ back, "bias": back.sum(axis=0)},
        "head": {"kernel": hidden.T @ error, "bias": error.sum(axis=0)},
    }


def test_gradient_of_an_mlp_by_hand():
    task = tasks.classification(models.MLP(features=(7,), classes=4), (3, 2))
    batch, params = draw((3, 2), 4), task.init(KEY)
    found = jax.jit(task.grad)(params, batch, KEY)
    close = partial(np.testing.assert_allclose, atol=1e-6)
    jax.tree.map(close, found, mlp_gradient(params, batch))


def test_padding_changes_nothing():
    task, params, batch = small()
    padded = tasks.Batch(
        x=np.concatenate([batch.x, 1e3 * np.ones((3, 4), np.float32)]),
        y=np.concatenate([batch.y, np.int32([2, 0, 1])]),
        weight=np.concatenate([batch.weight, np.zeros(3, np.float32)]),
    )
    grad = jax.jit(task.grad)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
    jax.tree.map(close, grad(params, padded, KEY), grad(params, batch, KEY))
    nothing = batch._replace(weight=np.zeros(6, np.float32))  # padding alone
    for leaf in jax.tree.leaves(task.grad(params, nothing, KEY)):
        np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))


def test_scores_equal_scikit_learn():
    task, params, batch = small()
    scores = task.evaluate(params, batch.x, batch.y)
    assert scores["loss"].shape == scores["correct"].shape == batch.y.shape
    assert scores["correct"].dtype == bool
    logits = models.MLP(3, (5,)).apply({"params": params}, batch.x)
    probabilities = softmax(np.float64(logits))
    assert 0 < scores["correct"].sum() < 6, "a case in which all scores are alike"
    columns = scores["loss"], scores["correct"], probabilities, batch.y
    for loss, correct, p, label in zip(*columns, strict=True):
        expected = log_loss([label], [p], labels=[0, 1, 2])
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        assert correct == accuracy_score([label], [p.argmax()])


def test_predictions_of_two_classes():
    """From what is correct, in a whole evaluation and alone."""
    task, params, batch = small(classes=2)
    task = tasks.by_matthews(task)
    scores = task.evaluate(params, batch.x, batch.y)
    logits = models.MLP(2, (5,)).apply({"params": params}, batch.x)
    np.testing.assert_array_equal(scores["predicted"], np.argmax(logits, axis=1))
    found = evaluation.measure(task, params, jnp.asarray(batch.x), jnp.asarray(batch.y))
    expected = matthews_corrcoef(batch.y, scores["predicted"])
    np.testing.assert_allclose(found["mcc"], expected, atol=1e-6)


def test_a_sweep_shows_matthews_correlation(tmp_path):
    problem = problems.classification("breast_cancer", clients=2)
    problem = dataclasses.replace(problem, task=tasks.by_matthews(problem.task))
    sizes = {"cohort": 2, "local_steps": 2, "batch_size": 4, "rounds": 2}
    how = {"validation": 0.25, "evaluate_every": 2, "directory": tmp_path / "sweep"}
    swept = fm.sweep([fm.fedavg], problem, {"lr": (0.1,)}, extend=False, **how, **sizes)
    ((rows,),) = (point.runs for point in swept["FedAvg"].points)
    for column in ("test_mcc", "validation_mcc"):
        assert np.all(np.abs(rows[column]) <= 1)
    assert "validation_mcc_mean" in (tmp_path / "sweep/points.csv").read_text()
    assert "MCC, %" in (tmp_path / "sweep/summary.md").read_text()


def test_training_starts_at_given_layers():
    """A model of other classes has a new head; weights are arguments of programs."""
    _, params, _ = small(classes=5)
    task, *_ = small(classes=3)
    start = tasks.starting_at(task, {"Dense_0": params["Dense_0"]})
    first, second = (start.init(jax.random.key(i)) for i in (1, 2))
    for one in (first, second):
        assert jax.tree.map(jnp.shape, one) == jax.tree.map(jnp.shape, task.init(KEY))
        jax.tree.map(np.testing.assert_array_equal, one["Dense_0"], params["Dense_0"])
    assert np.any(first["head"]["kernel"] != second["head"]["kernel"])
    assert len(jax.tree.leaves(start.init)) == len(jax.tree.leaves(params)) - 2
    with pytest.raises(ValueError, match="parameters must match the task's: head is"):
        tasks.starting_at(task, params)
    with pytest.raises(ValueError, match="task's: tail is not one of Dense_0, head, "):
        tasks.starting_at(task, {"tail": params["head"]})


def test_dropout_takes_the_key_of_the_gradient():
    task = tasks.classification(Dropping(3), (8,))
    params, batch = task.init(KEY), draw((8,), 3)
    grad = lambda i: task.grad(params, batch, jax.random.key(i))["Dense_0"]["kernel"]
    first, again, other = map(grad, (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert jnp.abs(first - other).max() > 0.01
    whole = batch.x @ params["Dense_0"]["kernel"]
    expected = -np.log(softmax(np.float64(whole)))[np.arange(6), batch.y]
    loss = task.evaluate(params, batch.x, batch.y)["loss"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


class Half(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, dtype=jnp.bfloat16)(x)


def test_the_loss_of_half_precision_logits_is_float32():
    task = tasks.classification(Half(), (4,))
    params, batch = task.init(KEY), draw((4,), 3)
    logits = np.float64(Half().apply({"params": params}, batch.x))
    expected = -np.log(softmax(logits))[np.arange(6), batch.y]
    loss = task.evaluate(params, batch.x, batch.y)["loss"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)  # bfloat16 has 2^-8
    grads = task.grad(params, batch, KEY)
    assert all(g.dtype == jnp.float32 for g in jax.tree.leaves(grads))


class Broken(nn.Module):
    """Whatever `output` makes of an ordinary layer."""

    output: object

    @nn.compact
    def __call__(self, x):
        return self.output(nn.Dense(4)(x))


def normalized(x):
    return nn.BatchNorm(use_running_average=False)(x)


class Counted(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.variable("other", "count", lambda: jnp.zeros(()))
        return x


def sown(x):
    return Counted()(x)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (normalized, r"and use running statistics; give its __call__ an arg"),
        (sown, r"'batch_stats' of BatchNorm, and no others, got \['other', 'params'\]"),
        (lambda x: x[0], r"map \(3, 5\) to logits \(3, classes\).* got \(4,\)"),
        (lambda x: x[:, :1], r"two or more classes, got \(3, 1\)"),
        (lambda x: (x, x), "got tuple"),
    ],
)
def test_models_that_are_no_classifiers(output, message):
    with pytest.raises(ValueError, match=message):
        tasks.classification(Broken(output), (5,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.ones(6, np.float32)}, "integers from 0, got dtype float32"),
        ({"y": np.ones((6, 1), np.int32)}, r"\[B\] = \(6,\), got \[\(6, 1\), \(6,\)\]"),
        ({"weight": np.ones(5, np.float32)}, r"got \[\(6,\), \(5,\)\]"),
    ],
)
def test_batches_that_do_not_fit(change, message):
    task, params, batch = small()
    batch = batch._replace(**change)
    with pytest.raises(ValueError, match=message):
        task.grad(params, batch, KEY)
    if "y" in change:
        with pytest.raises(ValueError, match=message.split(r", \(6,")[0]):
            task.evaluate(params, batch.x, batch.y)


RNG = np.random.default_rng(5)
IMAGES = RNG.normal(size=(12, 5, 7, 3)).astype(np.float32)
LABELS = np.arange(12, dtype=np.int32) % 3


def by_hand(key, x, padding):
    """The same draws, one pixel after the other."""
    drawn = jax.tree.map(np.asarray, draw_crops(key, len(x), padding))
    out = np.zeros_like(x)
    _, height, width, _ = x.shape
    for b, i, j in np.ndindex(x.shape[:3]):
        row = i + int(drawn.top[b]) - padding
        column = j + int(drawn.left[b]) - padding
        to = width - 1 - j if drawn.mirrored[b] else j
        if 0 <= row < height and 0 <= column < width:
            out[b, i, to] = x[b, row, column]
    return out


@pytest.mark.parametrize("padding", [0, 2])
def test_crops_and_flips_equal_those_by_hand(padding):
    changed = jax.jit(crop_and_flip(padding))(KEY, IMAGES)
    np.testing.assert_array_equal(changed, by_hand(KEY, IMAGES, padding))
    assert changed.dtype == IMAGES.dtype


def batch():
    weight = np.ones(12, np.float32)
    weight[10:] = 0  # padding
    return tasks.Batch(IMAGES, LABELS, weight)


@pytest.mark.slow
def test_the_gradient_is_of_changed_images_and_drops_by_a_key_of_its_own():
    plain = tasks.classification(Dropping(3), IMAGES.shape[1:])
    task = augmented(plain, crop_and_flip(2))
    params = plain.init(KEY)
    found = jax.jit(task.grad)(params, batch(), KEY)
    change_key, rest = jax.random.split(KEY)
    changed = batch()._replace(x=by_hand(change_key, IMAGES, 2))
    same = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
    grad = jax.jit(plain.grad)
    jax.tree.map(same, found, grad(params, changed, rest))
    other = grad(params, changed, KEY)["Dense_0"]["kernel"]
    assert np.abs(found["Dense_0"]["kernel"] - other).max() > 0.01
    assert task.init is plain.init
    assert task.evaluate is plain.evaluate


def test_arrays_that_the_task_holds_stay_arguments():
    frozen = jnp.arange(3.0)
    grad = Partial(lambda frozen, params, batch, key: frozen * params, frozen)
    task = tasks.as_argument(tasks.Task(lambda key: 1.0, grad, lambda *_: None))
    task = augmented(task, crop_and_flip())
    (leaf,) = jax.tree.leaves(task)
    assert leaf is frozen
    found = jax.jit(lambda task: task.grad(2.0, batch(), KEY))(task)
    np.testing.assert_array_equal(found, 2 * frozen)


MEAN = tasks.Task(
    init=lambda key: jnp.zeros(IMAGES.shape[1:]),
    grad=lambda params, batch, key: batch.x.mean(0),  # of a loss linear in params
    evaluate=lambda params, x, y: tasks.Scores(jnp.zeros(len(x)), x[:, 0, 0, 0] > 0),
)


@pytest.mark.slow
def test_methods_that_compare_two_points_meet_the_same_crops():
    """STEM's momentum moves by the differences of gradients at two points alone if all
    weight is given to the past. All gradients of a linear loss are equal, but for what
    is cropped."""
    dataset = Dataset(IMAGES, LABELS, IMAGES, LABELS, ("a", "b", "c"))
    parts = np.split(np.arange(12), 3)
    sizes = {"cohort": 3, "local_steps": 2, "batch_size": 4}
    task = augmented(MEAN, crop_and_flip(2))
    algorithm = stem(momentum=1.0)
    simulated = simulation.federate(algorithm, task, dataset, parts, **sizes)
    state = simulated.init(KEY)
    before = np.array(state.training.server.momentum)
    state, _ = simulated.train_rounds(state, 3)
    after = np.array(state.training.server.momentum)
    np.testing.assert_allclose(after, before, atol=1e-6)
    # batches are all of a client's examples, so that the rest is what was cropped
    assert np.abs(before - IMAGES.mean(0)).max() > 0.1


@pytest.mark.slow
def test_a_problem_takes_it():
    dataset = Dataset(IMAGES, LABELS, IMAGES, LABELS, ("a", "b", "c"))
    model = partial(problems.mlp, hidden=(4,))
    plain = tasks.classification(models.MLP(3, (4,)), IMAGES.shape[1:])
    changed = augmented(plain, crop_and_flip(4))
    params = plain.init(KEY)
    for kind, expected in ((None, plain), (crop_and_flip(), changed)):
        task = problems.classification(dataset, model=model, augment=kind).task
        found = jax.jit(task.grad)(params, batch(), KEY)
        wanted = jax.jit(expected.grad)(params, batch(), KEY)
        jax.tree.map(np.testing.assert_array_equal, found, wanted)


class Drops(nn.Module):
    """Dropout by one of the names that Flax has for it."""

    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=not train)(x))


class Deterministic(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic=True):
        return nn.Dense(3)(nn.Dropout(0.5)(x, deterministic=deterministic))


@pytest.mark.parametrize("model", [Drops(), Deterministic()])
def test_a_model_is_told_whether_it_trains(model):
    x = jnp.ones((5, 8))
    params = classification(model, (8,)).init(jax.random.key(0))
    plain = logits_of(model, params, x)
    np.testing.assert_array_equal(plain, logits_of(model, params, x))
    assert not np.array_equal(plain, logits_of(model, params, x, jax.random.key(1)))


class Always(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=False)(x))


class Undecided(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Dropout(0.5)(x))


class Masked(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        return nn.Dense(3)(x * mask)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Always(), "write nn.Dropout"),
        (Undecided(), "write nn.Dropout"),
        (Masked(), "must need x alone.*'mask'"),
    ],
)
def test_models_that_can_not_be_told_are_refused(model, said):
    with pytest.raises((TypeError, ValueError), match=said):
        classification(model, (8,))
