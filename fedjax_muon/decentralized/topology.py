"""Who talks to whom without a server: graphs, and the matrices that average over them.

Agents are the nodes of an undirected `networkx.Graph`, numbered in the graph's own node
order whatever its labels are. One exchange with all neighbours is x <- W x for a mixing
matrix W [m, m]: symmetric, doubly stochastic, not negative, zero where there is no
edge. It brings agents closer to their mean by the factor

    lambda = ||W - 11^T / m||_2 < 1,   spectral gap = 1 - lambda.

Any networkx graph will do (`networkx.hypercube_graph`, `networkx.read_edgelist`, ...)
if it is undirected and simple. Isolated agents are allowed in a graph, since graphs
that change with time may have them; `check_mixing` refuses the matrix that follows.
"""

import functools
from typing import NamedTuple

import networkx as nx
import numpy as np

from fedjax_muon.core import check_range
from fedjax_muon.data.partition import generator

MAX_TRIES = 10_000
SMALLEST_P = 1e-9  # below, MAX_TRIES graphs of two or more agents would not connect
TOLERANCE = 1e-6  # of a mixing matrix: what float32, in which it is used, resolves
SMALLEST_GAP = 1e-9  # also the smallest weight that joins two agents


class RandomGraph(NamedTuple):
    graph: nx.Graph
    tries: int  # draws up to this one, which is the first that is connected


def ring(agents: int) -> nx.Graph:
    """Agent i is joined with i - 1 and i + 1 modulo m.

    Both weightings below give 1/3, 1/3, 1/3 and lambda = (1 + 2 cos(2 pi / m)) / 3
    from m = 3 on. A ring of two is one edge, a ring of one has none.

    Raises:
      ValueError: as every function of agents, if they are no whole number above 0.
    """
    _check_count("agents", agents)
    return nx.circulant_graph(agents, [1] if agents > 1 else [])


def torus(rows: int, columns: int) -> nx.Graph:
    """A grid closed to a ring along both sides; (r, c) is agent r * columns + c.

    Four neighbours each, so weights of 1/5. A side of two has one edge, not two, and a
    side of one has none: torus(1, m) is ring(m).
    """
    _check_count("rows", rows)
    _check_count("columns", columns)
    grid = nx.grid_2d_graph(rows, columns, periodic=True)
    return nx.convert_node_labels_to_integers(grid)


def complete(agents: int) -> nx.Graph:
    """Everyone is joined with everyone: weights 1/m, lambda = 0, one exchange averages
    exactly."""
    _check_count("agents", agents)
    return nx.complete_graph(agents)


def star(agents: int) -> nx.Graph:
    """Agent 0 is joined with all others, which are not joined with each other."""
    _check_count("agents", agents)
    return nx.star_graph(agents - 1)


def exponential(agents: int) -> nx.Graph:
    """Agent i is joined with i - 2^k and i + 2^k modulo m, for all 2^k < m.

    The undirected form of the static exponential graph (Ying et al. 2021, "Exponential
    graph is provably efficient for decentralized deep training", arXiv:2110.13363).
    """
    _check_count("agents", agents)
    powers = range(int(agents - 1).bit_length())
    return nx.circulant_graph(agents, [2**k for k in powers])


def erdos_renyi(agents: int, p: float, *, key) -> RandomGraph:
    """G(m, p), every edge with probability p, given that the graph is connected.

    Graphs are drawn until one is connected. Draw number t = 1, 2, ... is
    `networkx.fast_gnp_random_graph` with the NumPy generator seeded by the words of the
    typed `key` and then t, so that (key, tries) alone gives the graph again.

    Raises:
      ValueError: if `p` is not in [1e-9, 1], or none of 10^4 graphs is connected (a few
        are if p is above log(m) / m).
      TypeError: if `key` is not one typed key.
    """
    _check_count("agents", agents)
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


def metropolis(graph: nx.Graph) -> np.ndarray:
    """Metropolis weights W [m, m] in float64: W_ij = 1 / (1 + max(d_i, d_j)) for edges.

    d are the degrees, and W_ii = 1 - sum_j W_ij, which is at least 1 / (1 + d_i). Each
    agent needs to know only its neighbours' degrees (Xiao, Boyd and Lall 2005, "A
    scheme for robust distributed sensor fusion based on average consensus"). Only edges
    count, not their attributes.

    Raises:
      TypeError: if `graph` is no undirected, simple networkx graph.
      ValueError: if it has no nodes, or a node is joined with itself.
    """
    adjacency = _adjacency(graph)
    degrees = adjacency.sum(1)
    weights = adjacency / (1 + np.maximum.outer(degrees, degrees))
    return weights + np.diag(1 - weights.sum(1))


def constant(graph: nx.Graph) -> np.ndarray:
    """One weight for all edges, W = I - L / (1 + d_max) [m, m] in float64.

    L is the Laplacian and d_max the highest degree (Xiao and Boyd 2004, "Fast linear
    iterations for distributed averaging"). On regular graphs these are the
    Metropolis weights. Only edges count, not their attributes.

    Raises:
      TypeError, ValueError: as `metropolis`.
    """
    adjacency = _adjacency(graph)
    weights = adjacency / (1 + adjacency.sum(1).max())
    return weights + np.diag(1 - weights.sum(1))


def spectral_gap(W) -> float:
    """1 - ||W - 11^T / m||_2 of one matrix W [m, m]: 1 averages in one step, 0 never.

    Of a sequence [T, m, m] it is the gap of the product W_T ... W_1, that is of one
    whole period.

    Raises:
      ValueError: if `W` is not [m, m] or [T, m, m], or not finite.
    """
    period = _matrices(W)
    product = functools.reduce(lambda product, W: W @ product, period)
    return 1 - float(np.linalg.norm(product - 1 / len(product), 2))


def check_mixing(W) -> np.ndarray:
    """Returns `W` in float64 if agents that mix with it come to their common mean.

    `W` is one matrix [m, m], or a sequence [T, m, m] for a graph that changes with time
    and starts again after T exchanges. Every matrix must be symmetric, not negative,
    and its rows sum to one, up to 1e-6. The graph of positive weights must be
    connected, and lambda below 1 - 1e-9. Of a sequence, both are asked of one period,
    not of every matrix: of the union of its graphs, and of the product of its matrices
    (a union can be connected while weights only swap agents). One agent, W = [[1]], is
    allowed.

    Raises:
      ValueError: with what is not so, and where.
      TypeError: if `W` is a graph.
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
            "agents are connected but hardly average; let them keep more weight of "
            "their own, such as (I + W) / 2, or add edges"
        )
    return period if changes else period[0]


def _check_count(name: str, value: int):
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < 1:
        raise ValueError(f"{name} must be a whole number at least 1, got {value!r}")


def _adjacency(graph: nx.Graph) -> np.ndarray:
    """Ones and zeros [m, m] in the graph's node order, after the graph was checked."""
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
            f"node {loops[0]!r} is joined with itself, but what agents keep follows "
            "from their other edges; graph.remove_edges_from(networkx.selfloop_edges("
            "graph)) first"
        )
    return nx.to_numpy_array(graph, weight=None)


def _matrices(W) -> np.ndarray:
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


def _check_doubly_stochastic(name: str, W: np.ndarray):
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
            "W[i, i] to 1 less the weights of the edges"
        )


def _check_connected(graphs_have: str, period: np.ndarray):
    joined = nx.from_numpy_array((period > SMALLEST_GAP).any(0))
    parts = list(nx.connected_components(joined))
    if len(parts) > 1:
        raise ValueError(
            f"{graphs_have} {len(parts)} components that hear nothing of each other, "
            f"as agents {_some(parts[0])} and {_some(parts[1])}; join them by edges"
        )


def _some(agents: set[int]) -> str:
    shown = sorted(agents)[:5]
    return f"{shown}" if len(shown) == len(agents) else f"{shown} and others"
