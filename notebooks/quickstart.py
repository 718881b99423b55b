# %% [markdown]
# # Quickstart: three algorithms, clients that are not alike
#
# 16 clients hold handwritten digits, each mostly a few of the ten. A server trains one
# model with them by FedAvg, by Local Muon, and by FedMuon, and never sees a digit.

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
from pathlib import Path

import jax
import numpy as np
from IPython.display import Image

from fedjax_muon import (
    comparison,
    data,
    models,
    partition,
    plots,
    simulation,
    tasks,
    training,
)
from fedjax_muon.algorithms import ALL

ROUNDS = 60

# %% [markdown]
# ## Who has which digits
#
# Each digit is divided over the clients by its own draw of Dirichlet(0.1). The smaller
# this number, the less alike the clients.

# %%
digits = data.load("digits")
parts = partition.dirichlet(digits.y_train, 16, alpha=0.1, key=jax.random.key(0))

Path("runs").mkdir(exist_ok=True)
counts = partition.label_counts(digits.y_train, parts, len(digits.classes))
plots.label_counts(counts, digits.classes, Path("runs/clients.png"))
Image("runs/clients.png", width=700)

# %% [markdown]
# ## Train
#
# A task is a model and its loss. An algorithm is a function of a gradient; `ALL` has
# those of the library by name. In every round 8 of the clients work through 5 batches
# each. All rounds between two evaluations are one call of one compiled program.

# %%
task = tasks.classification(models.MLP(10, (64, 64)), digits.x_train.shape[1:])
sizes = {"cohort_size": 8, "local_steps": 5, "batch_size": 32}
rates = {"fedavg": 0.3, "local_muon": 0.3, "fedmuon": 0.01}  # the best of a grid
seeds = (1, 2)


def train(name):
    algorithm = partial(ALL[name], lr=rates[name])
    simulated = simulation.simulate(algorithm, task, digits, parts, **sizes)
    for seed in seeds:
        state = simulated.init(jax.random.key(seed))
        _, rows = training.run(simulated, state, rounds=ROUNDS, evaluate_every=5)
        yield {column: np.array([row[column] for row in rows]) for column in rows[0]}


runs = {ALL[name].label: list(train(name)) for name in rates}

# %% [markdown]
# ## Compare
#
# A round of FedMuon costs twice the bytes, since momenta travel with the parameters.
# The target is 90 % of the best accuracy.

# %%
target = comparison.target_score(runs)
for row in comparison.summarize(runs, target):
    print(
        f"{row.method:12} {row.score_mean:.1%} ± {row.score_std:.1%}, "
        f"{target:.1%} after {row.rounds_to_target:.0f} rounds "
        f"and {row.megabytes_to_target:.1f} MB"
    )

# %%
plots.curves(runs, Path("runs/curves.png"), title="digits, 16 clients", target=target)
Image("runs/curves.png", width=1000)

# %% [markdown]
# FedMuon is the most accurate at the end, FedAvg reaches the target with the fewest
# bytes. Two seeds of one partition are an example, no comparison: that is what
# [sweeps](sweeps.ipynb) and `fedjax-muon compare` are for.
#
# Next: [a rule and an algorithm of your own](own_transformation.ipynb).
