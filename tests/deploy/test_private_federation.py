"""Private clients on nodes, and messages that the server decodes."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from small_federation import CLIENTS, KEY, TASK, described, nodes_of

from fedjax_muon.algorithms import fedavg, fedmuon
from fedjax_muon.deploy import in_process, messages, serve
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


def shared_of(algorithm, privacy, cohort_size=None):
    return described(algorithm, privacy=privacy, cohort_size=cohort_size)


def started(shared, rounds=3, key=KEY, **given):
    return serve(shared, in_process(nodes_of(shared)), key, rounds=rounds, **given)


@pytest.mark.slow
def test_private_and_quantized_messages_have_the_bits_of_the_simulation():
    """In a process of its own, without the settings of this suite: with them, XLA
    rounds a decoding differently where it is compiled together with local training.
    """
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    command = [sys.executable, str(Path(__file__).with_name("decoded_messages.py"))]
    said = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    cases = dict(line.split(maxsplit=1) for line in said.stdout.splitlines())
    # difference, missing answers
    assert cases == dict.fromkeys(("quantized", "adaptive"), "0.0 0")


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


def test_sizes_are_decided_once():
    with pytest.raises(ValueError, match="privacy decides cohort_size; leave it out"):
        shared_of(fedavg(lr=0.3), SECRET, cohort_size=2)
    with pytest.raises(TypeError, match="give cohort_size, or privacy, which decides"):
        shared_of(fedavg(lr=0.3), None)


def test_no_more_rounds_than_the_guarantee_covers():
    shared = shared_of(fedavg(lr=0.3), SECRET)
    with pytest.raises(ValueError, match="the noise is for 4 rounds, got 0 completed"):
        started(shared, 5)
