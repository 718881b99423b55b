"""Values that functions refuse, with the words of the message; see also the laws."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest
from flax import nnx
from optax.contrib import MuonDimensionNumbers

import fedjax_muon as fm
from fedjax_muon import aggregators, attacks, clocks, engine, models, staleness
from fedjax_muon.core import tree
from fedjax_muon.core.pair import Pair
from fedjax_muon.core.recipe import numbers_of, with_numbers
from fedjax_muon.data import imbalance, partition
from fedjax_muon.decentralized import ALL as GOSSIP, estimators, topology
from fedjax_muon.decentralized.engine import make
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.mixing import dense, shifted, sparse
from fedjax_muon.decentralized.private import private_gradient, private_storm
from fedjax_muon.decentralized.suda import Triple, suda
from fedjax_muon.engine import plans, sharding
from fedjax_muon.linalg.newton_schulz import orthogonalize, polar
from fedjax_muon.models.convolution import by_patches
from fedjax_muon.privacy.clipping import Difference, Each, Split
from fedjax_muon.simulation import batching
from fedjax_muon.tasks import adversarial, agnostic, auc
from fedjax_muon.tasks.augmentation import crop_and_flip
from fedjax_muon.tasks.heavy_tails import alpha_stable, gaussian, pareto
from fedjax_muon.tasks.lora import lora_classification
from fedjax_muon.tasks.metrics import hill
from fedjax_muon.tasks.quadratic import draw_quadratic
from fedjax_muon.tasks.robust import robust_logistic
from fedjax_muon.transforms.layout import leaf_axes
from tests.support.error_lines import refused_with

KEY = jax.random.key(0)
METHODS = {**fm.algorithms.ALL, **fm.minimax.ALL, **GOSSIP}
# numbers that may be larger than 1; all others are shares
LARGE = {"lr", "server_lr", "decay", "eps", "mu", "alpha", "scale", "floor", "high"}
LARGE |= {"clip_norm", "pull", "sigma", "weight", "shrink", "turn", "kappa"}
LARGE |= {"temperature", "max_slope"}
NO_SHARES = {("fedadamw", "align")}


@pytest.mark.parametrize("name", METHODS)
def test_every_number_of_every_method_has_a_range(name):
    make = METHODS[name].function
    for number in numbers_of(make()):
        for value in (math.nan, math.inf, -1.0, 1.5):
            if value == 1.5 and (number in LARGE or (name, number) in NO_SHARES):
                assert numbers_of(make(**{number: 1.5}))[number] == 1.5
                continue
            with pytest.raises(ValueError, match=f"^{number} must lie in .* got"):
                make(**{number: value})
    if name in GOSSIP or name in fm.minimax.ALL:
        with pytest.raises(ValueError, match=r"^lr\.y must lie in \[0, infinity\)"):
            make(lr=Pair(0.1, -1))
    for number, values in METHODS[name].grid.items():
        for value in values:
            make(**{number: value})


CLASSES = np.arange(40) % 4
PARTS = [np.arange(20), np.arange(20, 40)]
BINARY = [0, 1] * 9
MLP = models.MLP(2, (3,))
LLAMA = partial(models.llama, 61)
NONE = fm.Objective(lambda params, batch, key: params)
LIKE_ADAM = optax.scale_by_adam().init({"w": jnp.ones(2)})
ECHO = Gossip(
    lambda objective, params, mix, batch, iteration: mix(batch),
    lambda objective, state, mix, batch, iteration: mix(batch),
)
TRIPLE = Triple((1,), (1, 1), (1,))
RING = topology.metropolis(topology.ring(6))
split = lambda function, *given, key=KEY: lambda: function(CLASSES, *given, key=key)
shape_of = lambda model, *shape: (
    lambda: jax.eval_shape(model.init, KEY, jnp.zeros(shape))
)
BATCH_NORM = lambda rngs: nnx.BatchNorm(3, rngs=rngs)
LINEAR = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
FOUR = jnp.ones((4, 2))
IMAGE, NCHW = jnp.ones((2, 5, 5, 3)), ("NCHW", "OIHW", "NCHW")
GPT = models.GPT(61, context=14, width=4, depth=1, heads=1)
ASKED = {"prompt": [1, 2], "length": 5, "key": KEY}
sample = lambda **given: lambda: models.generate(GPT, {}, **ASKED | given)
X, Y = np.random.default_rng(0).normal(size=(60, 4)), np.array(["low", "high"] * 30)
arrays = lambda **given: lambda: fm.data.from_arrays(**{"x": X, "y": Y} | given)
ANN = {"ann": 9 * "to be or not"}
texts = lambda source=ANN, **given: lambda: fm.data.from_text(source, **given)
texts_by = lambda model: lambda: fm.problems.text(ANN, window=8, model=model)
ratios = lambda labels, shares: lambda: imbalance.with_ratios(labels, shares, key=KEY)
fewer = lambda labels, share: lambda: imbalance.drop_positives(labels, share, key=KEY)
ZERO, TWO, ONES = jnp.zeros((2, 2)), jnp.ones((2, 2)), jnp.ones(3)
axes = lambda numbers, *sizes: (
    lambda: leaf_axes(MuonDimensionNumbers(*numbers), np.zeros(sizes))
)
STACKED = lambda params: {"w": MuonDimensionNumbers(1, 2)}
init = lambda algorithm, params={"w": TWO}: lambda: engine.init(algorithm, params, 5)
FACTORS = {"a": np.zeros((2, 3)), "b": np.zeros((3, 4))}
KERNEL = {"layer": {**FACTORS, "kernel": np.zeros((2, 4))}}
LENET = jax.eval_shape(models.LeNet().init, KEY, jnp.zeros((1, 28, 28, 1)))["params"]
DENSE = jax.eval_shape(MLP.init, KEY, jnp.zeros((1, 5)))["params"]
adapters = lambda **options: lambda: lora_classification(MLP, DENSE, (5,), **options)


def heard(mixer, first=FOUR, later=FOUR):
    """Four agents hear two batches."""
    start, step = make(ECHO, NONE, mixer, 4)
    return lambda: step(start((), first, KEY), later, KEY)


VALUES = [
    # core
    (lambda: with_numbers(fm.fedavg(), {"mu": 0.5}), "fedavg has no hyperparameter"),
    (lambda: with_numbers(fm.fedmuon(), {"synced": 0.5}), "it has lr, momentum"),
    (lambda: with_numbers(fm.fedavg(), {"lr": -1.0}), "lr must lie in [0, infinity)"),
    (lambda: tree.pick(LIKE_ADAM, ("trace",)), "has no 'trace'; it has count, mom"),
    (lambda: tree.pick(optax.EmptyState(), ("mu",)), "it has no named parts"),
    (lambda: METHODS["fafed"].function(beta=lambda i: 0.5), "beta must be a number"),
    # low-rank adapters
    (lambda: fm.flora(ranks=(2, -1)), "ranks must be at least 0"),
    (lambda: fm.flexlora(ranks=(0,)), "ranks must be at least 1"),
    (init(fm.fedsubmuon(), KERNEL), "rank 3 does not fit a kernel of 2 x 4"),
    (init(fm.fedsubmuon_gt(), {"layer": FACTORS}), "..., folded=True"),
    (init(fm.fedex_lora(), {"layer": FACTORS}), "lora_classification(..., folded=True"),
    (init(fm.flora(), {"layer": FACTORS}), "lora_classification(..., folded=True"),
    (adapters(layers="query"), "layers must be a sequence of names, got"),
    (adapters(layers=()), "layers must be a sequence of names, got"),
    (adapters(rank=0), "rank must be at least 1, got 0"),
    (adapters(alpha=0.0), "alpha must lie in (0, infinity), got 0"),
    (adapters(layers=("Dense_0", "q_proj")), "has no layers ['q_proj'] with a kernel"),
    (adapters(layers=("head",)), "no layers ['head'] with a kernel outside its head"),
    (adapters(layers=("Dense_0",), head="last"), "no layer 'last' to be its head; it"),
    (
        lambda: lora_classification(
            models.LeNet(), LENET, (28, 28, 1), layers=("Conv_0",), head="head"
        ),
        "has shape (5, 5",
    ),
    # engine
    (lambda: plans.chunked(0), "chunk_size must be at least 1, got 0"),
    (lambda: engine.init(fm.fedavg(), jnp.ones(2), 0), "num_clients must be at least"),
    (lambda: sharding.mesh_of([]), "one or more devices"),
    (lambda: sharding.mesh_of([jax.devices()[0]] * 2), "each once"),
    # compression
    *(
        (lambda f=f: f(fm.fedavg(), fm.top_k(0.1), fields="m"), "a sequence of names")
        for f in (fm.compress, fm.compress_broadcasts)
    ),
    (
        init(fm.compress_broadcasts(fm.fedavg(), fm.truncated_svd(1), fields=["m"])),
        "no broadcast has a field 'm'; there are",
    ),
    (
        init(fm.compress_broadcasts(fm.fedavg(), fm.truncated_svd(1)), {"b": ONES}),
        "broadcast.params['b'] can't be",
    ),
    (lambda: fm.compress(fm.fedavg(), fm.top_k(0.1), feedback=1.1), "feedback must"),
    (lambda: fm.truncated_svd(0), "rank must be at least 1, got 0"),
    (lambda: fm.power_iteration(1, iterations=0), "iterations must be at least 1"),
    (lambda: fm.memory_share(0.0), "share must lie in (0, 1], got 0"),
    (lambda: fm.compression.rank_share(math.nan), "share must lie in (0, 1], got nan"),
    (lambda: fm.top_k(1.5), "share must lie in (0, 1], got 1.5"),
    (lambda: fm.chunked_top_k(0), "k must be at least 1, got 0"),
    (lambda: fm.chunked_top_k(1, 257), "chunk must be at most 256"),
    (lambda: fm.bins(9), "bits must be an integer from 1 to 8, got 9"),
    (lambda: fm.quantize(2.5), "bits must be an integer from 1 to 8, got 2.5"),
    # gossip
    (lambda: estimators.storm(Pair(0.1, -1)), "beta.y must lie in [0, 1]"),
    (lambda: estimators.noisy(estimators.fresh(), -1.0), "sigma must lie in [0, inf"),
    (lambda: suda(triple=TRIPLE), "B2 must sum up to 0"),
    (lambda: Each(Pair(1.0, -1.0)), "clip_norm.y must lie in (0, infinity)"),
    (lambda: Each(lambda t: 1.0), "clip_norm must be a number"),
    (lambda: Difference(math.nan), "clip_norm must lie in (0, infinity), got nan"),
    (lambda: Split(1.0, math.inf), "change_clip_norm must lie in (0, infinity)"),
    (lambda: Split(1.0, Pair(1.0, 1.0)), "both numbers or both pairs"),
    (lambda: private_storm(Each(1.0), batch_size=0), "batch_size must lie in (0"),
    (lambda: private_storm(Each(1.0), beta=2, batch_size=1), "beta must lie in [0, 1]"),
    (lambda: private_storm(Each(1.0), batch_size=1, first_size=-1), "first_size must"),
    (lambda: private_gradient(1.0, noise_multiplier=-1, batch_size=1), "noise_multi"),
    (lambda: dense(RING[:5]), "weights must be [m, m] or [T, m, m], got shape (5, 6)"),
    (lambda: sparse(2 * RING), "sum to 1, one is off by 1"),
    (lambda: shifted(np.full((2, 2), np.nan)), "sum to 1, one is off by nan"),
    (lambda: sparse(lambda t: RING), "give a function of t to `dense`"),
    (lambda: shifted(lambda t: RING), "give a function of t to `dense`"),
    (lambda: make(ECHO, NONE, dense(RING), 0), "agents must be at least 1, got 0"),
    (lambda: make(ECHO, NONE, dense(RING), 6, jax.devices()[:4]), "divide the 6"),
    *(
        (heard(mixer(np.eye(3)), FOUR), "for 3 agents, but")
        for mixer in (dense, shifted)
    ),
    *(
        (heard(sparse(np.eye(4)), told), "batches must be the 4 agents")
        for told in (ONES, 1.0)
    ),
    (lambda: topology.ring(0), "agents must be at least 1, got 0"),
    (lambda: topology.star(True), "agents must be a whole number, got True"),
    (lambda: topology.erdos_renyi(5, 1e-17, key=KEY), "p must lie in [1e-09, 1]"),
    (lambda: topology.erdos_renyi(5, 0.5, key=0), "key must be one typed key"),
    (lambda: topology.metropolis(nx.DiGraph([(0, 1)])), "got DiGraph"),
    (lambda: topology.constant(np.eye(2)), "undirected networkx.Graph, got ndarray"),
    (lambda: topology.metropolis(nx.Graph()), "graph must have at least one node"),
    (lambda: topology.constant(nx.Graph([("b", "b")])), "node 'b' has a self-loop"),
    (lambda: topology.check_mixing(topology.ring(4)), "got a graph; use metropolis"),
    (lambda: topology.spectral_gap(topology.ring(4)), "got a graph; use metropolis"),
    # linear algebra
    (lambda: orthogonalize(jnp.ones((2, 2)), coefficients=()), "three finite numbers"),
    (lambda: orthogonalize(jnp.ones((2, 2)), steps=-1), "integer >= 0, got -1"),
    (lambda: orthogonalize(jnp.ones((2, 2)), steps=2.0), "integer >= 0, got 2.0"),
    (lambda: orthogonalize(jnp.ones(3)), "got shape (3,); reshape it"),
    (lambda: polar(jnp.ones((3, 3), int)), "got int32"),
    (lambda: orthogonalize(jnp.ones((3, 3)), dtype=jnp.int8), "got int8"),
    # transformations
    (axes((0, 2), 2, 3), "axes that a leaf (2, 3) does not have"),
    (axes(((0, 5), 1), 2, 3), "axes that a leaf (2, 3) does not have"),
    (axes((0, 0), 2, 3), "name an axis twice for a leaf (2, 3)"),
    (axes(((0, -2), 1), 2, 3), "name an axis twice for a leaf (2, 3)"),
    (axes(()), "a leaf () does not have"),
    (lambda: fm.transforms.scale_by_fedadam(b1=1.0), "b1 must lie in [0, 1), got 1.0"),
    (lambda: fm.transforms.scale_by_fedyogi(b2=-0.1), "b2 must lie in [0, 1), got -0"),
    (lambda: fm.transforms.scale_by_fedadagrad(tau=0.0), "tau must lie in (0, inf"),
    (lambda: fm.transforms.muon(1.0), "momentum must lie in [0, 1), got 1.0"),
    (lambda: fm.transforms.biclip(-0.1, 1.0), "low must lie in [0, infinity), got -0"),
    (lambda: fm.transforms.biclip(0.1, -1.0), "high must lie in [0, infinity), got -1"),
    (lambda: fm.transforms.biclip(2.0, 1.0), "low must lie in [0, 1], got 2.0"),
    (lambda: fm.transforms.orthogonalize_blocks(0, 4), "period must be at least 1"),
    (lambda: fm.transforms.orthogonalize_blocks(3, 0), "blocks must be at least 1"),
    (
        lambda: fm.transforms.muon_dimension_numbers({"b": TWO}, exclude="head"),
        "sequence of names, got 'head'",
    ),
    (lambda: fm.transforms.normalize_axes("out", "out"), "the sides must be 'out'"),
    (lambda: fm.transforms.equilibrate("rows"), "the sides must be 'out'"),
    # models
    (shape_of(models.LeNet(), 2, 8, 8, 1), "at least 12 x 12, got shape"),
    (shape_of(models.EmnistCNN(), 2, 784), "at least 6 x 6, got shape"),
    (shape_of(models.ViT(), 2, 30, 32, 3), "multiples of"),
    (shape_of(models.ViT(dropout=1.0), 2, 32, 32, 3), "dropout must"),
    (shape_of(models.ViT(heads=0), 2, 32, 32, 3), "ViT's heads must be at least 1"),
    *(
        (shape_of(models.ALL[name](), 2, *image), "takes images [B, H, W, C]")
        for name in ("resnet18", "vit", "vit_tiny")
        for image in ((3072,), (32, 32))
    ),
    *(
        (shape_of(models.ResNet18(**sizes), 2, 32, 32, 3), "positive multiples of grou")
        for sizes in (
            *({"groups": 0}, {"groups": 3}, {"widths": ()}),
            {"groups": 2, "widths": (4, 0)},
        )
    ),
    (shape_of(models.GPT(61, heads=5), 2, 12), "must divide its width 768, got 5"),
    (shape_of(LLAMA(heads=4, key_heads=3), 2, 12), "must divide its heads 4, got 3"),
    (shape_of(LLAMA(head_width=5), 2, 12), "rotary needs heads of an even width, got"),
    (shape_of(models.GPT(61, depth=0), 2, 12), "GPT's depth must be at least 1, got 0"),
    (shape_of(models.GPT(61, dropout=1.0), 2, 12), "dropout must lie in"),
    (shape_of(models.GPT(61, context=11), 2, 12), "N from 1 to its context 11, got"),
    (shape_of(models.RNN(3, 4), 2, 28, 28, 1), "token ids [B, length]"),
    (shape_of(models.RNN(hidden=0), 2, 5), "RNN's hidden must be at least 1, got 0"),
    (
        sample(prompt=np.arange(10)),
        "14 tokens, the model's context, got 10 and 5; give",
    ),
    (sample(prompt=[3, 61]), "from 0 to 60, got 61"),
    (sample(prompt=[-1]), "from 0 to 60, got -1"),
    (sample(prompt=[1.5]), "or [N], one or more, got float64[1]; encode text"),
    (sample(prompt=np.zeros((2, 0), int)), "one or more, got int64[2, 0]"),
    (sample(temperature=0.0), "temperature must lie in (0, infinity), got 0.0"),
    (sample(top_k=0), "top_k must be at least 1, got 0"),
    (sample(top_k=62), "top_k must be at most 61, the model's vocabulary, got 62"),
    (sample(length=0), "length must be at least 1, got 0"),
    (lambda: models.generate(GPT, {"adapters": {}}, **ASKED), "lora.merged"),
    (
        lambda: models.from_nnx(lambda rngs: nnx.BatchNorm(3, rngs=rngs)),
        "LayerNorm for BatchNorm",
    ),
    (lambda: models.from_nnx(LINEAR), "from_nnx(lambda rngs: Linear(..., rngs=rngs))"),
    (lambda: models.from_nnx(lambda rngs: 3), "a function that returns a module"),
    (
        lambda: by_patches(IMAGE, IMAGE, (1, 1), "SAME", dimension_numbers=NCHW),
        "by_patches is for data",
    ),
    # tasks
    (lambda: fm.tasks.classification(LINEAR, (6,)), "makes one with models.from_nnx"),
    (lambda: crop_and_flip(-1), "padding must be at least 0, got -1"),
    (lambda: crop_and_flip(1.5), "padding must be a whole number"),
    (lambda: crop_and_flip()(KEY, np.zeros((3, 4), np.float32)), "can be cropped"),
    (lambda: gaussian(-1.0), "scale must lie in [0, infinity), got -1.0"),
    (lambda: pareto(1.0), "tail must lie in (1, infinity), got 1.0"),
    (lambda: pareto(1.5, -2.0), "scale must lie in [0, infinity), got -2.0"),
    (lambda: alpha_stable(2.1), "alpha must lie in (1, 2], got 2.1"),
    (lambda: alpha_stable(2.0, -1), "scale must lie in [0, infinity), got -1"),
    (lambda: gaussian(1.0)(KEY, (2,), jnp.int32), "real floating-point types, got int"),
    (lambda: hill(jnp.ones((2, 3)), 6), "between 1 and 5, got 6"),
    (lambda: draw_quadratic(KEY, 3, rank=2.5), "from 1 to k = 4"),
    (lambda: draw_quadratic(KEY, 3, shape=(0, 4, 3)), "shape must be at least 1"),
    (lambda: draw_quadratic(KEY, 3, curvature=0.0), "curvature must lie in (0, inf"),
    (lambda: draw_quadratic(KEY, 3, coupling=-0.1), "coupling must lie in [0, inf"),
    (lambda: draw_quadratic(KEY, 3, heterogeneity=math.nan), "heterogeneity must lie"),
    (lambda: auc(MLP, (5,), share=1.0), "share must lie in (0, 1)"),
    (lambda: auc(MLP, (5,), share="half"), "share must be a number"),
    (lambda: auc(models.MLP(3, ()), (5,)), "two classes; the model gives 3 logits"),
    (lambda: agnostic(MLP, (5,), 0), "num_clients must be at least 1, got 0"),
    (lambda: agnostic(MLP, (5,), 2, strength=-1), "strength must lie in"),
    (lambda: adversarial(MLP, (5,), radius=0.5, strength=-0.1), "strength must lie in"),
    (lambda: adversarial(MLP, (5,), radius=0), "radius must lie in (0, infinity)"),
    (lambda: robust_logistic(0, 5), "features must be at least 1"),
    (lambda: robust_logistic(3, 5, bend=-1.0), "bend must lie in"),
    (lambda: robust_logistic(3, 5, regularization=-1.0), "regularization must lie in"),
    # personal parameters
    (lambda: fm.keep_own(fm.fedavg(), "b"), "sequence of names, got 'b'"),
    (lambda: fm.keep_own(fm.fedavg(), []), "the name of a layer, got none"),
    (init(fm.keep_own(fm.fedavg(), ["head"])), "no parameter has 'head'"),
    (init(fm.keep_own(fm.fedavg(), ["w"])), "w cover all parameters"),
    (lambda: fm.ditto(fm.fedavg(), pull=-1.0), "pull must"),
    # norms of parameters
    (init(fm.muonh(), {"up": ZERO, "head": ZERO}), "['up'] is 0"),
    (
        init(fm.muonh(layout=STACKED), {"w": jnp.stack([TWO, ZERO])}),
        "draw it at random, or leave it out of the layout",
    ),
    (init(fm.keep_norms(fm.streaming_diloco())), "unlike those of streaming_diloco"),
    (
        init(fm.keep_norms(fm.compress_broadcasts(fm.fedavg(), fm.top_k(0.5)))),
        "other wrappers around keep_norms",
    ),
    (
        lambda: fm.transforms.hyperball().update(TWO, optax.EmptyState()),
        "hyperball needs the parameters",
    ),
    # robust rules and attacks
    (lambda: aggregators.trimmed_mean(0.5), "bad must lie in [0, 0.5), got 0.5"),
    (lambda: aggregators.trimmed_mean(-1), "bad must be at least 0, got -1"),
    (lambda: aggregators.krum(1, chosen=0), "chosen must be at least 1, got 0"),
    (lambda: aggregators.centered_clipping(0.0), "largest must"),
    (lambda: aggregators.bucketing(0), "size must be at least 1"),
    (lambda: fm.attack(fm.fedavg(), attacks.alie(), [-1]), "ids of clients"),
    (lambda: fm.robust(fm.fedavg(), 0.2), "must be a function such as median"),
    (lambda: fm.attack(fm.fedavg(), "alie", [1]), "must be a function such as alie"),
    # clocks and staleness
    (lambda: clocks.constant(-1.0), "-1"),
    (lambda: clocks.constant(0.0, 0.0), "must be positive"),
    (lambda: clocks.lognormal(-1.0, key=KEY), "-1"),
    (lambda: clocks.two_speeds(0.5, key=KEY), "0.5"),
    (lambda: clocks.measured([[1.0]]), "shape (1, 1)"),
    (lambda: clocks.absent(clocks.constant(), {1: [(3.0, 2.0)]}), "3"),
    (lambda: staleness.polynomial(-1.0), "-1"),
    (lambda: staleness.inverse(0.5), "0.5"),
    # stopping, pictures
    (lambda: fm.early_stopping("loss", patience=0, mode="min"), "patience must be at"),
    (lambda: fm.early_stopping("loss", patience=1, mode="less"), '"min" or "max"'),
    (
        lambda: fm.early_stopping("a", patience=1, mode="min", min_change=-1),
        "min_change must be at least 0",
    ),
    (
        lambda: fm.early_stopping("a", patience=1, mode="min")(None, {"round": 0}),
        "no metric 'a'; there are round",
    ),
    # partitions
    (split(partition.iid, 0), "num_clients must be at least 1, got 0"),
    (split(partition.iid, 41), "in 1..40 (the examples), got 41"),
    (split(partition.iid, 2.0), "a whole number, got 2.0"),
    (split(partition.iid, 2, key=0), "one typed key such as jax.random.key"),
    (split(partition.dirichlet, 2, math.nan), "alpha must lie in (0, infinity)"),
    (split(partition.quantity, 2, -1.0), "alpha must lie in (0, infinity)"),
    (split(partition.dirichlet_per_client, 2, 0.0), "alpha must lie in (0, infinity)"),
    (split(partition.dirichlet, 5, 1.0), "5 clients"),
    (split(partition.quantity, 5, 1.0), "min_size=10"),
    (split(partition.shards, 2, 0), "shards_per_client must be at least 1, got 0"),
    (split(partition.shards, 2, 21), "2 clients x 21 shards"),
    (split(partition.labels_per_client, 9, 5), "labels_per_client=5 of 4 classes"),
    (split(partition.labels_per_client, 3, 1), "out classes [3]; raise"),
    (lambda: partition.iid([[0, 1]], 1, key=KEY), "shape (1, 2)"),
    (lambda: partition.iid([0.0, 1.0], 1, key=KEY), "dtype float64"),
    (lambda: partition.label_counts([0, 1], [], 0), "num_classes must be at least 1"),
    (lambda: partition.label_counts([0, 3], [[0]], 3), "labels must be in 0..2, got"),
    (lambda: partition.label_counts([0, 1], [[0], [2]], 3), "client 1 holds"),
    (lambda: partition.by_owner([0.5]), "owners must be one or more integers or str"),
    (lambda: partition.add_noise(np.ones((40, 2)), PARTS, -1.0, key=KEY), "std must"),
    (lambda: partition.add_noise(CLASSES, PARTS, 0.1, key=KEY), "floating-point"),
    (lambda: partition.add_noise(np.ones(40), PARTS * 2, 0.1, key=KEY), "share"),
    (fewer(BINARY, 1.1), "ratio must lie in [0, 1], got 1.1"),
    (fewer([0, 1, 2], 0.5), "or 1 (positive), got 2"),
    (fewer([0.0, 1.0], 0.5), "integers on one axis"),
    (fewer([0] * 90 + [1] * 9, 0.1), "needs 10 positives, which must be in 1..9"),
    (fewer([0] * 4 + [1] * 9, 0.1), "with 4 negatives needs 0 positives"),
    (fewer([0] * 2 + [1] * 9, 1.0), "ratio 1 leaves no room for the 2 negatives"),
    (ratios(BINARY, [0.5, -0.1]), "ratios[1] must lie in [0, 1], got -0.1"),
    (ratios(BINARY, []), "one number for every client, got none"),
    (ratios([0] * 99, [0.5, 0.5]), "client 0 of 2 with a ratio of 0.5"),
    (ratios([0] * 5 + [1], [0.0, 1.0, 1.0]), "client 2 of 3 with a ratio of 1.0"),
    # arrays and texts of a user
    (arrays(y=Y[:5]), "y must be 60 integers or strings"),
    (arrays(y=["low"] * 60), "all labels are 'low'; classification needs two or more"),
    (arrays(x=[["a"]] * 60), "x must be an array of numbers, got <U1"),
    (arrays(x=np.full((60, 2), np.nan)), "x has NaN or infinity in 60 of 60 examples"),
    (arrays(owners=[None] * 60), "example 0: owners is empty (60 of 60 are missing)"),
    (arrays(classes=("low", "mid")), "y has the label 'high', which is not one of t"),
    (arrays(test_share=1.0), "the test share must be in (0, 1), got 1.0"),
    (arrays(text=True), "x must be an array of token ids, got float64"),
    (
        arrays(x=np.full((60, 2), 2**40), text=True),
        "x: token ids must be below 2^31, got 1099511627776",
    ),
    (arrays(test=(X[:, :3], Y)), "x_test must hold examples of one shape, got [4]"),
    (texts({}), "there is no document; give at least one text"),
    (texts({"ann": None}), "ann must be a text, got NoneType"),
    (texts(window=1), "window must be at least 2, got 1"),
    (texts(tokenizer="words"), "no tokenizer 'words'; give bytes, characters"),
    (texts(window=4, test_share=1.0), "test_share must lie in (0, 1), got 1"),
    (texts_by(fm.problems.lenet), "choose problems.gpt or llama"),
    (
        lambda: fm.problems.classification("digits", model=fm.problems.gpt),
        "choose problems.text",
    ),
    (lambda: fm.data.tokenizers.characters("ab").encode("xa"), "has no 'x'; leave it"),
    # batches
    (lambda: batching.poisson(3)(KEY, jnp.int32(9), 1, 4, 16), "longest_batch must be"),
]


@pytest.mark.parametrize(("call", "words"), VALUES, ids=[words for _, words in VALUES])
def test_a_value_is_refused(call, words):
    refused_with(words, call)
