# %% [markdown]
# # Federate a gradient transformation of your own
#
# A local rule is any optax transformation without learning rate. Here it is the sign of
# an exponential average of gradients, in FedAvg, on digits that 16 clients hold.

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
from functools import partial

import jax
import jax.numpy as jnp
import optax

from fedjax_muon import data, models, partition, simulation, tasks, training
from fedjax_muon.algorithms.fedavg import fedavg


def sign_of_average(decay=0.9):
    def update(grads, average, params=None):
        average = optax.tree.update_moment(grads, average, decay, order=1)
        return jax.tree.map(jnp.sign, average), average

    return optax.GradientTransformation(optax.tree.zeros_like, update)


digits = data.load("digits")
parts = partition.dirichlet(digits.y_train, 16, alpha=0.1, key=jax.random.key(0))
task = tasks.classification(models.MLP(classes=10), digits.x_train.shape[1:])
algorithm = partial(fedavg, rule=sign_of_average(), lr=0.001)
sizes = {"cohort_size": 8, "local_steps": 5, "batch_size": 32}
simulated = simulation.simulate(algorithm, task, digits, parts, **sizes)
state, rows = training.run(simulated, simulated.init(jax.random.key(1)), rounds=50)
print(f"test accuracy after 50 rounds: {rows[-1]['test_accuracy']:.3f}")

# %% [markdown]
# ## The same rule in another algorithm
#
# SCAFFOLD corrects every local gradient by what other clients' gradients are like. What
# is done with the corrected gradient is the rule's business, so it takes the same rule.

# %%
import matplotlib.pyplot as plt

from fedjax_muon.algorithms.scaffold import scaffold
from fedjax_muon.plots import STYLE

ROUNDS = 50


def simulate(algorithm):
    return simulation.simulate(algorithm, task, digits, parts, **sizes)


def curve(simulated):
    state = simulated.init(jax.random.key(1))
    _, rows = training.run(simulated, state, rounds=ROUNDS, evaluate_every=5)
    return [row["round"] for row in rows], [row["test_accuracy"] for row in rows]


own_rule = {"rule": sign_of_average(), "lr": 0.001}
curves = {
    "FedAvg": curve(simulate(partial(fedavg, lr=0.3))),
    "FedAvg, own rule": curve(simulated),
    "SCAFFOLD, own rule": curve(simulate(partial(scaffold, **own_rule))),
}

# %% [markdown]
# ## An algorithm of your own
#
# An algorithm is what the server broadcasts, what a client makes of it, and what the
# server makes of the clients' mean. In this one a client sends one bit for every
# parameter, whether it wants more or less of it, and the server moves every parameter a
# fixed length as the majority of the cohort wants. From the broadcast $x$, client $i$
# walks $K$ steps to $x_i$; then
#
# $$x \leftarrow x + \gamma_t\ \mathrm{sign}\Big(\sum_i \mathrm{sign}(x_i - x)\Big).$$
#
# It is signSGD with majority vote (Bernstein et al. 2018, arXiv:1810.05291) on local
# moves in place of gradients.

# %%
from typing import Any, NamedTuple

from fedjax_muon import tree
from fedjax_muon.core import Algorithm, Exchange, at, everything, local_steps, stateless


class State(NamedTuple):
    params: Any


def majority_vote(grad_fn, *, lr=0.1, server_lr=0.005):
    def client(shared, mine, batches, round):
        def step(x, batch, key):
            return tree.sub_scaled(x, lr, grad_fn(x, batch, key)), ()

        x, _ = local_steps(step, shared.params, batches, round.key)
        return tree.map(jnp.sign, tree.sub(x, shared.params)), mine

    def server(state, votes, round):
        majority = tree.map(jnp.sign, votes)
        return State(tree.add_scaled(state.params, at(server_lr, round), majority))

    return Algorithm(State, stateless, (Exchange(everything, client, server),))


# %% [markdown]
# That is all. `simulate` samples the cohorts, draws batches, takes the mean and counts
# bytes; a hyper-parameter that goes through `at` may be a function of the round.

# %%
falling = optax.cosine_decay_schedule(0.01, ROUNDS)
voting = partial(majority_vote, server_lr=falling)
curves["Majority vote"] = curve(simulate(voting))

# %%
plt.rcParams.update(STYLE)
figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
for name, (rounds, accuracy) in curves.items():
    axis.plot(rounds, accuracy, label=name)
axis.set(xlabel="round", ylabel="test accuracy", title="digits, 16 clients, 8 a round")
axis.legend()
plt.show()
