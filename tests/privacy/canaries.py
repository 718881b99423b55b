"""Worlds of a private simulation with and without a canary, and what is seen of them.

The programs of a simulation run in thousands of worlds, with the record that is
attacked, the canary, and with a record without a gradient in its place. Nothing is
drawn, clipped or noised here, so that a mistake in the simulation is one of the worlds
too. The gradient of the canary has a direction of its own, is far longer than any clip
norm, and has a sign that may depend on the iteration, since a public gradient moves one
of the parameters by the same amount in every iteration. Other records have a second
direction, which tells how many of them are in a batch.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core.pair import Pair
from fedjax_muon.data import Dataset
from fedjax_muon.privacy.guarantees import PrivacySpec
from fedjax_muon.privacy.sampling import Poisson
from fedjax_muon.simulation.simulation import Simulation, fresh_key
from fedjax_muon.tasks.task import Batch, Task

CHUNK = 4000  # worlds that run together
LENGTH = 1e3  # of the canary's gradient; far above every clip norm
SHORT = 1e-2  # of it, the length of other gradients: above clip norms, but the canary's
# dominates a mean
OVERFLOW = 1e38  # its gradient is infinite, and a client with it counts as absent
TICK = 1e4  # by which the clock moves in every iteration
ROOT = math.sqrt(0.5)
# the parameters are (x0, x1, x2, y0, y1, y2), and y2 is the clock
CANARY = np.array([ROOT, 0, 0, -ROOT, 0, 0])
OTHERS = np.array([0.0, 1, 0, 0, 0, 0])
FREE = np.array([[ROOT, 0, 0, ROOT, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0]])


def canary_task(lr: float, period: int | None = None) -> Task:
    """Makes a task whose gradients are written in its examples.

    Example (a, b) has the gradient a LENGTH along the canary's direction and b LENGTH
    along that of the others, times a sign that may depend on the iteration: plus where
    t is a multiple of `period`, and minus elsewhere.
    """

    def sign(params: Pair) -> jax.Array | float:
        if period is None:
            return 1.0
        time = jnp.round(-params.y[2] / TICK).astype(jnp.int32)
        return jnp.where(time % period == 0, 1.0, -1.0)

    def example_grad(params: Pair, batch: Batch, key: jax.Array) -> Pair:
        del key
        directions = jnp.asarray(np.stack([CANARY, OTHERS]), jnp.float32)
        rows = LENGTH * sign(params) * (batch.x @ directions) * batch.weight[:, None]
        return Pair(rows[:, :3], rows[:, 3:])

    def grad(params: Pair, batch: Batch, key: jax.Array) -> Pair:
        total = jnp.maximum(batch.weight.sum(), 1)
        rows = example_grad(params, batch, key)
        return jax.tree.map(lambda x: x.sum(0) / total, rows)

    def clock(params: Pair) -> Pair:
        return Pair(jnp.zeros_like(params.x), params.y * 0 + _last(TICK / lr))

    zeros = jnp.zeros(3, jnp.float32)
    return Task(
        init=lambda key: Pair(zeros, zeros),
        grad=grad,
        evaluate=lambda params, x, y: {"loss": jnp.zeros(len(x))},
        example_grad=example_grad,
        public_grad=None if period is None else clock,
        metrics={},
    )


def _last(value: float) -> jax.Array:
    return jnp.array([0.0, 0.0, value], jnp.float32)


def canary_data(
    sizes: Sequence[int], owner: int, *, together: bool = False, alone: bool = False
) -> tuple[Dataset, list[np.ndarray]]:
    """The examples of all agents or clients, and the ids of everyone's.

    The canary is the owner's first. If `together`, all of the owner's are, so that the
    owner is the record; `alone`, the gradients of all others are infinite.
    """
    ends = np.cumsum([0, *sizes])
    x = np.tile(np.array([0, OVERFLOW if alone else SHORT], np.float32), (ends[-1], 1))
    start = ends[owner]
    x[start : ends[owner + 1] if together else start + 1] = [1, 0]
    labels = np.arange(ends[-1], dtype=np.int32) % 2
    parts = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    return Dataset(x, labels, x[:2], labels[:2], ("0", "1")), parts


class Releases(NamedTuple):
    """What an attack sees in N worlds, in claimed standard deviations of the noise."""

    signal: np.ndarray  # [N, T], of the canary's owner in the canary's direction
    # [N, T], likewise in the direction of other records; [N, 0] if their parts overlap
    others: np.ndarray
    white: np.ndarray  # [N, d], everything that is noise alone without the canary


class Record(NamedTuple):
    """What the claim says of the canary."""

    spec: PrivacySpec
    pattern: np.ndarray  # [T], what it adds to `signal` when it takes part
    # among which its batches are drawn: of its owner, or of its group of them; of all
    # clients, if a client is the record
    examples: int
    phases: np.ndarray | None = None  # [phases, T], patterns of every place in a cycle


@dataclasses.dataclass(frozen=True)
class Worlds:
    """A simulation that is run many times, with and without the canary."""

    simulation: Simulation
    record: Record
    seen: Callable[[np.ndarray], Releases]  # of what `observe` returned
    program: Callable[..., Any]  # (data, run, keys, run keys) -> observations
    absent: float = 0.0  # factor of the canary in worlds without it

    def run(self, keys: jax.Array, *, present: bool) -> Releases:
        """Runs one world for each key."""
        data, run = self.simulation.data, self.simulation.run
        if not present:
            data = data._replace(x=data.x.at[:, 0].multiply(self.absent))
        observations = []
        for i in range(0, len(keys), CHUNK):
            some = keys[i : i + CHUNK]
            secret = run_keys(self.simulation, len(some))
            # all chunks have the same size, for one compilation
            rows = np.arange(min(CHUNK, _room(len(keys)))) % len(some)
            both = some[rows], None if secret is None else secret[rows]
            out = self.program(data, run, *both)
            observations.append(np.asarray(out, np.float64)[: len(some)])
        return self.seen(np.concatenate(observations))

    def run_both(self, seed: int, count: int) -> tuple[Releases, Releases]:
        """Runs `count` worlds without and with the canary, with different keys."""
        keys = jax.random.split(jax.random.key(seed), 2 * count)
        return (
            self.run(keys[:count], present=False),
            self.run(keys[count:], present=True),
        )


def _room(count: int) -> int:
    """A size of chunks that different numbers of worlds share."""
    return 1 << (count - 1).bit_length()


def run_keys(simulation: Simulation, count: int) -> jax.Array | None:
    """Draws the run keys of some worlds, as a private simulation draws them."""
    drawn = [fresh_key(simulation.guarantee) for _ in range(count)]
    keys = [key for key in drawn if key is not None]
    return jnp.stack(keys) if keys else None


def world_program(
    simulation: Simulation, observe: Callable[[Any], jax.Array]
) -> Callable[..., Any]:
    """Compiles a run of all rounds of a guarantee, for many worlds at once."""
    program = simulation.program
    assert simulation.guarantee is not None  # it is private
    rounds = simulation.guarantee.rounds

    def one(data: Any, run: Any, key: jax.Array, run_key: Any) -> jax.Array:
        created = program.create(data, run, key, run_key)
        state, _ = program.begin(data, run, created)

        def body(state: Any, _: Any) -> tuple[Any, jax.Array]:
            state, _ = program.rounds(data, run, state, 1)
            return state, observe(state)

        _, later = jax.lax.scan(body, state, length=rounds)
        return jnp.concatenate([observe(state)[None], later])

    def many(data: Any, run: Any, keys: jax.Array, run_keys: Any) -> jax.Array:
        axes = (None, None, 0, None if run_keys is None else 0)
        return jax.vmap(one, in_axes=axes)(data, run, keys, run_keys)

    return jax.jit(many)


def flat(values: Any, lead: int) -> jax.Array:
    """Puts the leaves of a pytree in a row: [m, d], or [d] without a leading axis."""
    leaves = [x.reshape((*x.shape[:lead], -1)) for x in jax.tree.leaves(values)]
    return jnp.concatenate(leaves, -1)


def participation(record: Record, steps: int) -> float:
    """Returns the claimed probability that the canary takes part in a step."""
    sampling = record.spec.sampling
    full = steps == 1 and sampling.first_batch is not None
    if full or not isinstance(sampling, Poisson):
        return 1.0
    return sampling.batch / record.examples


def chunks(releases: Releases, size: int) -> Iterator[Releases]:
    """Divides N worlds into N // size independent audits."""
    for i in range(0, len(releases.signal) - size + 1, size):
        yield Releases(*(values[i : i + size] for values in releases))
