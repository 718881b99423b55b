"""Literal transcriptions of the samplers, example by example, and of their streams.

Random numbers come from `jax.random`, since the documented streams say which. Every
other line is a loop over examples. Samplers are called as

    sampler(key, size, steps, batch_size, max_client_size, index)

where `index` is the iteration, and return a list of K batches, each a list of positions
among the client's examples, with -1 for padding.
"""

import itertools

import jax
import numpy as np


def shuffled_epochs(key, size, steps, batch_size, max_client_size, index):
    """Consecutive batches of one epoch after the other."""
    first_key, rest_key = jax.random.split(key)
    count = steps * batch_size
    if size >= count:  # one epoch is enough: the examples of the largest numbers
        bits = numbers(jax.random.bits, first_key, max_client_size) >> 2
        epochs = sorted(range(size), key=lambda position: -int(bits[position]))
    else:
        bits = numbers(jax.random.bits, rest_key, count + min(count, max_client_size))
        epochs = []
        while len(epochs) < count:
            begin = len(epochs)
            epochs += sorted(range(size), key=lambda place: bits[begin + place])
    return cut(epochs[:count], steps, batch_size)


def with_replacement(key, size, steps, batch_size, max_client_size, index):
    """One uniform number for every place in every batch."""
    drawn = jax.random.randint(key, (steps, batch_size), 0, size)
    return np.asarray(drawn).tolist()


def full_batch(key, size, steps, batch_size, max_client_size, index):
    """All examples, in order."""
    return [pad(range(size), max_client_size) for _ in range(steps)]


def poisson(longest_batch):
    """One coin for every example and batch; of too many, those of the largest marks."""

    def sampler(key, size, steps, batch_size, max_client_size, index):
        chance = min(np.float32(batch_size) / np.float32(size), np.float32(1))
        batches = []
        for step_key in jax.random.split(key, steps):
            coins_key, marks_key = jax.random.split(step_key)
            coins = numbers(jax.random.uniform, coins_key, max_client_size)
            marks = marks_of(marks_key, max_client_size)
            joined = [place for place in range(size) if coins[place] < chance]
            joined = sorted(joined, key=lambda place: -marks[place])
            length = min(longest_batch, max_client_size)
            batches.append(pad(joined[:length], length))
        return batches

    return sampler


def without_replacement(key, size, steps, batch_size, max_client_size, index):
    """The examples of the largest marks, which every batch draws anew."""
    batches = []
    for step_key in jax.random.split(key, steps):
        marks = marks_of(step_key, max_client_size)
        order = sorted(range(size), key=lambda place: -marks[place])
        length = min(batch_size, max_client_size)
        batches.append(pad(order[:length], length))
    return batches


def cyclic(key, size, steps, batch_size, max_client_size, index):
    """Fixed batches in turn, over all iterations and steps."""
    places = range(size // batch_size * batch_size)
    whole = np.reshape(places, (-1, batch_size)).tolist()
    turns = itertools.islice(itertools.cycle(whole), index * steps, None)
    return list(itertools.islice(turns, steps))


def cyclic_poisson(longest_batch, cycle):
    """Poisson batches of one group after the other."""
    one = poisson(longest_batch)

    def sampler(key, size, steps, batch_size, max_client_size, index):
        groups = np.arange(size // cycle * cycle).reshape(cycle, -1).tolist()
        length = len(groups[0])
        batches = one(key, length, steps, batch_size, max_client_size, index)
        turns = itertools.islice(itertools.cycle(groups), index * steps, None)
        return [
            [-1 if place < 0 else group[place] for place in batch]
            for batch, group in zip(batches, turns, strict=False)
        ]

    return sampler


def numbers(draw, key, count):
    return np.asarray(draw(key, (count,)))


def marks_of(key, count):
    """Marks by which the first are chosen."""
    return np.asarray(jax.random.uniform(key, (count,), minval=0.5))


def pad(positions, length):
    return [*positions, *[-1] * (length - len(positions))]


def cut(positions, steps, batch_size):
    return [positions[k * batch_size : (k + 1) * batch_size] for k in range(steps)]


# The streams.


def fold(key, *numbers):
    """A key that several numbers are folded into, one after the other."""
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return key


def round_keys(key, index):
    """Keys of messages and of batches in a round: stream 0 of a federated run."""
    return jax.random.split(fold(key, 0, index))


def draw_key(key, index, prologue, client):
    """Key of a client's batches, which all exchanges share.

    Those before round 0 have `prologue` 0; later ones the number of exchanges that were
    before round 0.
    """
    return fold(round_keys(key, index)[1], prologue, client)


def step_keys(key, index, exchange, client, steps):
    """Keys of a client's local steps; exchanges are numbered from the prologue's on."""
    return jax.random.split(fold(round_keys(key, index)[0], exchange, client), steps)


def fixed_cohort(key, index, clients, size):
    """Clients of a round: stream 1."""
    everyone, stream = np.arange(clients, dtype=np.int32), fold(key, 1, index)
    drawn = jax.random.choice(stream, everyone, (size,), replace=False)
    return np.asarray(drawn).tolist()


def poisson_cohort(key, index, clients, size):
    """Clients whose coin says so, those of the largest marks first: stream 1."""
    coins_key, marks_key = jax.random.split(fold(key, 1, index))
    coins = numbers(jax.random.uniform, coins_key, clients)
    marks = numbers(jax.random.uniform, marks_key, clients)
    joined = [client for client in range(clients) if coins[client] < size / clients]
    return sorted(joined, key=lambda client: -marks[client])


def answers(key, index, places, dropout):
    """Whether the member in each place of a cohort answers: stream 2."""
    drawn = jax.random.bernoulli(fold(key, 2, index), 1 - dropout, (places,))
    return np.asarray(drawn).tolist()


def agent_draw_key(key, index, agents, agent):
    """Key of an agent's batch: stream 0 of a decentralized run."""
    return jax.random.split(fold(key, 0, index), agents)[agent]


def agent_gradient_key(key, index, agent):
    """Key of an agent's gradients, beside that of its noise: stream 1."""
    return jax.random.split(fold(key, 1, index, agent))[0]
