"""The tables of methods in docs/algorithms, computed: what a round costs, and options.

Costs are read off the interface by shapes, in sizes of a model of one matrix.
"""

import inspect
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_muon import decentralized, engine, minimax
from fedjax_muon.algorithms import ADAPTERS, ALL
from fedjax_muon.core import Algorithm, Objective, Round, tree
from fedjax_muon.core.pair import Pair
from fedjax_muon.decentralized import engine as gossip_engine
from fedjax_muon.decentralized.gossip import Iteration
from fedjax_muon.decentralized.private import Mechanism, PrivateAgents, private
from fedjax_muon.privacy import Banded
from fedjax_muon.privacy.client_mechanism import check_mean
from fedjax_muon.simulation.asynchronous import check_suits
from fedjax_muon.transforms import (
    hidden_matrices,
    jordan,
    moonlight,
    muon_dimension_numbers,
    spectral,
    unscaled,
)
from tests.support.jaxprs import equations

SIDE = 96
MATRIX = {"kernel": jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)}
PAIR = Pair(MATRIX, jax.ShapeDtypeStruct((), jnp.float32))
BATCHES = jax.ShapeDtypeStruct((1,), jnp.float32)
NORMS = {"clip_norm": 1.0, "change_clip_norm": 0.1}
STRATEGY = Banded((1.0, 0.5, 0.2))
MECHANISM = Mechanism(**NORMS, beta=0.1, batch_size=2, strategy=STRATEGY)
PAGES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("muon", "averaging", "adaptive", "adapters"), ALL),
    "minimax": dict(minimax.ALL),
    "decentralized": dict(decentralized.ALL),
    "private": dict(decentralized.PRIVATE_METHODS),
}
FACTORS = {
    name: jax.ShapeDtypeStruct(shape, jnp.float32)
    for name, shape in (("a", (SIDE, 4)), ("b", (4, SIDE)))
}
ADAPTED = {"layer": {**MATRIX, **FACTORS}}
FIRST, LAST = ["name", "method"], ["gradients"]
COSTS = [*FIRST, "down", "up", "before", "client keeps", "server keeps", *LAST]
GOSSIP_COSTS = [*FIRST, "sends", "agent keeps", *LAST]
OPTIONS = ["name", "options and defaults", "published grid"]
TRAITS = ["family", "year", "sends", "traits"]


@jax.jit
def gradient_of_a_batch(params):
    """Counted in traced programs by its name."""
    return tree.zeros_like(params)


def grad_fn(params, batch, key):
    """A gradient that does not look at its batch."""
    del batch, key
    return gradient_of_a_batch(params)


def example_grad_fn(params, batch, key):
    """The same for every example of a batch."""
    zeros = grad_fn(params, batch, key)
    return jax.tree.map(lambda x: jnp.stack(2 * [x]), zeros)


def value_and_grad(params, batch, key):
    """A loss besides."""
    return jnp.zeros(()), grad_fn(params, batch, key)


OBJECTIVE = Objective(
    grad_fn, example_grad=example_grad_fn, value_and_grad=value_and_grad
)


def gradients(function, *given) -> int:
    """How many gradients of a batch a traced function takes; loops count once."""
    program = jax.make_jaxpr(function)(*given).jaxpr
    names = [equation.params.get("name") for equation in equations(program)]
    return names.count("gradient_of_a_batch")


def in_models(nbytes: int, params) -> str:
    """A number of bytes in sizes of a model."""
    return f"{round(nbytes / tree.nbytes(params), 2):g}"


def cost_row(name: str, method, params) -> list[str]:
    """Of a federated method."""
    algorithm = method.function()
    size = partial(in_models, params=params)

    def sent(exchanges):
        traffic = engine.traffic(exchanges, algorithm, OBJECTIVE, params, BATCHES)
        return [size(nbytes) for nbytes in traffic]

    before = ", ".join(sent(algorithm.prologue)) if algorithm.prologue else ""
    server = jax.eval_shape(algorithm.init, params)
    client_state = jax.eval_shape(algorithm.init_client, params)

    def client(server, client_state, batches, key):
        round, sent = Round(jnp.int32(0), key, 1, 1, 1.0), []
        for exchange in algorithm.exchanges:
            given = exchange.broadcast(server, round), client_state, batches, round
            message, client_state = exchange.client(OBJECTIVE, *given)
            sent.append(message)
        return sent, client_state

    key = jax.eval_shape(lambda: jax.random.key(0))
    taken = gradients(client, server, client_state, BATCHES, key)
    kept = [size(tree.nbytes(state)) for state in (client_state, server)]
    about = [f"`{name}`", method.label]
    return [*about, *sent(algorithm.exchanges), before, *kept, str(taken)]


def gossip_cost_row(name: str, method, params) -> list[str]:
    """Of a method without a server."""
    algorithm = method.function()
    if isinstance(algorithm, PrivateAgents):
        algorithm = private(algorithm, MECHANISM, 1.0)
    sent = gossip_engine.traffic(algorithm, OBJECTIVE, params, BATCHES, BATCHES)
    assert sent.first == sent.later

    def alone(run):
        iteration = lambda key: Iteration(jnp.int32(1), key, key)
        mix = lambda message: message
        return lambda x, batch, key: run(OBJECTIVE, x, mix, batch, iteration(key))

    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(alone(algorithm.start), params, BATCHES, key)
    taken = gradients(alone(algorithm.step), state, BATCHES, key)
    sizes = [in_models(n, params) for n in (sent.later, tree.nbytes(state))]
    return [f"`{name}`", method.label, *sizes, str(taken)]


def cost_rows(page: str) -> dict[str, list[str]]:
    """All rows of the methods that a page may have, by name."""
    row = gossip_cost_row if page in ("decentralized", "private") else cost_row
    params: Any = MATRIX if PAGES[page] is ALL else PAIR
    methods = {k: m for k, m in PAGES[page].items() if k not in ADAPTERS}
    return {name: row(name, m, params) for name, m in methods.items()}


def allows(check, *given, **options) -> bool:
    """Whether a check passes."""
    try:
        check(*given, **options)
    except ValueError:
        return False
    return True


def traits(name: str, algorithm: Any, params) -> str:
    """What a method does without, and what it goes together with."""
    if not isinstance(algorithm, Algorithm):
        return "private" if name in decentralized.PRIVATE_METHODS else ""
    found = {
        "stateless": not jax.tree.leaves(jax.eval_shape(algorithm.init_client, params)),
        "sampled": not algorithm.full_participation,
        "private": allows(check_mean, algorithm),
        "asynchronous": allows(check_suits, algorithm, params, rebase=False),
    }
    return ", ".join(trait for trait, holds in found.items() if holds)


def trait_row(page: str, name: str) -> list[str]:
    """The cells under `TRAITS` of a method that is on that page."""
    method = PAGES[page][name]
    year = re.search(r"\b(19|20)\d\d\b", method.paper)
    if name in ADAPTERS:
        params, sends = ADAPTED, ""  # which depends on the ranks
    elif page in ("decentralized", "private"):
        params, sends = PAIR, gossip_cost_row(name, method, PAIR)[2]
    else:
        params = MATRIX if PAGES[page] is ALL else PAIR
        sends = cost_row(name, method, params)[3]
    found = traits(name, method.function(), params)
    return [page, year[0] if year else "", sends, found]


def shown(value) -> str | None:
    """A default as tables have it; nothing for what is no plain value."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return f"{value:g}"
    if isinstance(value, Pair):
        return " and ".join(f"{v:g}" for v in value)
    if isinstance(value, tuple) and all(isinstance(v, str) for v in value):
        return ", ".join(value) or "none"
    if isinstance(value, str):
        return value
    if value in (unscaled, jordan, moonlight, spectral, hidden_matrices):
        return value.__name__
    if callable(value) and value is not muon_dimension_numbers:
        first, later = (float(value(jnp.int32(index))) for index in (0, 1))
        return f"{first:g} in round 0, then {later:g}"
    return None


def option_row(name: str, method) -> list[str]:
    """The options of a method that are numbers, flags or names, and its grid."""
    parameters = inspect.signature(method.function).parameters.values()
    given = {p.name: shown(p.default) for p in parameters if p.default is not p.empty}
    options = [f"`{name}` {v}" for name, v in given.items() if v is not None]
    values = [
        f"`{k}`: {', '.join(f'{v:g}' for v in vs)}" for k, vs in method.grid.items()
    ]
    return [f"`{name}`", "; ".join(options), "; ".join(values)]


def option_rows(page: str) -> dict[str, list[str]]:
    """All rows of the methods that a page may have, by name."""
    return {name: option_row(name, m) for name, m in PAGES[page].items()}


def as_markdown(header: list[str], rows: list[list[str]]) -> list[str]:
    """A table's lines."""
    numbers = {*COSTS, *GOSSIP_COSTS} - {*FIRST}
    rules = ["---:" if title in numbers else "---" for title in header]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rules, *rows)]


def tables(text: str) -> list[list[list[str]]]:
    """The cells of all tables of a page."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]
