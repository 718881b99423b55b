# %% [markdown]
# # Federate a gradient transformation of your own
#
# A local rule is any optax transformation without learning rate. Here it is the sign of
# an exponential average of gradients, in FedAvg, on digits that 16 clients hold.

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
