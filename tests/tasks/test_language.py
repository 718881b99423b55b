"""Language modeling against sums in NumPy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

import fedjax_muon as fm
from fedjax_muon.simulation.evaluation import scores
from fedjax_muon.tasks.lora import lora_language, merged
from fedjax_muon.tasks.task import Batch

TEXTS = {"ann": 9 * "to be or not to be, ", "bob": 20 * "thé is, "}
DATA = fm.data.from_text(TEXTS, window=6, tokenizer="characters")


class Bigram(nn.Module):
    """Logits of the next token by the last one."""

    tokens: int

    @nn.compact
    def __call__(self, x):
        table = nn.initializers.normal(1.0)
        shape = (self.tokens, self.tokens)
        return self.param("table", table, shape)[x.astype(jnp.int32)]


TASK = fm.tasks.language(Bigram(DATA.tokens), DATA)
PARAMS = TASK.init(jax.random.key(0))


def nats(table, x):
    """Of every token but the first, in float64."""
    logits = np.float64(table)[x[:, :-1]]
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(logs, x[:, 1:, None].astype(int), -1)[..., 0]


def test_metrics_are_sums_over_sums():
    x, y = DATA.x_test, DATA.y_test
    found = scores(TASK, PARAMS, jnp.asarray(x), jnp.asarray(y))
    values = {name: metric(found, y) for name, metric in TASK.metrics.items()}
    each = nats(PARAMS["table"], x)
    sizes = DATA.tokenizer.nbytes[x[:, 1:]]
    assert len(set(sizes.ravel())) > 1
    bits = each.sum() / (np.log(2) * sizes.sum())
    assert values["loss"] == pytest.approx(each.mean(), rel=1e-6)
    assert values["perplexity"] == pytest.approx(np.exp(each.mean()), rel=1e-5)
    assert values["bits_per_byte"] == pytest.approx(bits, rel=1e-6)


def test_tokens_without_bytes_are_not_counted():
    silent = DATA.tokenizer.nbytes * (np.arange(DATA.tokens) != 3)
    data = DATA._replace(tokenizer=DATA.tokenizer._replace(nbytes=silent))
    task = fm.tasks.language(Bigram(DATA.tokens), data)
    found = scores(task, PARAMS, *map(jnp.asarray, data[2:4]))
    each, sizes = nats(PARAMS["table"], data.x_test), silent[data.x_test[:, 1:]]
    bits = each[sizes > 0].sum() / (np.log(2) * sizes.sum())
    value = TASK.metrics["bits_per_byte"](found, None)
    assert value == pytest.approx(bits, rel=1e-6)
    # without a tokenizer there are no bytes
    plain = fm.tasks.language(Bigram(DATA.tokens), data._replace(tokenizer=None))
    assert set(plain.metrics) == {"loss", "perplexity"}


def test_the_gradient_is_of_the_mean_over_tokens_and_windows():
    x = jnp.asarray(DATA.x_train[:3])
    batch = Batch(x, jnp.zeros(3, jnp.int32), jnp.array([1.0, 1.0, 0.0]))
    grad = TASK.grad(PARAMS, batch, jax.random.key(0))["table"]
    expected, step = np.zeros(grad.shape), 1e-4
    table = np.float64(PARAMS["table"])
    for at in np.ndindex(*grad.shape):
        up, down = table.copy(), table.copy()
        up[at] += step
        down[at] -= step
        ends = [nats(each, np.asarray(x[:2])).mean() for each in (up, down)]
        expected[at] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(grad, expected, atol=1e-6)


def test_evaluations_score_a_part_of_the_training_tokens():
    assert TASK.scored.examples == 2**16 // 6
    parts = fm.partition.by_owner(DATA.owners)
    sizes = {"cohort": 2, "local_steps": 1, "batch_size": 4}
    simulation = fm.federate(fm.fedavg(lr=1.0), TASK, DATA, parts, **sizes)
    state = simulation.init(jax.random.key(1))
    first = simulation.evaluate(state)
    state, _ = simulation.train_rounds(state, 20)
    last = simulation.evaluate(state)
    assert not {name for name in last if "accuracy" in name}
    assert last["test_bits_per_byte"] < first["test_bits_per_byte"]
    every = nats(np.asarray(state.params["table"]), DATA.x_train)
    assert last["train_loss"] == pytest.approx(every.mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("model", "data", "said"),
    [
        (Bigram(3), DATA, "give it the vocabulary of the dataset"),
        (Bigram, DATA, "a model must be a flax.linen module"),
        (Bigram(64), fm.data.load("digits"), "make them with data.from_text"),
    ],
)
def test_models_of_other_data_are_refused(model, data, said):
    with pytest.raises((TypeError, ValueError), match=said):
        fm.tasks.language(model, data)


# ------------------------------------------------------------------------- adapters
SMALL = fm.models.llama(DATA.tokens, 6, 8, 2, 2, key_heads=1)
FROZEN = fm.tasks.language(SMALL, DATA).init(jax.random.key(3))


def by_hand(params, scale):
    """The weights of the model with its adapters, W + scale A B."""
    weights = flatten_dict(FROZEN)
    pairs = flatten_dict(params["adapters"])
    for path in {path[:-1] for path in pairs}:
        product = pairs[*path, "a"] @ pairs[*path, "b"]
        weights[*path, "kernel"] += scale * product
    return unflatten_dict(weights)


@pytest.mark.parametrize("layers", [("query", "value"), ("up", "gate", "down")])
def test_adapters_of_a_language_model_are_products_beside_its_weights(layers):
    given = {"rank": 2, "alpha": 3.0, "layers": layers}
    task = lora_language(SMALL, FROZEN, DATA, **given)
    params = task.init(jax.random.key(4))
    assert params.keys() == {"adapters"}
    draw = iter(jax.random.split(jax.random.key(5), 99))
    params = jax.tree.map(
        lambda x: 0.3 * jax.random.normal(next(draw), x.shape), params
    )
    x, y = jnp.asarray(DATA.x_test), jnp.asarray(DATA.y_test)
    plain = fm.tasks.language(SMALL, DATA)
    want = scores(plain, by_hand(params, 1.5), x, y)
    found = scores(task, params, x, y)
    for name in ("loss", "nats", "bytes"):
        np.testing.assert_allclose(found[name], want[name], rtol=2e-5)
    assert np.abs(found["loss"] - scores(plain, FROZEN, x, y)["loss"]).max() > 1e-3
    batch = Batch(x, y, jnp.ones(len(x)))
    grad = task.grad(params, batch, jax.random.key(0))
    through = lambda p: plain.grad(by_hand(p, 1.5), batch, jax.random.key(0))
    _, pull = jax.vjp(lambda p: by_hand(p, 1.5), params)
    for a, b in zip(
        *map(jax.tree.leaves, (grad, pull(through(params))[0])), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-6)


def test_the_exact_average_of_adapters_trains_a_language_model():
    task = lora_language(SMALL, FROZEN, DATA, rank=2, folded=True)
    parts = fm.partition.by_owner(DATA.owners)
    sizes = {"cohort": 2, "local_steps": 3, "batch_size": 4}
    simulation = fm.federate(
        fm.fedex_lora(lr=0.02, rule=optax.scale_by_adam()), task, DATA, parts, **sizes
    )
    state = simulation.init(jax.random.key(1))
    first = simulation.evaluate(state)["train_loss"]
    state, _ = simulation.train_rounds(state, 30)
    assert simulation.evaluate(state)["train_loss"] < first - 0.02


@pytest.mark.parametrize("folded", [False, True])
def test_merged_weights_are_the_model_with_its_adapters(folded, tmp_path):
    given = {"rank": 2, "alpha": 3.0, "layers": ("query", "up"), "folded": folded}
    task = lora_language(SMALL, FROZEN, DATA, **given)
    draw = iter(jax.random.split(jax.random.key(5), 99))
    params = jax.tree.map(
        lambda x: 0.3 * jax.random.normal(next(draw), x.shape),
        task.init(jax.random.key(4)),
    )
    weights = merged(task, params)
    assert jax.tree.map(jnp.shape, weights) == jax.tree.map(jnp.shape, FROZEN)
    if not folded:
        expected = by_hand(params, 1.5)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6),
            weights,
            expected,
        )
    x, y = jnp.asarray(DATA.x_test), jnp.asarray(DATA.y_test)
    plain = fm.tasks.language(SMALL, DATA)
    for name in ("loss", "nats"):
        ours, theirs = (
            scores(t, p, x, y)[name] for t, p in ((plain, weights), (task, params))
        )
        np.testing.assert_allclose(ours, theirs, rtol=2e-5)
    ids = fm.models.generate(SMALL, weights, [1, 2], 3, jax.random.key(0))
    assert ids.shape == (5,)
    place = fm.models.to_hugging_face(tmp_path / "tuned", SMALL, weights)
    model, read = fm.models.from_hugging_face(place)
    np.testing.assert_array_equal(
        model.apply({"params": read}, x[:, :-1]),
        SMALL.apply({"params": weights}, x[:, :-1]),
    )


def test_what_is_merged_is_a_task_with_adapters():
    task = lora_language(SMALL, FROZEN, DATA, rank=2)
    plain = fm.tasks.language(SMALL, DATA)
    params = task.init(jax.random.key(4))
    for source, given in ((plain, params), (task, FROZEN)):
        with pytest.raises(ValueError, match="merged takes a task of lora_language or"):
            merged(source, given)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (
            ("q_proj", "v_proj"),
            "'v_proj'.* with a kernel; layers that can have adapters",
        ),
        (
            ("Query",),
            r"did you mean 'query'\? layers that can have .* are down, gate, he",
        ),
        (("tokens",), "adapters are down, gate, head, key, out, query, up, value$"),
    ],
)
def test_layers_that_can_have_adapters_are_named(layers, said):
    with pytest.raises(ValueError, match=said):
        lora_language(SMALL, FROZEN, DATA, layers=layers)
