"""Adapters by hand, what is trained and sent, and what programs hold."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon import decentralized, models, simulation, tasks
from fedjax_muon.algorithms import fedavg
from fedjax_muon.data import Dataset
from fedjax_muon.decentralized import simulation as decentralized_simulation
from fedjax_muon.simulation import client_accuracies, groups, rounds
from fedjax_muon.tasks.heavy_tails import gaussian, noisy
from fedjax_muon.tasks.lora import lora_classification, merged
from fedjax_muon.transforms import muon_dimension_numbers

KEY = jax.random.key(0)
WIDTH, IMAGE = 8, (4, 4, 3)
TOKENS = {"patch": 2, "width": WIDTH, "heads": 2, "head_width": WIDTH // 2}
MODEL = models.ViT(3, **TOKENS, depth=2, hidden=10)
PROJECTIONS = ("query", "value")


@pytest.fixture(scope="module")
def frozen():
    return jax.jit(MODEL.init)(KEY, jnp.zeros((1, *IMAGE)))["params"]


# ------------------------------------------------------------- what is trained
@pytest.mark.slow
def test_training_starts_at_the_frozen_model_and_has_these_matrices(frozen):
    task = lora_classification(MODEL, frozen, IMAGE)
    params = task.init(KEY)
    wide = 16  # the default rank
    pair = {"a": (WIDTH, wide), "b": (wide, WIDTH)}
    layer = {"Attention_0": dict.fromkeys(PROJECTIONS, pair)}
    assert jax.tree.map(jnp.shape, params) == {
        "adapters": {"Block_0": layer, "Block_1": layer},
        "head": jax.tree.map(jnp.shape, frozen["head"]),
    }
    jax.tree.map(np.testing.assert_array_equal, params["head"], frozen["head"])
    layers = [layer["Attention_0"] for layer in params["adapters"].values()]
    downs = [layer[name]["a"] for layer in layers for name in PROJECTIONS]
    for i, a in enumerate(downs):
        assert np.max(np.abs(a)) <= 1 / np.sqrt(WIDTH)
        # uniform within c: standard deviation c / sqrt(3), a twelfth known from 128
        assert abs(np.std(a) * np.sqrt(3 * WIDTH) - 1) < 0.25
        assert not any(np.array_equal(a, other) for other in downs[:i])

    every = muon_dimension_numbers(params)
    layer = {"Attention_0": dict.fromkeys(PROJECTIONS, dict.fromkeys("ab", ((0,), 1)))}
    assert every["adapters"] == {"Block_0": layer, "Block_1": layer}
    assert every["head"] == {"kernel": ((0,), 1), "bias": None}
    fewer = muon_dimension_numbers(params, exclude=("bias", "scale", "head"))
    assert fewer["adapters"] == every["adapters"]
    assert not jax.tree.leaves(fewer["head"])


def test_layers_of_any_model_and_the_default_scale():
    """An MLP in NumPy, at the start and from adapters that are not zero."""
    model = models.MLP(features=(5, 7), classes=2)
    rng = np.random.default_rng(2)
    shapes = jax.eval_shape(model.init, KEY, POINTS)["params"]
    frozen = jax.tree.map(lambda p: np.float32(rng.normal(size=p.shape)), shapes)
    layers, head = ("Dense_0", "Dense_1"), "head"
    sizes = {"rank": 3, "layers": layers, "head": head}
    task = lora_classification(model, frozen, (4,), **sizes)
    start = jax.tree.map(np.asarray, task.init(KEY))
    drawn = jax.tree.map(lambda p: np.float32(rng.normal(size=p.shape)), start)
    assert drawn["adapters"].keys() == set(layers)

    def losses(params, scale):
        x = np.float64(POINTS)
        for name in layers:
            a, b = (params["adapters"][name][n] for n in ("a", "b"))
            kernel = frozen[name]["kernel"] + scale * a @ b
            x = np.maximum(x @ kernel + frozen[name]["bias"], 0)
        logits = x @ params["head"]["kernel"] + params["head"]["bias"]
        return np.logaddexp(*logits.T) - logits[np.arange(12), BINARY.y_train]

    evaluate = jax.jit(lambda task, p: task.evaluate(p, POINTS, BINARY.y_train)["loss"])
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-4)
    close(evaluate(task, start), losses(start, 0.0))
    close(evaluate(task, drawn), losses(drawn, 2.0))
    other = lora_classification(model, frozen, (4,), **sizes, alpha=1.5)
    close(evaluate(other, drawn), losses(drawn, 0.5))


# ---------------------------------------------------------- in federated training
WIDE = models.MLP(features=(512, 512), classes=2)  # a frozen kernel of 1 MB
POINTS = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
BINARY = Dataset(POINTS, np.arange(12) % 2, POINTS, np.arange(12) % 2, ("0", "1"))
PARTS = [np.arange(0, 6), np.arange(6, 12)]


@pytest.fixture(scope="module")
def wide():
    params = jax.jit(WIDE.init)(KEY, POINTS)["params"]
    options = {"rank": 1, "layers": ("Dense_1",), "head": "head"}
    return lora_classification(WIDE, params, (4,), **options)


def prepared(task):
    sizes = {"cohort": 2, "local_steps": 2, "batch_size": 3}
    return simulation.federate(fedavg(lr=0.1), task, BINARY, PARTS, **sizes)


def assert_given(program):
    """The frozen kernel is an argument of a program, and no constant in it."""
    text = program.as_text()
    assert "tensor<512x512xf32>" in text
    assert len(text) < 2**18  # as text, a constant has two letters a byte


@pytest.mark.slow
def test_frozen_weights_are_no_part_of_the_programs(wide):
    assert "512x512" not in jax.jit(wide.init).lower(KEY).as_text()
    run = prepared(wide)
    state = rounds.init_state(run.settings, KEY)
    scored = run.data, run.run.partition, None, state.params
    assert_given(run.compiled.score.lower(*scored))
    loud = prepared(wide._replace(grad=noisy(wide.grad, gaussian(1.0))))
    for each in (run, loud):
        given = each.data, each.run, state, 1
        assert_given(each.compiled.rounds.lower(*given))
    state, _ = run.train_rounds(run.init(KEY), 1)
    run.train_rounds(state, 3)
    assert run.compiled.rounds._cache_size() == 1


@pytest.mark.slow
def test_sweeps_and_agents_are_given_the_frozen_weights(wide):
    federated = prepared(wide)
    cells = [(KEY, federated.at({"lr": lr})) for lr in (0.1, 0.2)]
    data, most = federated.data, federated.clients.max_size
    runs, states, _ = groups.stack(cells, most, 1)
    swept = groups.make_programs(federated.program, groups.sequential)
    sizes = {"weights": np.full((2, 2), 0.5), "batch_size": 3}
    agents = decentralized_simulation.decentralize(
        decentralized.dsgd(lr=0.1), wide, BINARY, PARTS, **sizes
    )
    given, state = (agents.data, agents.run), agents.like
    for program in (
        swept.rounds.lower(data, runs, states, 1),
        swept.score.lower(data, runs, states),
        agents.traced_begin.lower(),
        agents.compiled.rounds.lower(*given, state, 1),
        agents.compiled.score.lower(
            agents.data, agents.run.partition, None, state.params
        ),
    ):
        assert_given(program)


# ------------------------------------------------------------ forms of adapters

SMALL = models.MLP(features=(5, 7), classes=2)


def adapters_of(**options):
    """A task, whose frozen model has the kernels 4 x 5, 5 x 7 and a head."""
    frozen = jax.jit(SMALL.init)(KEY, POINTS)["params"]
    given = {"rank": 2, "layers": ("Dense_0", "Dense_1"), "head": "head"}
    return lora_classification(SMALL, frozen, (4,), **given, **options), frozen


def test_folded_adapters_train_the_same_model():
    """The kernels are parameters, of which no gradient is different from 0."""
    both, frozen = adapters_of()
    folded, _ = adapters_of(folded=True)
    one, two = (task.init(KEY) for task in (both, folded))
    names = {layer: set(pair) for layer, pair in two["adapters"].items()}
    assert names == {key: {"a", "b", "kernel"} for key in ("Dense_0", "Dense_1")}
    one["adapters"] = jax.tree.map(lambda x: x + 0.3, one["adapters"])
    for layer, pair in one["adapters"].items():
        kernel = two["adapters"][layer]["kernel"]
        np.testing.assert_array_equal(kernel, frozen[layer]["kernel"])
        two["adapters"][layer] = {**pair, "kernel": kernel}
    batch = tasks.Batch(POINTS, BINARY.y_train, jnp.ones(12))
    g, of_folded = both.grad(one, batch, KEY), folded.grad(two, batch, KEY)
    for pair in of_folded["adapters"].values():
        assert not np.any(pair.pop("kernel"))
        assert np.any(pair["a"])
    jax.tree.map(np.testing.assert_array_equal, g, of_folded)


RANKS = (2, 1)
SENT = [  # a, b, kernels and the rest: of the broadcast, and of the message
    (fm.fedavg(), False, (1, 1, 0), (1, 1, 0)),
    (fm.fedit(), False, (1, 1, 0), (1, 1, 0)),
    (fm.fedit(), True, (1, 1, 0), (1, 1, 0)),
    (fm.ffa_lora(), False, (0, 1, 0), (0, 1, 0)),
    (fm.rolora(), False, (0.5, 0.5, 0), (0.5, 0.5, 0)),
    (fm.fedsa_lora(), False, (1, 0, 0), (1, 0, 0)),
    (fm.fedex_lora(), True, (1, 1, 1), (1, 1, 0)),
    (fm.flora(), True, (0, 0, 1), (1, 1, 0)),
    (fm.flora(ranks=RANKS), True, (0, 0, 1), (0.75, 0.75, 0)),
    (fm.flexlora(), False, (1, 1, 0), (1, 1, 0)),
    (fm.flexlora(ranks=RANKS), False, (0.75, 0.75, 0), (0.75, 0.75, 0)),
    # two matrices of 2 x 2, and two seeds of 4 bytes for each of them
    (fm.fedsubmuon(), True, 2 * (4 + 2), 2 * 4),
    # and every fifth round sketches or bases
    (fm.fedsubmuon_gt(), True, 2 * 4 + 42 / 5, 2 * 4 + 42 / 5),
]


@pytest.mark.parametrize(("algorithm", "folded", "down", "up"), SENT)
def test_what_adapters_send(algorithm, folded, down, up):
    """In numbers of four bytes, next to a head of 7 x 2 and 2."""
    sizes = np.array([2 * (4 + 5), 2 * (5 + 7), 4 * 5 + 5 * 7])
    task, _ = adapters_of(folded=folded)
    given = {"cohort": 1, "local_steps": 2, "batch_size": 3}
    run = simulation.federate(algorithm, task, BINARY, PARTS, **given)
    head = 7 * 2 + 2
    entries = lambda part: sizes @ part if isinstance(part, tuple) else part
    expected = tuple(round(4 * (entries(part) + head)) for part in (down, up))
    assert run.meter.bytes_after(1) == expected


def test_there_is_a_rank_for_every_client():
    task, _ = adapters_of()
    given = {"cohort": 1, "local_steps": 2, "batch_size": 3}
    with pytest.raises(ValueError, match=r"\(clients, cohort\) \(3, 1\), got \(2, 1\)"):
        fm.federate(fm.flexlora(ranks=(1, 2, 1)), task, BINARY, PARTS, **given)


def test_clients_are_evaluated_with_the_factors_that_they_keep():
    """Also of tasks with kernels. A client that never took part has the first b."""
    for folded in (False, True):
        task, _ = adapters_of(folded=folded)
        sizes = {"cohort": 1, "local_steps": 20, "batch_size": 6}
        tests = {"test_parts": [np.arange(12)] * 2}
        run = fm.federate(fm.fedsa_lora(lr=0.5), task, BINARY, PARTS, **sizes, **tests)
        state, _ = run.train_rounds(run.init(KEY), 1)
        kept = state.training.client_states.params["adapters"]["Dense_0"]
        assert kept["a"] is None
        moved = np.any(kept["b"], axis=(1, 2))
        assert sorted(moved) == [False, True]  # the other one was not there
        trained, shared = client_accuracies(run, state)[np.argsort(~moved)]
        assert float(run.evaluate(state)["test_accuracy"]) == pytest.approx(shared)
        assert trained != shared


MOVERS = [fm.fedex_lora, fm.flora, partial(fm.fedsubmuon, refresh=2)]
MOVERS += [partial(fm.fedsubmuon_gt, refresh=2)]


@pytest.mark.parametrize("make", MOVERS)
def test_the_server_moves_kernels(make):
    task, frozen = adapters_of(folded=True)
    sizes = {"cohort": 2, "local_steps": 4, "batch_size": 3}
    run = simulation.federate(make(lr=0.01), task, BINARY, PARTS, **sizes)
    state = run.init(KEY)
    before = run.evaluate(state)["train_loss"]
    state, metrics = run.train_rounds(state, 5)
    assert not np.any(metrics.lost)
    assert run.evaluate(state)["train_loss"] < before
    for layer, pair in state.params["adapters"].items():
        moved = np.abs(pair["kernel"] - frozen[layer]["kernel"])
        assert 1e-7 < np.max(moved) < 1.0


def test_merged_weights_have_the_trained_head(frozen):
    task = lora_classification(MODEL, frozen, IMAGE, rank=2)
    leaves, structure = jax.tree.flatten(task.init(KEY))
    keys = jax.random.split(KEY, len(leaves))
    drawn = [
        0.3 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)
    ]
    params = structure.unflatten(drawn)
    x = jax.random.normal(KEY, (5, *IMAGE))
    scores = task.evaluate(params, x, jnp.zeros(5, int))
    logits = MODEL.apply({"params": merged(task, params)}, x)
    losses = -jax.nn.log_softmax(logits)[:, 0]
    np.testing.assert_allclose(scores["loss"], losses, rtol=1e-4)
