"""Deployed algorithms have the numbers of simulated ones, to the bit."""

import jax
import numpy as np
import pytest
from cases import slow_but
from small_federation import (
    assert_same,
    deployed,
    described,
    nodes_of,
    simulated,
    simulation_of,
)

from fedjax_muon.algorithms import ALL, fedavg, fedmuon_correct
from fedjax_muon.compression import compressors
from fedjax_muon.compression.compress import compress
from fedjax_muon.core import tree
from fedjax_muon.deploy import in_process, messages, serve
from fedjax_muon.simulation.participation import by_examples

# One of each form; `all_methods.py` compares all of them.
FORMS = (
    "fedavg",
    "fedadam",  # a state of the server
    "scaffold",  # states of clients
    "scaffold_vr",  # several exchanges
    "fedmuon",  # a prologue
    "fedmuon_align",
    "fedmuon_svd",  # messages that are decoded
    "fedmuon_correct",
    "muloco",
    "padamfed_vr",
    "stem",  # full participation
)


@pytest.mark.parametrize("name", slow_but(("fedmuon_svd", "fedmuon_correct"), FORMS))
def test_a_deployed_method_equals_the_simulated_one(name):
    algorithm = ALL[name].function()
    state = simulated(algorithm)
    ended, missing = deployed(algorithm)
    assert not missing
    assert_same(state, ended)
    start = simulated(algorithm, rounds=0)
    moved = jax.tree.map(lambda a, b: abs(a - b).max(), start.params, ended.params)
    assert max(jax.tree.leaves(moved)) > 0


@pytest.mark.slow
def test_compressed_messages():
    """Quantized ones up to rounding: XLA may not fuse the decoding with the sum."""
    top = compress(fedavg(lr=0.3), compressors.top_k(0.5), feedback=1.0)
    quantized = compress(fedmuon_correct(lr=0.1), compressors.quantize(4))
    exact, missing = deployed(top)
    close, further = deployed(quantized)
    assert not missing + further
    assert_same(simulated(top), exact)
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    jax.tree.map(near, close.params, simulated(quantized).params)


@pytest.mark.slow
def test_nodes_tell_the_numbers_of_their_examples_on_request():
    ended, _ = deployed(fedavg(lr=0.3), weighting=by_examples)
    assert_same(simulated(fedavg(lr=0.3), weighting=by_examples), ended)
    other, _ = deployed(fedavg(lr=0.3))
    differ = jax.tree.map(lambda a, b: (a != b).any(), ended.params, other.params)
    assert any(jax.tree.leaves(differ))


def test_a_compressed_answer_has_the_bytes_that_the_simulator_counts():
    """Besides the header."""
    algorithm = compress(fedavg(lr=0.3), compressors.quantize(4))
    shared, answers = described(algorithm), []
    inner = in_process(nodes_of(shared))

    def send(requests, deadline):
        for client, answer in inner(requests, deadline):
            answers.append(answer)
            yield client, answer

    serve(shared, send, jax.random.key(0), rounds=1)
    counted = tree.nbytes(messages.read(answers[0]).arrays)
    simulation = simulation_of(algorithm)
    _, traffic = simulation.runner.traffic(simulation)
    assert len(answers) * counted == traffic.up
    assert len(answers[0]) < counted + 500


def test_nodes_hold_their_own_examples_alone():
    shared = described(fedavg(lr=0.3))
    for client, node in nodes_of(shared).items():
        assert len(node._clients.x) == node.examples
        assert np.count_nonzero(np.asarray(node._clients.size)) == 1
        assert int(node._clients.size[client]) == node.examples
