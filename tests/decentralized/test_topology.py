"""Mixing matrices against closed forms, enumeration and the exact law of G(m, p)."""

import itertools

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from fedjax_muon.decentralized import topology

WEIGHTS = {"metropolis": topology.metropolis, "constant": topology.constant}
KEYS = [jax.random.key(seed) for seed in range(600)]


def torus(*shape):
    """A grid that is closed along both sides."""
    grid = nx.grid_2d_graph(*shape, periodic=True)
    return nx.convert_node_labels_to_integers(grid)


GRAPHS = {
    "ring": topology.ring(7),
    "torus": torus(3, 4),
    "complete": topology.complete(5),
    "star": topology.star(6),
    "exponential": topology.exponential(11),
    "erdos_renyi": topology.erdos_renyi(12, 0.3, key=KEYS[0]).graph,
    "path": nx.path_graph(4),
    "isolated": nx.empty_graph(3),
    "one": nx.empty_graph(1),
    "lollipop": nx.lollipop_graph(4, 3),
}


def edges(graph):
    return {frozenset(edge) for edge in graph.edges}


def metropolis_by_hand(m, edges):
    """The definition, edge by edge, for agents 0..m-1."""
    degree = [sum(i in edge for edge in edges) for i in range(m)]
    W = np.zeros((m, m))
    for i, j in edges:
        W[i, j] = W[j, i] = 1 / (1 + max(degree[i], degree[j]))
    for i in range(m):
        W[i, i] = 1 - sum(W[i, j] for j in range(m) if j != i)
    return W


def constant_by_hand(m, edges):
    """I - sum over edges of (e_i - e_j)(e_i - e_j)^T / (1 + d_max)."""
    degree = [sum(i in edge for edge in edges) for i in range(m)]
    difference = [np.eye(m)[i] - np.eye(m)[j] for i, j in edges]
    return np.eye(m) - sum(np.outer(d, d) for d in difference) / (1 + max(degree))


BY_HAND = {"metropolis": metropolis_by_hand, "constant": constant_by_hand}


def contraction(W):
    """lambda from the eigenvalues of a symmetric W: the second largest in size."""
    return np.sort(np.abs(np.append(np.linalg.eigvalsh(W), 0)))[-2]


@pytest.mark.parametrize("m", [1, 2, 3, 4, 9])
def test_edges_are_those_of_the_definitions(m):
    pairs = {frozenset(pair) for pair in itertools.combinations(range(m), 2)}
    cycle = {frozenset((i, (i + 1) % m)) for i in range(m)} - {frozenset([0])}
    assert edges(topology.ring(m)) == cycle
    assert edges(topology.complete(m)) == pairs
    assert edges(topology.star(m)) == {pair for pair in pairs if 0 in pair}
    powers = [2**k for k in range(m) if 2**k < m]
    jumps = {frozenset((i, (i + power) % m)) for i in range(m) for power in powers}
    assert edges(topology.exponential(m)) == jumps
    for make in (topology.ring, topology.complete, topology.star, topology.exponential):
        assert list(make(m)) == list(range(m))
        assert list(make(np.int64(m))) == list(range(m))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", GRAPHS)
def test_weights_are_those_of_the_definitions_and_mix(name, weights):
    graph = GRAPHS[name]
    W = WEIGHTS[weights](graph)
    expected = BY_HAND[weights](len(graph), list(graph.edges))
    np.testing.assert_allclose(W, expected, atol=1e-15)
    np.testing.assert_array_equal(W, W.T)
    np.testing.assert_allclose(W.sum(0), 1, atol=1e-15)
    degrees = np.array([degree for _, degree in graph.degree])
    assert W.dtype == np.float64
    assert np.all(np.diag(W) >= 1 / (1 + max(degrees)) - 1e-15)
    gap = topology.spectral_gap(W)
    assert isinstance(gap, float)
    np.testing.assert_allclose(gap, 1 - contraction(W), atol=1e-14)
    assert (gap > 1e-3) == nx.is_connected(graph)
    if name != "isolated":
        np.testing.assert_array_equal(topology.check_mixing(W.tolist()), W)
        single = jnp.asarray(W, jnp.float32)  # its rows sum to one up to 1e-7
        checked = topology.check_mixing(single)
        assert checked.dtype == np.float64
        np.testing.assert_array_equal(checked, np.asarray(single))


def test_weights_follow_the_nodes_whatever_they_are_called():
    graph = GRAPHS["lollipop"]
    order = np.array([3, 0, 6, 5, 1, 4, 2])  # agent i is what was order[i]
    names = ["rome", (0, 1), 7, "oslo", 2.5, frozenset([5]), "bern"]
    renamed = nx.Graph()
    renamed.add_nodes_from(names[i] for i in order)
    renamed.add_edges_from(((names[i], names[j]) for i, j in graph.edges), weight=3.0)
    for weights in WEIGHTS.values():
        W = weights(graph)
        np.testing.assert_array_equal(weights(renamed), W[np.ix_(order, order)])
        assert not np.array_equal(weights(renamed), W)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("m", [3, 4, 5, 8, 31, 300])
def test_a_ring_has_its_closed_form(m, weights):
    # W is circulant with eigenvalues (1 + 2 cos(2 pi k / m)) / 3, none below -1/3.
    W = WEIGHTS[weights](topology.ring(m))
    np.testing.assert_allclose(W[0, [0, 1, -1]], 1 / 3, atol=1e-15)
    values = (1 + 2 * np.cos(2 * np.pi * np.arange(1, m) / m)) / 3
    expected = 1 - np.max(np.abs(values))
    np.testing.assert_allclose(topology.spectral_gap(W), expected, atol=1e-13)
    np.testing.assert_allclose(expected, 1 - values[0], atol=1e-15)
    topology.check_mixing(W)


def matchings():
    """Every agent of 2^3 averages with one other at a time, over three exchanges."""
    partner = [np.eye(8)[np.arange(8) ^ 2**k] for k in range(3)]
    return (np.eye(8) + np.stack(partner)) / 2


def test_a_period_may_be_connected_though_its_graphs_are_not():
    W = matchings()
    product = W[2] @ W[1] @ W[0]
    np.testing.assert_allclose(product, 1 / 8, atol=1e-15)  # averages exactly
    np.testing.assert_array_equal(topology.check_mixing(W), W)
    np.testing.assert_array_equal(topology.check_mixing(list(W)), W)
    np.testing.assert_allclose(topology.spectral_gap(W), 1, atol=1e-14)
    for matrix in W:
        with pytest.raises(ValueError, match="W has 4 components"):
            topology.check_mixing(matrix)
    graphs = (nx.path_graph(6), topology.star(6), topology.ring(6))
    W = np.stack([topology.metropolis(graph) for graph in graphs])
    values = np.linalg.svd(W[2] @ W[1] @ W[0], compute_uv=False)
    np.testing.assert_allclose(topology.spectral_gap(W), 1 - values[1], atol=1e-14)
    assert topology.check_mixing(W[:1]).shape == (1, 6, 6)


draw = lambda agents=4, p=0.5, key=KEYS[0]: topology.erdos_renyi(agents, p, key=key)


@pytest.mark.slow
def test_graphs_that_never_connect_are_refused(monkeypatch):
    message = r"^none of 10000 graphs of 30 agents with p=0.01 .* raise p, to .*= 0.11 "
    with pytest.raises(ValueError, match=message):
        draw(30, 0.01)
    tries = draw(5, 0.1).tries
    assert tries > 1
    monkeypatch.setattr(topology, "MAX_TRIES", tries)
    assert draw(5, 0.1).tries == tries  # the last try still counts
    monkeypatch.setattr(topology, "MAX_TRIES", tries - 1)
    with pytest.raises(ValueError, match=f"^none of {tries - 1} graphs"):
        draw(5, 0.1)


RING = topology.metropolis(topology.ring(6))
SWAP = np.array([[0.0, 1.0], [1.0, 0.0]])
PARTS = topology.metropolis(nx.disjoint_union(nx.path_graph(9), topology.ring(3)))


def changed(i, j, value):
    W = RING.copy()
    W[i, j] += value
    return W


@pytest.mark.parametrize(
    ("W", "message"),
    [
        (RING[:5], r"^W must be square, got shape \(5, 6\)$"),
        (RING[0], r"^W must be one matrix .* got shape \(6,\) and dtype float64$"),
        (RING + 0j, "^W must be one matrix .* dtype complex128$"),
        ([[1.0], [0.5, 0.5]], "^W must have rows of one length, got a ragged list$"),
        (changed(2, 3, np.nan), r"^W must be finite, got nan at \[2, 3\]$"),
        (changed(4, 1, 0.2), r"^W must be symmetric, got 0 at \[1, 4\] but 0.2 at"),
        (changed(4, 1, 2e-6), r"^W must be symmetric, got 0 at \[1, 4\] but 2e-06"),
        (2 * RING - np.eye(6), r"^W must not be negative, got -0.333333333 at \[0,"),
        (changed(3, 3, 0.125), "^every row of W must sum to 1, got 1.125 in row 3; "),
        (changed(3, 3, -2e-6), "^every row of W must sum to 1, got 0.999998 in row 3"),
        (PARTS, r"messages, as agents \[0, 1, 2, 3, 4\] and others and \[9, 10, 11"),
        (np.eye(3), "^W has 3 components"),
        ((1 - 2e-8) * np.eye(3), "^W has 3 components"),  # lambda below 1 - 1e-9
        (SWAP, r"^lambda must be below 1 - 1e-09, got 1: the agents are connected but"),
        ([RING, changed(4, 1, 0.2)], r"^W\[1\] must be symmetric"),
        ([RING, 2 * RING, RING], r"^every row of W\[1\] must sum to 1, got 2 in row"),
        (matchings()[:2], "^all W together have 2 components"),
    ],
)
def test_matrices_are_refused(W, message):
    with pytest.raises(ValueError, match=message):
        topology.check_mixing(W)
