# %% [markdown]
# # Quickstart: three algorithms on heterogeneous clients
#
# 16 clients have handwritten digits, and most of them have only a few of the ten
# classes. A server trains one model with FedAvg, Local Muon and FedMuon. It never
# receives an image.
#
# **Result.** FedMuon ends with the highest accuracy, 97.6%. FedAvg reaches the target
# with the fewest bytes. Local Muon, whose clients do not share momenta, needs the most
# bytes. Two seeds of one partition are an example, not a comparison: for comparisons,
# see [sweeps](sweeps.ipynb) and `fedjax-muon compare`.

# %%
# JAX and its CUDA libraries stay as they are
# !pip freeze | grep ^jax > jax.txt; pip install -qc jax.txt fedjax*.whl

# %%
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image

import fedjax_muon as fm
from fedjax_muon.algorithms import ALL
from fedjax_muon.runs import plots, summary

ROUNDS = 60
print(jax.devices())

# %% [markdown]
# ## The labels of each client
#
# The examples of each class are divided among the clients by a draw from
# Dirichlet(0.1). A smaller parameter gives more heterogeneous clients.

# %%
digits = fm.data.load("digits")
clients = fm.partition.dirichlet(digits.y_train, 16, alpha=0.1, key=jax.random.key(0))

fm.partition.plot(clients, digits.y_train, digits.classes)
plt.show()

# %% [markdown]
# ## Training
#
# A task is a model and its loss. An algorithm is made from its hyperparameters, like
# an optax optimizer; `ALL` lists the library's methods by name. In every round, 8
# clients take 5 local steps each. All rounds between two evaluations are one call of
# one compiled program.

# %%
task = fm.tasks.classification(fm.models.MLP(10, (64, 64)), digits)
sizes = {"cohort": 8, "local_steps": 5, "batch_size": 32}
rates = {"fedavg": 0.3, "local_muon": 0.3, "fedmuon": 0.01}  # the best of a grid
seeds = (1, 2)


def train(name):
    algorithm = ALL[name].function(lr=rates[name])
    simulation = fm.federate(algorithm, task, digits, clients, **sizes)
    for seed in seeds:
        state = simulation.init(jax.random.key(seed))
        _, rows = fm.run(simulation, state, rounds=ROUNDS, evaluate_every=5)
        yield {column: np.array([row[column] for row in rows]) for column in rows[0]}


runs = {ALL[name].label: list(train(name)) for name in rates}

# %% [markdown]
# ## Comparison
#
# A round of FedMuon costs twice the bytes, since momenta are sent with the parameters.
# The target is 90% of the best accuracy.

# %%
target = summary.target_score(runs)
for row in summary.summarize(runs, target):
    cost = f"{row.rounds_to_target:.0f} rounds and {row.megabytes_to_target:.1f} MB"
    reached = f"after {cost}" if np.isfinite(row.rounds_to_target) else "not reached"
    accuracy = f"{row.score_mean:.1%} ± {row.score_std:.1%}"
    print(f"{row.method:12} {accuracy}, {target:.1%} {reached}")

# %%
Path("runs").mkdir(exist_ok=True)
plots.curves(runs, Path("runs/curves.png"), title="digits, 16 clients", target=target)
Image("runs/curves.png", width=750)

# %% [markdown]
# ## Next
#
# [Custom rules and algorithms](own_transformation.ipynb).
