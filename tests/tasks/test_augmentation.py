"""Crops and flips against NumPy's, and what they must leave alone."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from fedjax_muon import models, simulation, tasks
from fedjax_muon.algorithms import stem
from fedjax_muon.data import Dataset
from fedjax_muon.runs.build import simulation_of
from fedjax_muon.runs.config import Config, Run
from fedjax_muon.tasks.augmentation import augmented, crop_and_flip, draw

KEY = jax.random.key(0)
RNG = np.random.default_rng(5)
IMAGES = RNG.normal(size=(12, 5, 7, 3)).astype(np.float32)
LABELS = np.arange(12, dtype=np.int32) % 3


def by_hand(key, x, padding):
    """The same draws, one pixel after the other."""
    drawn = jax.tree.map(np.asarray, draw(key, len(x), padding))
    out = np.zeros_like(x)
    count, height, width, _ = x.shape
    for b in range(count):
        for i in range(height):
            for j in range(width):
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


@pytest.mark.slow
def test_all_places_are_equally_likely():
    count, places = 20_000, 9 * 9
    drawn = draw(KEY, count, 4)
    for values in (drawn.top, drawn.left):
        assert (int(values.min()), int(values.max())) == (0, 8)
    cells = np.bincount(9 * drawn.top + drawn.left, minlength=places)
    # The statistic has mean 80 and deviation sqrt(160); 5 of these.
    expected = count / places
    assert abs(np.sum((cells - expected) ** 2) / expected - 80) < 5 * np.sqrt(160)
    share = np.mean(drawn.mirrored)
    assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(count)
    # and flips do not depend on places
    beside = np.mean(drawn.top[drawn.mirrored])
    assert abs(beside - 4) < 5 * np.std(np.arange(9)) / np.sqrt(count / 2)


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dropout(0.5, deterministic=not self.has_rng("dropout"))(x)
        return nn.Dense(3)(x.reshape(len(x), -1))


def batch():
    weight = np.ones(12, np.float32)
    weight[10:] = 0  # padding
    return tasks.Batch(IMAGES, LABELS, weight)


@pytest.mark.slow
def test_the_gradient_is_of_changed_images_and_drops_by_a_key_of_its_own():
    plain = tasks.classification(Dropping(), IMAGES.shape[1:])
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


def test_gradients_of_examples_are_of_the_same_changed_images():
    each = lambda params, batch, key: batch.x * batch.weight[:, None, None, None]
    task = augmented(MEAN._replace(example_grad=each), crop_and_flip(2))
    change_key, _ = jax.random.split(KEY)
    changed = by_hand(change_key, IMAGES, 2)
    weighted = changed * batch().weight[:, None, None, None]
    np.testing.assert_array_equal(task.example_grad(None, batch(), KEY), weighted)
    found = jax.jit(task.grad)(None, batch(), KEY)
    np.testing.assert_allclose(found, changed.mean(0), atol=1e-6)
    assert augmented(MEAN, crop_and_flip(2)).example_grad is None


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
    sizes = {"cohort_size": 3, "local_steps": 2, "batch_size": 4}
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


def test_every_client_and_step_has_crops_of_its_own():
    task = augmented(MEAN, crop_and_flip(2))
    keys = jax.random.split(KEY, 4)
    found = jax.jit(jax.vmap(lambda key: task.grad(None, batch(), key)))(keys)
    assert len(np.unique(np.asarray(found).reshape(4, -1), axis=0)) == 4


@pytest.mark.parametrize("padding", [-1, 1.5, "4"])
def test_paddings_that_are_refused(padding):
    with pytest.raises(ValueError, match=f"an integer of at least 0, got {padding!r}"):
        crop_and_flip(padding)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 4, 4)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(ValueError, match=r"\[B, H, W, C\] can be cropped, got exam"):
        crop_and_flip()(KEY, np.zeros(shape, np.float32))


@pytest.mark.slow
def test_the_config_names_it():
    dataset = Dataset(IMAGES, LABELS, IMAGES, LABELS, ("a", "b", "c"))
    sizes = {"num_clients": 3, "cohort_size": 2, "partition": "iid", "hidden": (4,)}
    plain = tasks.classification(models.MLP(3, (4,)), IMAGES.shape[1:])
    changed = augmented(plain, crop_and_flip(4))
    params, grads = plain.init(KEY), {}
    for kind in ("none", "crop_and_flip"):
        config = Config(augmentation=kind, **sizes)
        task = simulation_of(Run("fedavg", {}, 0, config), dataset).setup.task
        grads[kind] = jax.jit(task.grad)(params, batch(), KEY)
    expected = {
        "none": jax.jit(plain.grad)(params, batch(), KEY),
        "crop_and_flip": jax.jit(changed.grad)(params, batch(), KEY),
    }
    jax.tree.map(np.testing.assert_array_equal, grads, expected)


@pytest.mark.parametrize(
    ("x", "model"), [(np.zeros((12, 4), np.float32), "mlp"), (LABELS[:, None], "rnn")]
)
def test_the_config_is_refused_for_other_data(x, model):
    dataset = Dataset(x, LABELS, x, LABELS, ("a", "b", "c"), tokens=3)
    config = Config(augmentation="crop_and_flip", model=model, dataset="mine")
    message = (
        r"crop_and_flip does not fit mine: images \[B, H, W, C\].*got examples \(1,"
    )
    with pytest.raises(ValueError, match=message):
        simulation_of(Run("fedavg", {}, 0, config), dataset)
