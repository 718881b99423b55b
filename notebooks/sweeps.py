# %% [markdown]
# # Sweeps: learning rates and seeds in one program
#
# A fair comparison of algorithms needs a tuned learning rate for each. Here two
# algorithms run with five learning rates and two seeds each. The best rate is chosen on
# validation examples and reported on test examples.
#
# **Result.** At its best learning rate, FedMuon is more accurate than FedAvg, on
# validation and on test examples. Each best rate is inside its grid, so a wider grid is
# not needed. The figure shows how much a wrong rate costs: tune every method
# before you compare. Two seeds do not resolve small differences.

# %%
# JAX and its CUDA libraries stay as they are
# !pip freeze | grep ^jax > jax.txt; pip install -qc jax.txt fedjax*.whl

# %%
from pathlib import Path

import jax
import numpy as np
from IPython.display import Image

import fedjax_muon as fm
from fedjax_muon.algorithms import ALL
from fedjax_muon.runs import plots, summary
from fedjax_muon.runs.summary import Point

ROUNDS, SEEDS = 30, (0, 1)
RATES = {
    "fedavg": (0.03, 0.1, 0.3, 1.0, 3.0),
    "fedmuon": (0.001, 0.003, 0.01, 0.03, 0.1),
}
print(jax.devices())

# %% [markdown]
# ## Data
#
# A tenth of the training examples is held out for validation. Every seed has its own
# partition of the others.

# %%
digits, validation = fm.data.hold_out(fm.data.load("digits"), 0.1)
task = fm.tasks.classification(fm.models.MLP(10, (32, 32)), digits)
sizes = {"cohort": 8, "local_steps": 5, "batch_size": 32}
keys = {seed: jax.random.split(jax.random.key(seed)) for seed in SEEDS}
parts = {
    seed: fm.partition.dirichlet(digits.y_train, 16, alpha=0.1, key=keys[seed][0])
    for seed in SEEDS
}

# %% [markdown]
# ## A grid as a list of cells
#
# A cell has hyperparameters, a key and a partition. Each grid compiles once; cells run
# sequentially on a CPU and in parallel on an accelerator. Diverged cells are flagged;
# the sweep continues.


# %%
def points_of(name):
    simulation = fm.federate(ALL[name].function(), task, digits, parts[0], **sizes)
    cells = [
        fm.Cell({"lr": lr}, keys[seed][1], parts[seed])
        for lr in RATES[name]
        for seed in SEEDS
    ]
    how = {"rounds": ROUNDS, "evaluate_every": 5, "validation": validation}
    outcomes = [
        run for group in fm.run_cells(simulation, cells, **how) for run in group
    ]
    for i, lr in enumerate(RATES[name]):
        seeds = outcomes[i * len(SEEDS) : (i + 1) * len(SEEDS)]
        runs = [columns(run.rows) for run in seeds if run.diverged is None]
        yield Point({"lr": lr}, runs, diverged=len(seeds) - len(runs))


def columns(rows):
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


points = {ALL[name].label: list(points_of(name)) for name in RATES}

# %% [markdown]
# ## The best learning rates

# %%
best = {label: summary.best(grid) for label, grid in points.items()}
for label, point in best.items():
    chosen, _ = point.last("validation_accuracy")
    tested, spread = point.last("test_accuracy")
    print(
        f"{label:8} lr {point.hyper['lr']:<5g} validation {chosen:.1%}, "
        f"test {tested:.1%} ± {spread:.1%}"
    )

# %% [markdown]
# ## Figure
#
# The final test accuracy against the learning rate, one panel per method.

# %%
Path("runs").mkdir(exist_ok=True)
plots.grids(points, Path("runs/grids.png"), title=f"digits, {ROUNDS} rounds")
Image("runs/grids.png", width=700)
