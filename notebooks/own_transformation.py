# %% [markdown]
# # Custom rules and algorithms
#
# A local rule is any optax transformation without a learning rate. Here it is the sign
# of an exponential average of gradients. FedAvg uses it on digits of 16 clients.
#
# **Result.** The custom rule loses to FedAvg only on heterogeneous clients. On
# identical clients, it is as accurate at the same learning rate. A larger rate that
# falls recovers most of the gap. SCAFFOLD, which corrects the drift of clients,
# recovers all of it with the same rule and rate. The curves show one seed, so
# differences of a point are not a ranking.

# %%
# JAX and its CUDA libraries stay as they are
# !pip freeze | grep ^jax > jax.txt; pip install -qc jax.txt fedjax*.whl

# %%
import jax

print(jax.devices())

# %%
import jax
import jax.numpy as jnp
import optax

import fedjax_muon as fm


def sign_of_average(decay=0.9):
    def update(grads, average, params=None):
        average = optax.tree.update_moment(grads, average, decay, order=1)
        return jax.tree.map(jnp.sign, average), average

    return optax.GradientTransformation(optax.tree.zeros_like, update)


digits = fm.data.load("digits")
key = jax.random.key(0)
clients = fm.partition.dirichlet(digits.y_train, 16, alpha=0.1, key=key)
task = fm.tasks.classification(fm.models.MLP(classes=10), digits)
algorithm = fm.fedavg(lr=0.001, rule=sign_of_average())
sizes = {"cohort": 8, "local_steps": 5, "batch_size": 32}
simulation = fm.federate(algorithm, task, digits, clients, **sizes)
state = simulation.init(jax.random.key(1))
state, history = fm.run(simulation, state, rounds=50)
print(f"test accuracy after 50 rounds: {history[-1]['test_accuracy']:.3f}")

# %% [markdown]
# ## The same rule in another algorithm
#
# SCAFFOLD corrects local gradients for the differences between clients. The rule acts
# on the corrected gradient, so SCAFFOLD takes the same rule.

# %%
import matplotlib.pyplot as plt

from fedjax_muon.runs.style import STYLE, Label, label_ends, styles

ROUNDS = 50


def curve(algorithm):
    simulation = fm.federate(algorithm, task, digits, clients, **sizes)
    state = simulation.init(jax.random.key(1))
    _, history = fm.run(simulation, state, rounds=ROUNDS, evaluate_every=5)
    return [row["round"] for row in history], [row["test_accuracy"] for row in history]


curves = {
    "FedAvg": curve(fm.fedavg(lr=0.3)),
    "FedAvg, custom rule": curve(algorithm),
    "SCAFFOLD, custom rule": curve(fm.scaffold(lr=0.001, rule=sign_of_average())),
}

# %% [markdown]
# ## Why the rule loses to FedAvg
#
# A sign discards the size of a gradient. On heterogeneous clients, a client's last
# steps are then as long as its first, in the direction of its own classes. If this is
# the reason, the gap should close on identically distributed clients, and should shrink
# with a falling learning rate. Each number is the mean of three seeds.


# %%
def final(algorithm, parts):
    simulation = fm.federate(algorithm, task, digits, parts, **sizes)
    states = [simulation.init(jax.random.key(seed)) for seed in (1, 2, 3)]
    runs = [
        fm.run(simulation, state, rounds=ROUNDS, evaluate_every=ROUNDS)
        for state in states
    ]
    return sum(history[-1]["test_accuracy"] for _, history in runs) / len(runs)


same = fm.partition.iid(digits.y_train, 16, key=key)
decay = optax.cosine_decay_schedule(0.003, ROUNDS)
custom = {"0.001": 0.001, "0.003": 0.003, "falling from 0.003": decay}
tried = {"FedAvg": fm.fedavg(lr=0.3)} | {
    f"custom rule, lr {words}": fm.fedavg(lr=lr, rule=sign_of_average())
    for words, lr in custom.items()
}
for name, method in tried.items():
    apart, together = final(method, clients), final(method, same)
    print(f"{name:35} heterogeneous {apart:.3f}, identical {together:.3f}")

# %% [markdown]
# ## A custom algorithm
#
# An exchange has three functions: the server's broadcast, the client's message, and the
# server's step on the mean message. In this algorithm, a client sends the sign of its
# change of every parameter, and the server moves every parameter by a fixed length in
# the direction of the majority. Client $i$ starts at the broadcast $x$ and takes $K$
# steps to $x_i$; then
#
# $$x \leftarrow x + \gamma_t\ \mathrm{sign}\Big(\sum_i \mathrm{sign}(x_i - x)\Big).$$
#
# This is signSGD with majority vote (Bernstein et al. 2018, arXiv:1810.05291), applied
# to local updates instead of gradients.


# %%
@fm.recorded
def majority_vote(lr: fm.Hyper = 0.1, *, server_lr: fm.Hyper = 0.005) -> fm.Algorithm:
    sgd = optax.identity()

    def client(objective, broadcast, client_state, batches, round):
        def step(carry, batch, key):
            x, opt = carry
            g = objective.grad(x, batch, key)
            return fm.move(objective, x, fm.value_at(lr, round), sgd, opt, g), ()

        carry = broadcast.params, sgd.init(broadcast.params)
        (x, _), _ = fm.local_steps(step, carry, batches, round)
        votes = fm.tree.map(jnp.sign, fm.tree.sub(x, broadcast.params))
        return fm.ParamsMessage(votes), client_state

    def server(state, mean, round):
        majority = fm.tree.map(jnp.sign, mean)
        return fm.tree.add_scaled(state, fm.value_at(server_lr, round), majority)

    main = fm.Exchange(fm.broadcast_state, client, server)
    return fm.Algorithm(fm.ParamsMessage, fm.no_client_state, (main,))


# %% [markdown]
# `federate` samples cohorts, draws batches, averages messages and counts bytes. A
# hyperparameter that is read by `value_at` may be a schedule of the round index.
# `recorded` makes numeric arguments annotated `Hyper` arguments of the compiled
# programs, so that sweeps can vary them.

# %%
falling = optax.cosine_decay_schedule(0.01, ROUNDS)
curves["Majority vote"] = curve(majority_vote(server_lr=falling))

# %%
plt.rcParams.update(STYLE)
figure, axis = plt.subplots(figsize=(6.5, 4), dpi=160, layout="constrained")
looks, ends = styles(curves), []
for name, (rounds, accuracy) in curves.items():
    axis.plot(rounds, accuracy, **looks[name])
    ends.append(Label(name, rounds[-1], accuracy[-1], looks[name]["color"]))
axis.set(
    xlabel="round", ylabel="test accuracy", title="digits, 16 clients, 8 per round"
)
label_ends(axis, ends, height=3.2)
plt.show()
for name, (_, accuracy) in curves.items():
    print(f"{name:22} {accuracy[-1]:.3f}")
