"""Graphs of agents, and mixing matrices that average over them.

Agents are the nodes of an undirected `networkx.Graph`, numbered in the order of its
nodes, whatever their labels. One exchange with all neighbors is x <- W x for a
mixing matrix W [m, m], which is symmetric, doubly stochastic, not negative, and zero
where there is no edge. It brings agents closer to their mean by the factor

    lambda = ||W - 11^T / m||_2 < 1,   spectral gap = 1 - lambda.

Any networkx graph may be used (`networkx.hypercube_graph`, `networkx.read_edgelist`,
...) if it is undirected and simple. A graph may have isolated agents, since those of a
time-varying graph may; `check_mixing` rejects the matrix that follows from such a graph
alone.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import networkx as nx
import numpy as np
from numpy.typing import ArrayLike

from fedjax_muon.core import check_count, check_range
from fedjax_muon.data.partition import generator

MAX_TRIES = 10_000
SMALLEST_P = 1e-9  # below this, none of MAX_TRIES graphs would be connected
TOLERANCE = 1e-6  # of a mixing matrix, which is used in float32
SMALLEST_GAP = 1e-9  # also the smallest weight that connects two agents


class RandomGraph(NamedTuple):
    """A random graph, and the number of draws until one was connected."""

    graph: nx.Graph
    tries: int


def ring(agents: int) -> nx.Graph:
    """Connects agent i to i - 1 and i + 1 modulo m.

    Both weightings below are 1/3, 1/3, 1/3, with lambda = (1 + 2 cos(2 pi / m)) / 3, if
    m >= 3. A ring of two agents is one edge; a ring of one has none.
    """
    check_count("agents", agents)
    return nx.circulant_graph(agents, [1] if agents > 1 else [])


def complete(agents: int) -> nx.Graph:
    """Connects every agent to every other.

    Weights are 1/m and lambda = 0: one exchange averages exactly.
    """
    check_count("agents", agents)
    return nx.complete_graph(agents)


def star(agents: int) -> nx.Graph:
    """Connects agent 0 to all others, which are not connected to each other."""
    check_count("agents", agents)
    return nx.star_graph(agents - 1)


def exponential(agents: int) -> nx.Graph:
    """Connects agent i to i - 2^k and i + 2^k modulo m, for all 2^k < m.

    The undirected form of the static exponential graph (Ying et al. 2021, "Exponential
    graph is provably efficient for decentralized deep training", arXiv:2110.13363).
    """
    check_count("agents", agents)
    powers = range(int(agents - 1).bit_length())
    return nx.circulant_graph(agents, [2**k for k in powers])


def erdos_renyi(agents: int, p: float, *, key: jax.Array) -> RandomGraph:
    """Draws G(m, p), with every edge of probability p, until the graph is connected.

    Draw t = 1, 2, ... is `networkx.fast_gnp_random_graph` with the NumPy generator
    seeded by the words of the key and then t, so that (key, tries) determines the
    graph.
    """
    check_count("agents", agents)
    check_range("p", p, SMALLEST_P, 1, schedules=False)
    for tries in range(1, MAX_TRIES + 1):
        seed = generator(key, tries)
        graph = nx.fast_gnp_random_graph(int(agents), float(p), seed=seed)
        if nx.is_connected(graph):
            return RandomGraph(graph=graph, tries=tries)
    raise ValueError(
        f"none of {MAX_TRIES} graphs of {agents} agents with p={p:g} was connected; "
        f"raise p, to log(agents) / agents = {np.log(agents) / agents:.2g} or more"
    )


def random_graph(agents: int, key: jax.Array, *, connectivity: float = 0.5) -> nx.Graph:
    """The graph of `erdos_renyi`; `connectivity` is the probability of an edge."""
    return erdos_renyi(agents, connectivity, key=key).graph


GraphOf = Callable[[int, jax.Array], nx.Graph]  # (number of agents, key) -> graph
GRAPHS: dict[str, GraphOf] = {
    "erdos_renyi": random_graph,
    "ring": lambda agents, key: ring(agents),
    "star": lambda agents, key: star(agents),
    "exponential": lambda agents, key: exponential(agents),
    "complete": lambda agents, key: complete(agents),
}


def metropolis(graph: nx.Graph) -> np.ndarray:
    """Returns Metropolis weights: W_ij = 1 / (1 + max(d_i, d_j)) for edges.

    d are the degrees, and W_ii = 1 - sum_j W_ij, which is at least 1 / (1 + d_i). Each
    agent needs to know only its neighbors' degrees (Xiao, Boyd and Lall 2005, "A scheme
    for robust distributed sensor fusion based on average consensus").
    """
    adjacency = _adjacency(graph)
    degrees = adjacency.sum(1)
    weights = adjacency / (1 + np.maximum.outer(degrees, degrees))
    return weights + np.diag(1 - weights.sum(1))


def constant(graph: nx.Graph) -> np.ndarray:
    """Returns one weight for all edges: W = I - L / (1 + d_max).

    L is the Laplacian and d_max the highest degree (Xiao and Boyd 2004, "Fast linear
    iterations for distributed averaging"). On regular graphs these are the Metropolis
    weights.
    """
    adjacency = _adjacency(graph)
    weights = adjacency / (1 + adjacency.sum(1).max())
    return weights + np.diag(1 - weights.sum(1))


def spectral_gap(W: ArrayLike) -> float:
    """Returns 1 - ||W - 11^T / m||_2: 1 averages in one step, 0 never.

    Args:
      W: Mixing matrix [m, m]; or a sequence [T, m, m], whose gap is the gap of the
        product W_T ... W_1.
    """
    period = _matrices(W)
    product = functools.reduce(lambda product, W: W @ product, period)
    return 1 - float(np.linalg.norm(product - 1 / len(product), 2))


def check_mixing(W: ArrayLike) -> np.ndarray:
    """Checks that agents who mix with `W` converge to their common mean.

    Every matrix must be symmetric and not negative, and its rows must sum to 1, up to
    1e-6. The graph of positive weights must be connected, and lambda below 1 - 1e-9. Of
    a sequence, this is required of one period, not of every matrix: of the union of its
    graphs, and of the product of its matrices (a union can be connected while weights
    only swap agents). One agent, W = [[1]], is allowed.
    """
    period = _matrices(W)
    changes = np.ndim(W) == 3
    for t, matrix in enumerate(period):
        _check_doubly_stochastic(f"W[{t}]" if changes else "W", matrix)
    _check_connected("all W together have" if changes else "W has", period)
    gap = spectral_gap(period)
    if gap <= SMALLEST_GAP:
        of = "of one period " if changes else ""
        raise ValueError(
            f"lambda {of}must be below 1 - {SMALLEST_GAP:g}, got {1 - gap:.12g}: the "
            "agents are connected but hardly average; give their own values more "
            "weight, as in (I + W) / 2, or add edges"
        )
    return period if changes else period[0]


def _adjacency(graph: nx.Graph) -> np.ndarray:
    """The checked graph as ones and zeros [m, m], in the order of its nodes."""
    if not isinstance(graph, nx.Graph) or graph.is_directed() or graph.is_multigraph():
        raise TypeError(
            f"graph must be an undirected networkx.Graph, got {type(graph).__name__}; "
            "networkx.Graph(graph) drops directions and parallel edges"
        )
    if not len(graph):
        raise ValueError("graph must have at least one node, got none")
    loops = [node for node, _ in nx.selfloop_edges(graph)]
    if loops:
        raise ValueError(
            f"node {loops[0]!r} has a self-loop, but agents' own weights follow from "
            "other edges; call graph.remove_edges_from(networkx.selfloop_edges(graph))"
        )
    return nx.to_numpy_array(graph, weight=None)


def _matrices(W: Any) -> np.ndarray:
    """`W` as a period of matrices [T, m, m], finite float64."""
    if isinstance(W, nx.Graph):
        raise TypeError("W must be a matrix, got a graph; use metropolis(graph)")
    try:
        W = np.asarray(W)
    except ValueError as error:  # rows or matrices of several lengths
        raise ValueError("W must have rows of one length, got a ragged list") from error
    if W.dtype.kind not in "iuf" or W.ndim not in (2, 3) or not W.size:
        raise ValueError(
            "W must be one matrix [m, m] of real numbers or a sequence [T, m, m], got "
            f"shape {W.shape} and dtype {W.dtype}"
        )
    if W.shape[-1] != W.shape[-2]:
        raise ValueError(f"W must be square, got shape {W.shape}")
    if not np.isfinite(W).all():
        where = np.argwhere(~np.isfinite(W))[0].tolist()
        raise ValueError(f"W must be finite, got {W[tuple(where)]} at {where}")
    W = W.astype(np.float64)
    return W if W.ndim == 3 else W[None]


def _check_doubly_stochastic(name: str, W: np.ndarray) -> None:
    i, j = np.unravel_index(np.argmax(np.abs(W - W.T)), W.shape)
    if abs(W[i, j] - W[j, i]) > TOLERANCE:
        raise ValueError(
            f"{name} must be symmetric, got {W[i, j]:.9g} at [{i}, {j}] but "
            f"{W[j, i]:.9g} at [{j}, {i}]; use metropolis(graph) or constant(graph)"
        )
    i, j = np.unravel_index(np.argmin(W), W.shape)
    if W[i, j] < -TOLERANCE:
        raise ValueError(
            f"{name} must not be negative, got {W[i, j]:.9g} at [{i}, {j}]; lower the "
            "weights of that agent's edges"
        )
    sums = W.sum(1)
    i = np.argmax(np.abs(sums - 1))
    if abs(sums[i] - 1) > TOLERANCE:
        raise ValueError(
            f"every row of {name} must sum to 1, got {sums[i]:.9g} in row {i}; set "
            "W[i, i] to 1 minus the weights of the edges"
        )


def _check_connected(graphs_have: str, period: np.ndarray) -> None:
    union = nx.from_numpy_array((period > SMALLEST_GAP).any(0))
    parts = list(nx.connected_components(union))
    if len(parts) > 1:
        raise ValueError(
            f"{graphs_have} {len(parts)} components that do not exchange messages, as "
            f"agents {_some(parts[0])} and {_some(parts[1])}; connect them with edges"
        )


def _some(agents: set[int]) -> str:
    shown = sorted(agents)[:5]
    return f"{shown}" if len(shown) == len(agents) else f"{shown} and others"
