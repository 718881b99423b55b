# %% [markdown]
# # Custom rules and algorithms
#
# A local rule is any optax transformation without a learning rate. Here it is the sign
# of an exponential average of gradients, in FedAvg, on digits that 16 clients hold.

# %%
import subprocess
import sys
from glob import glob
from importlib.util import find_spec

if not find_spec("fedjax_muon"):
    sources = glob("fedjax_muon-*.whl")
    if not sources:
        raise FileNotFoundError(
            "no fedjax_muon-*.whl here: run `pip wheel --no-deps -w dist .` in a clone "
            "of the repository, and upload the file in dist beside this notebook"
        )
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *sources], check=True)

# %%
import jax
import jax.numpy as jnp
import optax

from fedjax_muon import algorithms, data, models, simulation, tasks
from fedjax_muon.data import partition
from fedjax_muon.simulation import training


def sign_of_average(decay=0.9):
    def update(grads, average, params=None):
        average = optax.tree.update_moment(grads, average, decay, order=1)
        return jax.tree.map(jnp.sign, average), average

    return optax.GradientTransformation(optax.tree.zeros_like, update)


digits = data.load("digits")
parts = partition.dirichlet(digits.y_train, 16, alpha=0.1, key=jax.random.key(0))
task = tasks.classification(models.MLP(classes=10), digits.x_train.shape[1:])
algorithm = algorithms.fedavg(lr=0.001, rule=sign_of_average())
sizes = {"cohort_size": 8, "local_steps": 5, "batch_size": 32}
simulated = simulation.federate(algorithm, task, digits, parts, **sizes)
state, rows = training.train(simulated, simulated.init(jax.random.key(1)), rounds=50)
print(f"test accuracy after 50 rounds: {rows[-1]['test_accuracy']:.3f}")

# %% [markdown]
# ## The same rule in another algorithm
#
# SCAFFOLD corrects local gradients for the differences between clients. The rule is
# applied to the corrected gradient, so SCAFFOLD takes the same one.

# %%
import matplotlib.pyplot as plt

from fedjax_muon.reporting.plots import STYLE

ROUNDS = 50


def federate(algorithm):
    return simulation.federate(algorithm, task, digits, parts, **sizes)


def curve(simulated):
    state = simulated.init(jax.random.key(1))
    _, rows = training.train(simulated, state, rounds=ROUNDS, evaluate_every=5)
    return [row["round"] for row in rows], [row["test_accuracy"] for row in rows]


corrected = algorithms.scaffold(lr=0.001, rule=sign_of_average())
curves = {
    "FedAvg": curve(federate(algorithms.fedavg(lr=0.3))),
    "FedAvg, custom rule": curve(simulated),
    "SCAFFOLD, custom rule": curve(federate(corrected)),
}

# %% [markdown]
# ## A custom algorithm
#
# An exchange has three functions: the server's broadcast, the client's answer, and the
# server's step on the mean of the answers. In this algorithm a client sends the sign of
# its change of every parameter, and the server moves every parameter a fixed length in
# the direction of the majority. From the broadcast $x$, client $i$ takes $K$ steps to
# $x_i$; then
#
# $$x \leftarrow x + \gamma_t\ \mathrm{sign}\Big(\sum_i \mathrm{sign}(x_i - x)\Big).$$
#
# It is signSGD with majority vote (Bernstein et al. 2018, arXiv:1810.05291) on local
# moves in place of gradients.

# %%
from typing import Any, NamedTuple

from fedjax_muon.core import (
    Algorithm,
    Exchange,
    Hyper,
    broadcast_state,
    local_steps,
    move,
    no_client_state,
    recorded,
    tree,
    value_at,
)


class State(NamedTuple):
    params: Any


@recorded
def majority_vote(lr: Hyper = 0.1, *, server_lr: Hyper = 0.005) -> Algorithm:
    sgd = optax.identity()

    def client(objective, broadcast, client_state, batches, round):
        def step(carry, batch, key):
            x, opt = carry
            g = objective.grad(x, batch, key)
            return move(objective, x, value_at(lr, round), sgd, opt, g), ()

        carry = broadcast.params, sgd.init(broadcast.params)
        (x, _), _ = local_steps(step, carry, batches, round.key)
        votes = tree.map(jnp.sign, tree.sub(x, broadcast.params))
        return State(votes), client_state

    def server(state, mean, round):
        majority = tree.map(jnp.sign, mean)
        return tree.add_scaled(state, value_at(server_lr, round), majority)

    return Algorithm(
        State, no_client_state, (Exchange(broadcast_state, client, server),)
    )


# %% [markdown]
# `federate` samples the cohorts, draws batches, takes the mean and counts bytes. A
# hyper-parameter that is read by `value_at` may be a schedule of the round index.
# `recorded` makes numbers annotated `Hyper` arguments of the compiled programs, which
# sweeps can vary.

# %%
falling = optax.cosine_decay_schedule(0.01, ROUNDS)
curves["Majority vote"] = curve(federate(majority_vote(server_lr=falling)))

# %%
plt.rcParams.update(STYLE)
figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
for name, (rounds, accuracy) in curves.items():
    axis.plot(rounds, accuracy, label=name)
axis.set(xlabel="round", ylabel="test accuracy", title="digits, 16 clients, 8 a round")
axis.legend()
plt.show()
