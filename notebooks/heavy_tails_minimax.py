# %% [markdown]
# # Minimax under heavy-tailed noise
#
# Stochastic gradients of large models can have tails so heavy that their variance is
# infinite. Single draws can then dominate steps that are proportional to a gradient,
# but not steps of a fixed length. This notebook shows this on a minimax problem with a
# known solution:
#
# $$\min_X \max_Y\ \frac1N \sum_i\ \tfrac12\langle X, QX\rangle + \langle B_i, X\rangle
# + \langle Y, AX + C_i\rangle - \tfrac12\langle Y, DY\rangle.$$
#
# $Q$ is indefinite and $D$ singular: the problem is nonconvex in $X$ and not strongly
# concave in $Y$.
#
# **Result.** With light tails, all three methods come equally close to the solution,
# and plain steps are the fastest. With heavy tails, single draws set the plain method
# back, even at its best learning rate, which is small. Steps of a fixed length end at
# less than half of its distance.

# %%
# JAX and its CUDA libraries stay as they are
# !pip freeze | grep ^jax > jax.txt; pip install -qc jax.txt fedjax*.whl

# %%
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from fedjax_muon import engine
from fedjax_muon.algorithms.minimax import ALL
from fedjax_muon.core import Objective
from fedjax_muon.core.pair import Pair
from fedjax_muon.engine import plans
from fedjax_muon.runs.style import GREYS, STYLE, Label, label_ends, styles
from fedjax_muon.tasks import quadratic
from fedjax_muon.tasks.heavy_tails import noisy, pareto
from fedjax_muon.tasks.metrics import hill

ROUNDS = 4000
CLIENTS, STEPS = 4, 2
print(jax.devices())

# %% [markdown]
# ## The tail index
#
# Every entry of every gradient has symmetric Pareto noise, $P(|\xi| > t) \sim t^{-s}$.
# A smaller tail index $s$ means a heavier tail; the variance is finite only for $s >
# 2$. The two kinds of noise here have the same mean absolute value. Hill's estimator
# computes the index from the largest values of a sample.


# %%
def noise_of(tail):
    return pareto(tail, scale=3 * (tail - 1) / tail)  # E|noise| = 3 for every tail


TAILS = {"heavy": 1.5, "light": 6.0}
drawn = {
    name: np.abs(noise_of(tail)(jax.random.key(1), (20_000,), jnp.float32))
    for name, tail in TAILS.items()
}
for name, tail in TAILS.items():
    print(f"{name}: tail index {tail}, Hill's estimate {hill(drawn[name], 400):.2f}")

# %% [markdown]
# ## Three methods
#
# Fed-NSGDA-M divides momenta by their norms, FedMuon-DA replaces them by their
# orthogonal factors (both by Zhang and Gao), and LocalSGDAM uses them as they are
# (Sharma et al. 2022). The score is the norm of the gradient of $\Phi(X) = \max_Y f(X,
# Y)$, which is zero at the solution only.
#
# `engine.make_round` returns one round of any algorithm on any objective. Everything is
# a pure function, so the grid of tails, learning rates and seeds is three nested
# `vmap`s.


# %%
def draw(key):
    problem = quadratic.draw_quadratic(key, CLIENTS)
    return problem, quadratic.hessian(problem), quadratic.solution(problem).x


def distances(method, tail, lr, drawn, key):
    """Norm of the primal gradient after every round."""
    problem, hessian, solution = drawn
    objective = Objective(noisy(quadratic.gradient(problem), noise_of(tail)))
    algorithm = method.function(lr=Pair(lr, 10 * lr))  # y must follow x
    state = engine.init(algorithm, quadratic.start(problem), CLIENTS)
    cohort = jnp.arange(CLIENTS)
    batches = jnp.repeat(cohort[:, None], STEPS, 1)  # a batch is its client's id
    rest = cohort, batches, jnp.ones(CLIENTS), key
    made = algorithm, objective, CLIENTS, plans.vmapped
    state, _ = engine.make_prologue(*made)(state, *rest)
    train_round = engine.make_round(*made)

    def round(state, _):
        state, _ = train_round(state, *rest)
        return state, jnp.linalg.norm(hessian @ (state.server.params.x - solution))

    return jax.lax.scan(round, state, None, ROUNDS)[1]


# with fewer optimizations these compile in half the time and run as fast
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})

RATES = (0.0003, 0.001, 0.003)
keys = jax.random.split(jax.random.key(2), 4)
problems = jit(jax.vmap(draw))(keys)  # one problem per seed


def grid(name):
    """[tails, rates, seeds, rounds]"""
    seeds = jax.vmap(partial(distances, ALL[name]), (None, None, 0, 0))
    rates = jax.vmap(seeds, (None, 0, None, None))
    tails = jax.vmap(rates, (0, None, None, None))
    return jit(tails)(jnp.array([*TAILS.values()]), jnp.array(RATES), problems, keys)


METHODS = ("fed_nsgda_m", "fedmuon_da", "local_sgdam")
found = {name: np.asarray(grid(name)) for name in METHODS}

# %% [markdown]
# ## Results
#
# For every method and tail, we choose the learning rate with the smallest mean over the
# last tenth of the rounds.

# %%
best = {}
for i, (tail, index) in enumerate(TAILS.items()):
    for name in METHODS:
        last = np.nan_to_num(found[name][i, :, :, -(ROUNDS // 10) :], nan=np.inf)
        at = int(last.mean((1, 2)).argmin())
        best[tail, ALL[name].label] = found[name][i, at].mean(0)
        print(
            f"tail index {index}: {ALL[name].label:12} "
            f"reaches {last[at].mean():.3f} with lr {RATES[at]:g}"
        )

# %%
plt.rcParams.update(STYLE)
figure, axes = plt.subplots(1, 3, figsize=(12.5, 3.8), layout="constrained")
axes[2].sharey(axes[1])

for (name, tail), dash in zip(TAILS.items(), ("-", "--"), strict=True):
    largest = np.sort(drawn[name])[::-1]
    share = np.arange(1, len(largest) + 1) / len(largest)
    how = {"color": GREYS[1], "ls": dash, "label": f"{name}: tail index {tail}"}
    axes[0].loglog(largest, share, **how)
axes[0].set(xlabel="size of the noise", ylabel="share above", title="the noise")
axes[0].legend()

looks = styles(ALL[name].label for name in METHODS)
window = ROUNDS // 50  # rounds that a point of a curve averages
for axis, (tail, index) in zip(axes[1:], TAILS.items(), strict=True):
    for label in looks:
        smooth = best[tail, label].reshape(-1, window).mean(1)
        rounds = window * np.arange(1, len(smooth) + 1)
        axis.semilogy(rounds, smooth, **looks[label])
    axis.set(xlabel="round", title=f"{tail} tails: index {index}")
axes[1].set_ylabel("norm of the primal gradient")
axes[1].minorticks_off()
axes[1].set_yticks((0.2, 0.5, 1, 2), ("0.2", "0.5", "1", "2"))
for axis in axes[1:]:
    ends = [
        Label(label, *line.get_xydata()[-1], line.get_color())
        for label, line in zip(looks, axis.lines, strict=True)
    ]
    label_ends(axis, ends, height=3)
plt.show()
