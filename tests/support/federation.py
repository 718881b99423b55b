"""A small federation to simulate, and what its random keys say is drawn when."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon import simulation, tasks
from fedjax_muon.algorithms import fedavg
from fedjax_muon.data import Dataset
from fedjax_muon.simulation.batching import draw_rows
from fedjax_muon.simulation.sweeps import Cell

NAMES = ("Dense_0", "kernel"), ("Dense_0", "bias")


class Linear(nn.Module):
    """Softmax regression."""

    classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(x.reshape(len(x), -1))


class Dropping(nn.Module):
    """Half of all inputs are dropped where there is a key."""

    classes: int

    @nn.compact
    def __call__(self, x):
        x = nn.Dropout(0.5, deterministic=not self.has_rng("dropout"))(x)
        return nn.Dense(self.classes, use_bias=False)(x.reshape(len(x), -1))


def blobs(count=80, seed=0) -> Dataset:
    """Three classes of five features: `count` examples to train on, 20 to test on."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count + 20).astype(np.int32)
    x = (rng.normal(size=(3, 5))[y] + rng.normal(size=(count + 20, 5))).astype("f4")
    return Dataset(x[:count], y[:count], x[count:], y[count:], ("a", "b", "c"))


def cut(sizes, seed=1):
    """Parts of these sizes, of as many shuffled examples as they need."""
    order = np.random.default_rng(seed).permutation(sum(sizes)).astype(np.int32)
    return np.split(order, np.cumsum(sizes)[:-1])


DATA, TASK = blobs(), tasks.classification(Linear(3), (5,))
SIZES = [3, 20, 9, 6, 25, 12]
PARTS = cut(SIZES)
SGD = fedavg(lr=0.3)


def federation(algorithm=SGD, parts=PARTS, data=DATA, task=TASK, **changes):
    """Six clients with 3 to 25 examples, three of them a round, two batches of four."""
    sizes = {"cohort": 3, "local_steps": 2, "batch_size": 4}
    return simulation.federate(algorithm, task, data, parts, **sizes | changes)


def cell(lr, seed) -> Cell:
    """A cell of a sweep; every seed has its own clients."""
    parts = cut(np.roll(SIZES, seed), seed)
    return Cell({"lr": lr}, jax.random.key(seed), parts)


def key_data(x):
    """A typed key as numbers, anything else as it is."""
    is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def assert_same_bits(one, other):
    """Structure, dtypes and every bit of every leaf agree."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert key_data(a).tobytes() == key_data(b).tobytes()


# Streams of the key in `rounds.State`: 0 the engine, 1 cohorts, 2 dropouts; of the
# engine's key in one round, the second half draws batches, by exchange and client.


def cohort(prepared, key, index):
    """The clients of round `index`."""
    setup, stream = prepared.settings, jax.random.fold_in(key, 1)
    everyone = jnp.arange(setup.num_clients, dtype=jnp.int32)
    stream, size = jax.random.fold_in(stream, index), (setup.cohort.size,)
    return np.asarray(jax.random.choice(stream, everyone, size, replace=False))


def rows(prepared, key, index, ids, steps=None, prologue=0):
    """The examples of `ids` in round `index`, [S, K, B]; -1 is padding."""
    setup, clients = prepared.settings, prepared.clients
    if steps is None:
        steps = setup.work.bound(clients.max_size, setup.batch_size)
    draw = draw_rows(clients, setup.sampler, steps, setup.batch_size)
    stream = jax.random.fold_in(jax.random.fold_in(key, 0), index)
    stream = jax.random.fold_in(jax.random.split(stream)[1], prologue)
    each = lambda client: draw(client, jax.random.fold_in(stream, client))
    return np.asarray(jax.vmap(each)(jnp.asarray(ids)).ids)


def gradient(params, x, y):
    """Of the mean cross-entropy of softmax(x W + b), by hand in float64."""
    w, b = params
    logits = x @ w + b
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    error = (p - np.eye(len(b))[y]) / len(x)
    return [x.T @ error, error.sum(0)]


def as_float64(params):
    """W and b."""
    return [np.asarray(params[one][other], np.float64) for one, other in NAMES]


def trained(prepared, seed, rounds):
    return prepared.train_rounds(prepared.init(jax.random.key(seed)), rounds)[0]


def assert_close(one, other):
    """As far as the order of float32 sums may differ."""
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
