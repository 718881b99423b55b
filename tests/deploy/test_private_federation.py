"""Private clients on nodes; test_decoded_messages has the bits of the simulation."""

import dataclasses

import jax
import numpy as np
import pytest
from small_federation import BATCH, CLASSES, CLIENTS, KEY, STEPS, TASK, nodes_of

from fedjax_muon.algorithms import fedavg, fedmuon
from fedjax_muon.deploy import federation, in_process, messages, serve
from fedjax_muon.deploy.node import request_shapes
from fedjax_muon.privacy import ClientPrivacy

PRIVACY = ClientPrivacy(
    clip_norm=0.5,
    cohort_size=2,
    rounds=4,
    delta=1e-2,
    noise_multiplier=1.0,
    insecure_fixed_noise=True,
)
SECRET = dataclasses.replace(PRIVACY, insecure_fixed_noise=False)
SIZES = {"local_steps": STEPS, "batch_size": BATCH}


def shared_of(algorithm, privacy, **given):
    sizes = {"num_clients": CLIENTS, "max_client_size": 32, "classes": CLASSES}
    return federation(algorithm, TASK, **sizes, **SIZES, privacy=privacy, **given)


def started(shared, rounds=3, key=KEY, **given):
    return serve(shared, in_process(nodes_of(shared)), key, rounds=rounds, **given)


def test_noise_comes_from_the_system_and_is_kept_by_a_checkpoint(tmp_path):
    shared = shared_of(fedavg(lr=0.3), SECRET)
    first = started(shared, 1, directory=tmp_path)
    other = started(shared, 1)
    differ = lambda a, b: not np.array_equal(a, b)
    assert differ(*map(jax.random.key_data, (first.state.key, other.state.key)))
    assert differ(*(jax.tree.leaves(p.params)[-1] for p in (first, other)))
    again = started(shared, 2, directory=tmp_path)
    assert again.run == first.run
    np.testing.assert_array_equal(
        *map(jax.random.key_data, (first.state.key, again.state.key))
    )


@pytest.mark.slow
def test_nodes_are_not_told_how_many_take_part():
    shared, told = shared_of(fedmuon(lr=0.1), SECRET), set()
    nodes = in_process(nodes_of(shared))

    def send(requests, deadline):
        for request in requests.values():
            asked = messages.read(request)
            shapes = request_shapes(shared, asked.about["exchange"])
            if asked.about["base"] < 0:
                shapes["params"] = jax.eval_shape(TASK.init, KEY)
            values = messages.unpack(asked.arrays, shapes)
            told.add((asked.about["exchange"], float(values["present"])))
        return nodes(requests, deadline)

    serve(shared, send, KEY, rounds=4)
    assert told == {(0, CLIENTS), (1, PRIVACY.cohort_size)}


@pytest.mark.slow
def test_a_client_that_does_not_answer_counts_as_zero():
    """The mean is still a sum over the expected number of clients."""
    shared = shared_of(fedavg(lr=0.3), dataclasses.replace(PRIVACY, cohort_size=4))
    nodes = in_process(nodes_of(shared))
    silent = lambda requests, deadline: nodes(
        {client: r for client, r in requests.items() if client}, deadline
    )
    zero = lambda requests, deadline: (
        (client, emptied(answer) if client == 0 else answer)
        for client, answer in nodes(requests, deadline)
    )
    here = serve(shared, silent, KEY, rounds=1)
    there = serve(shared, zero, KEY, rounds=1)
    for a, b in zip(*(jax.tree.leaves(p.params) for p in (here, there)), strict=True):
        np.testing.assert_array_equal(a, b)


def emptied(answer):
    message = messages.read(answer)
    arrays = [np.zeros_like(array) for array in message.arrays]
    return messages.write(messages.Message(message.about, arrays))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cohort_size": 2}, "privacy decides cohort_size; leave it out"),
        ({"privacy": None}, "give cohort_size, or privacy, which decides it"),
    ],
)
def test_sizes_are_decided_once(change, said):
    given = {"privacy": SECRET} | change
    with pytest.raises((TypeError, ValueError), match=said):
        shared_of(fedavg(lr=0.3), **given)


def test_no_more_rounds_than_the_guarantee_covers():
    shared = shared_of(fedavg(lr=0.3), SECRET)
    with pytest.raises(ValueError, match="the noise is for 4 rounds, got 0 completed"):
        started(shared, 5)
