# %% [markdown]
# # Quickstart: three algorithms on heterogeneous clients
#
# 16 clients hold handwritten digits, each mostly a few of the ten. A server trains one
# model with them by FedAvg, by Local Muon, and by FedMuon, and never sees an image.

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
from pathlib import Path

import jax
import numpy as np
from IPython.display import Image

from fedjax_muon import data, models, simulation, tasks
from fedjax_muon.algorithms import ALL
from fedjax_muon.data import partition
from fedjax_muon.reporting import comparison, plots
from fedjax_muon.simulation import training

ROUNDS = 60

# %% [markdown]
# ## The labels of each client
#
# Each digit is divided among the clients by its own draw of Dirichlet(0.1). The smaller
# this number, the more the clients differ.

# %%
digits = data.load("digits")
parts = partition.dirichlet(digits.y_train, 16, alpha=0.1, key=jax.random.key(0))

Path("runs").mkdir(exist_ok=True)
counts = partition.label_counts(digits.y_train, parts, len(digits.classes))
plots.label_counts(counts, digits.classes, Path("runs/clients.png"))
Image("runs/clients.png", width=700)

# %% [markdown]
# ## Training
#
# A task is a model and its loss. An algorithm is made from its hyper-parameters, like
# an optax optimizer; `ALL` lists the library's methods by name. In every round, 8 of
# the clients take 5 local steps each. All rounds between two evaluations are one call
# of one compiled program.

# %%
task = tasks.classification(models.MLP(10, (64, 64)), digits.x_train.shape[1:])
sizes = {"cohort_size": 8, "local_steps": 5, "batch_size": 32}
rates = {"fedavg": 0.3, "local_muon": 0.3, "fedmuon": 0.01}  # the best of a grid
seeds = (1, 2)


def train(name):
    algorithm = ALL[name].function(lr=rates[name])
    simulated = simulation.federate(algorithm, task, digits, parts, **sizes)
    for seed in seeds:
        state = simulated.init(jax.random.key(seed))
        _, rows = training.train(simulated, state, rounds=ROUNDS, evaluate_every=5)
        yield {column: np.array([row[column] for row in rows]) for column in rows[0]}


runs = {ALL[name].label: list(train(name)) for name in rates}

# %% [markdown]
# ## Comparison
#
# A round of FedMuon costs twice the bytes, since momenta travel with the parameters.
# The target is 90 % of the best accuracy.

# %%
target = comparison.target_score(runs)
for row in comparison.summarize(runs, target):
    cost = f"{row.rounds_to_target:.0f} rounds and {row.megabytes_to_target:.1f} MB"
    reached = f"after {cost}" if np.isfinite(row.rounds_to_target) else "not reached"
    accuracy = f"{row.score_mean:.1%} ± {row.score_std:.1%}"
    print(f"{row.method:12} {accuracy}, {target:.1%} {reached}")

# %%
plots.curves(runs, Path("runs/curves.png"), title="digits, 16 clients", target=target)
Image("runs/curves.png", width=1000)

# %% [markdown]
# FedMuon is the most accurate at the end, FedAvg reaches the target with the fewest
# bytes. Two seeds of one partition are an example, not a comparison; for that, see
# [sweeps](sweeps.ipynb) and `fedjax-muon compare`.
#
# Next: [a rule and an algorithm of your own](own_transformation.ipynb).
