# %% [markdown]
# # Private agents on a graph, and an audit
#
# Five hospitals train one classifier of tumors without a server. Each exchanges
# messages with its neighbors on a graph, and the messages are differentially private.
# An audit then tests the guarantee: an adversary plants a record that is easy to
# detect, and computes a *lower* bound of epsilon.
#
# **Result.** The test AUC falls from 0.992 without privacy to 0.96 at epsilon 0.25.
# All lower bounds for the correct mechanism are below its guarantee. All bounds for a
# mechanism with too little noise are above: the audit finds the mistake from messages
# only. A lower bound above the guarantee refutes it, but a bound below it proves
# nothing.

# %%
# JAX and its CUDA libraries stay as they are
# !pip freeze | grep ^jax > jax.txt; pip install -qc jax.txt $(ls fedjax*.whl)[privacy]

# %%
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image
from scipy.stats import binomtest, norm

from fedjax_muon import data, models
from fedjax_muon.core import Objective
from fedjax_muon.data import partition
from fedjax_muon.decentralized import (
    ExamplePrivacy,
    dense,
    dp_sgda,
    dsgd,
    engine as gossip_engine,
    topology,
)
from fedjax_muon.decentralized.private import private
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.privacy import gaussian_epsilon
from fedjax_muon.runs import plots, style
from fedjax_muon.runs.intervals import bars, half_width
from fedjax_muon.simulation import training
from fedjax_muon.tasks import auc

ROUNDS, WORLDS = 50, 1000
SEEDS = 10
AGENTS, CLIP_NORM, LR, DELTA = 5, 0.5, 1.0, 1e-3
print(jax.devices())

# %% [markdown]
# ## The graph

# %%
graph = topology.erdos_renyi(AGENTS, 0.5, key=jax.random.key(1)).graph
W = topology.metropolis(graph)

Path("runs").mkdir(exist_ok=True)
plots.graph(graph, Path("runs/graph.png"), title="five agents")
Image("runs/graph.png", width=330)

# %% [markdown]
# ## The guarantee
#
# In every iteration an agent clips the gradient of each of its examples to norm
# `CLIP_NORM`, adds noise to their mean, moves, and averages its parameters with those
# of its neighbors (DP-SGDA). An `ExamplePrivacy` decides how batches are drawn, clipped
# and noised: here, all examples of an agent in every iteration, and the least noise for
# an epsilon. Its guarantee names the adversary and the assumptions.

# %%
cells = data.load("breast_cancer")
parts = partition.iid(cells.y_train, AGENTS, key=jax.random.key(2))
size = len(parts[0])
method = dp_sgda(lr=LR)
promise = partial(ExamplePrivacy, clip_norm=CLIP_NORM, delta=DELTA, rounds=ROUNDS)


def bound(epsilon):
    return promise(epsilon=epsilon).bound(method, size, size)


print(bound(1.0).calibrated([size]).guarantee.statement())

# %% [markdown]
# ## Training
#
# The model is linear. The objective is the area under the ROC curve, which is a minimax
# problem. The noise comes from the operating system, anew for every run, so that the
# numbers differ a little from one execution of this notebook to the next.

# %%
task = auc(
    models.MLP(2, ()), cells.x_train.shape[1:], share=float(cells.y_train.mean())
)
how = {"task": task, "dataset": cells, "parts": parts}
agents = partial(decentralize, **how, weights=W, batch_size=size)


def curve(simulation, seed):
    state = simulation.init(jax.random.key(seed))
    _, rows = training.run(simulation, state, rounds=ROUNDS, evaluate_every=5)
    return np.array([(row["round"], row["test_auc"]) for row in rows])


runs = {"not private": agents(dsgd(lr=LR))}
TRAINED = (4.0, 1.0, 0.25)
for epsilon in TRAINED:
    runs[f"epsilon = {epsilon:g}"] = agents(method, privacy=promise(epsilon=epsilon))
curves = {
    name: np.array([curve(simulation, seed) for seed in range(SEEDS)])
    for name, simulation in runs.items()
}
for name, runs in curves.items():
    print(f"{name:15} test AUC {runs[:, -1, 1].mean():.3f}")

# %% [markdown]
# ## The attack
#
# The adversary sees all messages, controls all agents but one, and knows all examples.
# The only question is whether one record, the canary, is among those of agent 0. In the
# worst case, its gradient is orthogonal to all others and far above the clip norm. A
# world is a whole run of the same mechanism on the same graph, with the canary
# (`weight` 1) or without it (0).

# %%
targets = jnp.arange(1.0, AGENTS + 1)  # one other example of each agent


def example_grad(x, batch, key):
    """Gradients of the example, and of the canary in the second coordinate."""
    target, weight = batch
    return jnp.array([[x[0] - target, 0.0], [0.0, 100.0 * weight]])


@jax.jit
@partial(jax.vmap, in_axes=(0, None, 0))
def world(weight, noise, key):
    """All agents' parameters in the canary's direction, [T + 1, m]."""
    mean = lambda x, batch, key: example_grad(x, batch, key).mean(0)
    objective = Objective(mean, example_grad=example_grad)
    algorithm = private(method, bound(1.0).mechanism, noise)
    mixer = dense(W)
    start, step = gossip_engine.make(algorithm, objective, mixer, AGENTS)
    batches = targets, jnp.zeros(AGENTS).at[0].set(weight)

    def iteration(state, _):
        return step(state, batches, key), state.agents.params[:, 1]

    everywhere = jnp.zeros((AGENTS, 2))
    state = start(everywhere[0], batches, key)
    state, xs = jax.lax.scan(iteration, state, None, ROUNDS)
    last = state.agents.params[:, 1]
    return jnp.concatenate([everywhere[None, :, 1], xs, last[None]])


# %% [markdown]
# From the parameters and the weights of the graph, the adversary computes the releases
# of agent 0, adds them up, since the canary moves all by the same amount, and decides
# by a threshold. For Gaussian noise, the error rates bound epsilon from below, with a
# confidence of 95%. The *correct* mechanism uses the calibrated noise. The *mistaken*
# one uses the noise that would suffice if the adversary saw only the mean of the
# agents, which a graph does not guarantee.


# %%
def lower_bound(used, seed):
    """A bound of epsilon if the noise is `used`."""
    scores = []
    for there, key in enumerate(jax.random.split(jax.random.key(seed))):
        keys = jax.random.split(key, WORLDS)
        x = np.asarray(world(jnp.full(WORLDS, float(there)), used, keys))
        # x <- W (x - lr released)
        released = (x[:, :-1] - x[:, 1:] @ np.linalg.inv(W).T) / LR
        scores.append(released[..., 0].sum(1))
    threshold = (ROUNDS + 1) * CLIP_NORM / size / 2
    wrong = (scores[0] > threshold).sum(), (scores[1] <= threshold).sum()
    interval = lambda n: binomtest(int(n), WORLDS).proportion_ci(0.95, method="exact")
    mu = -sum(norm.ppf(interval(n).high) for n in wrong)
    return gaussian_epsilon(1 / mu, DELTA) if mu > 0 else 0.0


EPSILONS = (0.5, 1.0, 2.0, 4.0)
lower = {"correct": [], "mistaken: noise / √5": []}
for seed, epsilon in enumerate(EPSILONS):
    noise = bound(epsilon).calibrated([size]).noise_scale
    for name, used in zip(lower, (noise, noise / AGENTS**0.5), strict=True):
        lower[name].append(lower_bound(used, seed))
        print(f"promised {epsilon:g}, {name}: at least {lower[name][-1]:.2f}")

# %%
plt.rcParams.update(style.STYLE)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")

public, *private_scores = (runs[:, -1, 1] for runs in curves.values())
left.axhline(public.mean(), color=style.NOTE, lw=1, label="not private")
means = np.mean(private_scores, axis=1)
reach = bars(means, half_width(np.transpose(private_scores)), 0.5, 1)
words = f"mean of {SEEDS} seeds, 95% interval"
left.errorbar(TRAINED, means, reach, fmt="o", label=words)
left.set(xlabel="epsilon", ylabel="test AUC", xscale="log", title="utility")
left.minorticks_off()
left.set_xticks(TRAINED, [f"{epsilon:g}" for epsilon in TRAINED])
left.legend(loc="lower right")

right.plot(EPSILONS, EPSILONS, "k--", lw=1, label="guarantee")
for (name, found), marker in zip(lower.items(), "os", strict=True):
    right.loglog(EPSILONS, found, marker, label=name)
right.minorticks_off()
right.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
right.set_yticks((0.25, 0.5, 1, 2, 4, 8), ("0.25", "0.5", "1", "2", "4", "8"))
right.set(xlabel="guaranteed epsilon", ylabel="lower bound of epsilon")
right.set_title("audit")
right.legend()
plt.show()
