"""Small decentralized problems, and how to run them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon.core import Objective
from fedjax_muon.core.pair import Pair, on_y
from fedjax_muon.decentralized import ALL, engine as gossip_engine
from fedjax_muon.decentralized.mixing import dense
from tests.oracles import gossip as oracle
from tests.oracles.saddle import draw_saddle
from tests.support.saddle import grad_fn

M, T, SEED = 5, 6, 9
WEIGHTS = np.stack([oracle.draw_weights(seed, M) for seed in range(T)])
TRACE = oracle.draw_saddles(3, lambda t: WEIGHTS[t])
START = draw_saddle(0)
BOUND = 0.12  # of y, reached
FREE = Objective(grad_fn)
INSIDE = Objective(grad_fn, on_y(lambda a: jnp.clip(a, -BOUND, BOUND)))
LR, BETA, SIGMA = Pair(0.05, 0.15), Pair(0.3, 0.2), Pair(0.4, 0.7)


def inside(y):
    return {name: np.clip(leaf, -BOUND, BOUND) for name, leaf in y.items()}


# the engine projects where agents begin; transcriptions are given such a start
BEGIN = {"x": START["x"], "y": inside(START["y"])}


def gathered(batches):
    """The agents' batches as arrays [m, B, ...]."""
    return tuple(np.stack(leaf) for leaf in zip(*batches, strict=True))


# compiles in half the time, for programs that run once
QUICKLY = {"xla_backend_optimization_level": 0}
QUICKLY |= {"xla_llvm_disable_expensive_passes": True}


def run(
    algorithm,
    objective,
    mixer,
    params,
    trace,
    dtype=jnp.float64,
    devices=(),
    options=QUICKLY,
):
    """All states [T, ...], of iterations 0 to T - 1: one compiled program."""
    cast = lambda a: jnp.asarray(a, dtype)
    params = jax.tree.map(cast, params)
    first, *rest = (jax.tree.map(cast, gathered(b)) for b in trace.batches)
    rest = jax.tree.map(lambda *rows: jnp.stack(rows), *rest)
    start, step = gossip_engine.make(algorithm, objective, mixer, trace.agents, devices)

    @functools.partial(jax.jit, compiler_options=options)
    def whole(params, first, rest, key):
        def body(state, batches):
            state = step(state, batches, key)
            return state, state.agents

        begun = start(params, first, key)
        _, later = jax.lax.scan(body, begun, rest)
        join = lambda one, more: jnp.concatenate([one[None], more])
        return jax.tree.map(join, begun.agents, later)

    return jax.tree.map(np.asarray, whole(params, first, rest, jax.random.key(SEED)))


def pair(saddle):
    return Pair(saddle["x"], saddle["y"])


def draws(key, like):
    """N(0, 1) as an iteration's outermost noise, in float64; `key` is the agent's."""
    _, noise = jax.random.split(key)
    return draws_from(noise, like)


def draws_from(noise, like):
    """As `draws`, from an iteration's key of noise."""
    _, mine = jax.random.split(noise)
    leaves, structure = jax.tree.flatten(like)
    sizes = [int(np.size(leaf)) for leaf in leaves]
    every = jax.random.normal(mine, (sum(sizes),), jnp.float64)
    normal = []
    for leaf, size in zip(leaves, sizes, strict=True):
        normal.append(every[:size].reshape(np.shape(leaf)))
        every = every[size:]
    return jax.tree.unflatten(structure, normal)


@functools.cache
def added_noise():
    """What oracles add to gradients: y's is ascended along, so it has another sign."""

    @functools.partial(jax.jit, compiler_options=QUICKLY)
    @functools.partial(jax.vmap, in_axes=(0, None))
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def every(t, agent):
        mine = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), t), agent)
        return draws(mine, pair(START))

    n = jax.tree.map(np.asarray, every(jnp.arange(T), jnp.arange(M)))
    of = lambda part, sigma, t, i: {k: sigma * v[t, i] for k, v in part.items()}
    one = lambda t, i: {"x": of(n.x, SIGMA.x, t, i), "y": of(n.y, -SIGMA.y, t, i)}
    return [[one(t, i) for i in range(M)] for t in range(T)]


SCHEDULES = Pair(lambda t: 0.1 / (1 + t), 0.15)
FADING = Pair(0.3, lambda t: 0.5 / (1 + t))
DSGDA = lambda trace: oracle.dsgda(BEGIN, trace, *LR, inside)
DP_SGDA = lambda trace: oracle.dsgda(BEGIN, trace, *LR, inside, added_noise())
DM_HSGD = lambda trace: oracle.dpmixsgd(BEGIN, trace, *SCHEDULES, *FADING, inside)
DPMIXSGD = lambda trace: oracle.dpmixsgd(START, trace, *LR, *BETA, noise=added_noise())
MINIMAX = {  # hyperparameters, objective, transcription
    "dsgda": ({"lr": LR}, INSIDE, DSGDA),
    "dp_sgda_unclipped": ({"lr": LR, "sigma": SIGMA}, INSIDE, DP_SGDA),
    "dm_hsgd": ({"lr": SCHEDULES, "beta": FADING}, INSIDE, DM_HSGD),
    "dpmixsgd_unclipped": ({"lr": LR, "beta": BETA, "sigma": SIGMA}, FREE, DPMIXSGD),
}


@functools.cache
def states_of(name):
    """The states of a minimax method."""
    hyper, objective, _ = MINIMAX[name]
    with jax.enable_x64(True):
        algorithm = ALL[name].function(**hyper)
        return run(algorithm, objective, dense(WEIGHTS), pair(START), TRACE)
