"""Robust rules and attacks in rounds, and the table of what they survive."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon import aggregators, attacks, engine
from fedjax_muon.core import Objective
from fedjax_muon.engine import plans
from tests.wrappers.test_robust import (
    EVERY,
    KEY,
    federated,
    literal_median,
    literal_mixing,
    literal_trimmed,
    stacked,
)

# --------------------------------------------------------------------------- in rounds

N, S, K, D = 7, 5, 3, (3, 4)
RULE = aggregators.chain(
    aggregators.nearest_neighbor_mixing(1), aggregators.trimmed_mean(1)
)


def problem():
    rng = np.random.default_rng(6)
    return rng.normal(size=(N, K, *D)), rng.uniform(0.5, 2, size=(N, 1, 1))


def rounds(algorithm, plan=plans.mapped, count=4):
    """Parameters after every round of quadratics (a / 2) |x - b|^2, in float64."""
    with jax.enable_x64(True):
        targets, curvatures = map(jnp.asarray, problem())
        grad = lambda x, batch, key: {"w": batch[1] * (x["w"] - batch[0])}
        run = jax.jit(
            engine.make_round(
                algorithm, Objective(grad), N, plan, lambda batch, _: batch
            )
        )
        state = engine.init(algorithm, {"w": jnp.zeros(D)}, N)
        found = []
        for r in range(count):
            cohort = np.random.default_rng(r).permutation(N)[:S]
            weights = jnp.ones(S).at[0].set(r != 2)  # one drops out in round 2
            batches = targets[cohort], jnp.repeat(curvatures[cohort][:, None], K, 1)
            state, received = run(
                state, jnp.asarray(cohort, jnp.int32), batches, weights, KEY
            )
            np.testing.assert_array_equal(received, weights > 0)
            found.append(np.asarray(state.server.params["w"]))
    return found


def test_rounds_are_those_of_a_loop():
    """FedAvg under ALIE of clients 2 and 6, with mixing and a trimmed mean."""
    algorithm = fm.robust(fm.attack(fm.fedavg(lr=0.2), attacks.alie(1.5), [2, 6]), RULE)
    targets, curvatures = problem()
    x = np.zeros(D)
    for r, found in enumerate(rounds(algorithm)):
        cohort = np.random.default_rng(r).permutation(N)[:S][int(r == 2) :]
        sent = {}
        for i in cohort:
            y = x.copy()
            for k in range(K):
                y = y - 0.2 * curvatures[i] * (y - targets[i, k])
            sent[i] = (x - y).ravel()  # what FedAvg sends
        honest = np.stack([z for i, z in sent.items() if i not in (2, 6)])
        for i in {2, 6} & set(cohort):
            sent[i] = honest.mean(0) - 1.5 * honest.std(0, ddof=1)
        z = np.stack([sent[i] for i in cohort])
        x = x - np.reshape(literal_mixing(1, literal_trimmed(1))(z), D)
        np.testing.assert_allclose(found, x, rtol=1e-10)


def test_attacks_come_first_in_any_order_of_wrappers():
    attack, clients = attacks.inner_product(), [2, 6]
    inside = fm.robust(fm.attack(fm.fedavg(lr=0.2), attack, clients), RULE)
    outside = fm.attack(fm.robust(fm.fedavg(lr=0.2), RULE), attack, clients)
    np.testing.assert_array_equal(rounds(inside), rounds(outside))


def sent_in_a_round(algorithm, z, there=None):
    """The mean message of a round in which clients send rows, and who was received."""
    n, width = z.shape
    grad = lambda params, batch, key: {
        "w": batch
    }  # which FedAvg sends with a rate of 1
    run = engine.make_round(algorithm, Objective(grad), n, plans.vmapped)
    state = engine.init(algorithm, {"w": jnp.zeros(width)}, n)
    weights = jnp.ones(n) if there is None else jnp.asarray(there, float)
    ids, batches = jnp.arange(n), jnp.asarray(z, jnp.float32)[:, None]
    state, received = jax.jit(run)(state, ids, batches, weights, KEY)
    return -np.asarray(state.server.params["w"]), np.asarray(received)


def not_finite(messages, is_attacker, honest):
    """Client 1 sends NaN in one place, and the other attackers infinities."""
    spoiled = messages.values.at[:, 2].set(jnp.inf).at[1, 2].set(jnp.nan)
    return spoiled.at[:, 3].set(-jnp.inf)


@pytest.mark.parametrize("name", [*EVERY, "mean"])
def test_an_attack_that_is_not_finite_is_lost_like_any_message(name):
    z = np.random.default_rng(7).normal(size=(9, 5))
    rule = lambda algorithm: (
        fm.robust(algorithm, EVERY[name]) if name in EVERY else algorithm
    )
    there = ~np.isin(np.arange(9), [1, 4])
    attacked = fm.attack(fm.attack(fm.fedavg(lr=1.0), not_finite, [1]), not_finite, [4])
    found, received = sent_in_a_round(rule(attacked), z)
    expected, _ = sent_in_a_round(rule(fm.fedavg(lr=1.0)), z, there)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.abs(found).max() > 0
    np.testing.assert_array_equal(received, there)


def test_a_rule_that_is_not_finite_changes_nothing():
    """Neither alone, nor before others, which use what is left."""
    z = np.random.default_rng(8).normal(size=(5, 3))
    nan = lambda messages: messages._replace(values=messages.values + jnp.nan)
    first = lambda m: m._replace(values=m.values.at[0].set(jnp.inf))
    found, received = sent_in_a_round(fm.robust(fm.fedavg(lr=1.0), nan), z)
    np.testing.assert_array_equal(found, 0)
    assert received.all()
    for left in (aggregators.chain(first, aggregators.median()), first):
        found, _ = sent_in_a_round(fm.robust(fm.fedavg(lr=1.0), left), z)
        expected = z[1:].mean(0) if left is first else literal_median(z[1:])
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_an_attack_reaches_clients_with_layers_of_their_own():
    attacked = fm.attack(fm.fedavg(lr=1.0), attacks.gaussian(), [1])
    (exchange,) = fm.personalization.keep_own(attacked, ["head"]).exchanges
    assert exchange.attacks == attacked.exchanges[0].attacks


# ------------------------------------------------------------------ the table in docs

PAGE = Path(__file__).parents[2] / "docs" / "algorithms" / "robust.md"
TABLE = re.findall(
    r"^\| `(.+?)` \| (\df \+ \d) \| (\df(?: \+ \d)?)(, refused)? \| < 1/(\d) \|",
    PAGE.read_text(),
    re.MULTILINE,
)
TWO = 2  # bad messages


def of_table(text, f):
    """A rule with `f` bad messages, or buckets; or a formula of a number."""
    text = re.sub(r"^(\d)f", r"\1 * f", text)
    return eval(
        text, {"f": f} | {n: getattr(aggregators, n) for n in aggregators.__all__}
    )


def attacked(n, seed):
    """The good messages, and all messages of every attack [A, n, 6]."""
    good = 2 + np.random.default_rng(seed).normal(size=(n - TWO, 6))
    mean, spread = good.mean(0), good.std(0, ddof=1)
    radius = np.linalg.norm(good - mean, axis=1).max() / np.sqrt(6)
    one = [np.full(6, x) for x in (1e6, -1e6, 3e38, 0.0, np.nan, np.inf)]
    one += [mean - z * spread for z in (0.3, 1.0, 1.5, 3.0, 10.0)]
    one += [-scale * mean for scale in (0.1, 1.0, 2.0, 10.0)]
    one += [mean + distance * radius for distance in (1.0, 3.0, 10.0, 30.0)]
    both = [
        *([x, x] for x in one),
        [one[0], one[1]],
        [one[4], one[5]],
        [one[0], one[4]],
    ]
    z = np.stack([np.concatenate([bad, good]) for bad in both])
    return good, np.float32(z)


def farthest(rule, n):
    """How far an attack moves the result, over the radius of the good messages."""
    algorithm = fm.robust(fm.fedavg(lr=1.0), rule)
    grad = lambda params, batch, key: {"w": batch}
    run = engine.make_round(algorithm, Objective(grad), n, plans.vmapped)
    state = engine.init(algorithm, {"w": jnp.zeros(6)}, n)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def sent(z, key):
        after, _ = run(state, jnp.arange(n), z[:, None], jnp.ones(n), key)
        return -after.server.params["w"]

    worst = []
    for seed in range(3):
        good, z = attacked(n, seed)
        found = np.asarray(sent(z, jax.random.key(seed)), float)
        both = (found, good)
        away = [np.linalg.norm(x - good.mean(0), axis=1).max() for x in both]
        worst.append(away[0] / away[1])
    return max(worst)


def test_the_table_has_every_rule():
    rules = set(aggregators.__all__) - {"Aggregator", "chain", "robust"}
    assert rules <= set(re.findall(r"\w+", " ".join(row[0] for row in TABLE)))
    assert len(TABLE) == PAGE.read_text().count("| < 1/")


@pytest.mark.filterwarnings("ignore:.*rounds down to no bad")
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_a_rule_survives_what_its_page_says(row):
    rule, needed, too_few, refused, one_in = row
    needed, too_few = of_table(needed, TWO), of_table(too_few, TWO)
    assert int(row[1][0]) == int(one_in)  # f of more than so many times f
    share = TWO / (-(-needed // 2) if "bucketing" in rule else needed)
    assert farthest(of_table(rule, share), needed) <= 2
    counted = of_table(rule, TWO)
    assert farthest(counted, needed + TWO) <= 2  # also if two do not arrive
    count = lambda n: jax.eval_shape(counted, stacked(np.zeros((n, 6))))
    count(needed)
    if refused:
        assert too_few == needed - 1
        with pytest.raises(ValueError, match="2 bad messages needs at least"):
            count(too_few)
    else:
        assert farthest(of_table(rule, 0.4), too_few) > 2


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedmuon"])
def test_a_rule_that_is_the_mean_changes_nothing(name):
    algorithm = getattr(fm, name)(lr=0.2)
    mean = fm.robust(algorithm, aggregators.trimmed_mean(0))
    np.testing.assert_allclose(rounds(mean), rounds(algorithm), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [plans.loop, plans.vmapped, plans.chunked(2)])
def test_plans_agree(plan):
    algorithm = fm.robust(fm.scaffold(lr=0.2), RULE)
    np.testing.assert_allclose(rounds(algorithm, plan), rounds(algorithm), rtol=1e-9)


def test_too_few_messages_change_nothing():
    """Of two messages, the rule for one bad one on each side keeps none."""
    algorithm = fm.robust(fm.fedavg(lr=0.2), aggregators.trimmed_mean(1))
    state = engine.init(algorithm, {"w": jnp.ones(2)}, 4)
    grad = lambda x, batch, key: {"w": batch * x["w"]}
    run = engine.make_round(algorithm, Objective(grad), 4, plans.mapped)
    cohort, batches = jnp.arange(4), jnp.ones((4, 1, 2))
    state, _ = run(state, cohort, batches, jnp.array([1.0, 1, 0, 0]), KEY)
    np.testing.assert_array_equal(state.server.params["w"], 1)
    state, _ = run(state, cohort, batches, jnp.array([1.0, 1, 1, 0]), KEY)
    np.testing.assert_allclose(state.server.params["w"], 0.8)


@pytest.mark.slow
def test_devices_share_a_cohort():
    algorithm = fm.robust(fm.attack(fm.fedmuon(lr=0.05), attacks.gaussian(), [1]), RULE)
    found = []
    for devices in ((), jax.devices()[:3]):
        simulation = federated(algorithm, cohort=5, devices=devices)
        state = simulation.init(jax.random.key(0))
        state, _ = simulation.train_rounds(state, 3)
        found.append(jax.tree.map(np.asarray, state.params))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), *found
    )


@pytest.mark.slow
def test_compressed_and_own_layers_are_aggregated():
    for algorithm in (
        fm.compress(fm.robust(fm.fedavg(lr=0.1), RULE), fm.quantize(8)),
        fm.robust(fm.compress(fm.fedavg(lr=0.1), fm.quantize(8)), RULE),
        fm.personalization.keep_own(fm.robust(fm.fedavg(lr=0.1), RULE), ["head"]),
    ):
        simulation = federated(algorithm, cohort=5)
        state = simulation.init(jax.random.key(0))
        begin = simulation.evaluate(state)["train_loss"]
        state, metrics = simulation.train_rounds(state, 3)
        assert np.isfinite(begin)
        assert not np.asarray(metrics.lost).any()
    plain, robust = fm.fedavg(lr=0.1), fm.robust(fm.fedavg(lr=0.1), RULE)
    sent = [federated(one, cohort=5).meter.bytes_after(3) for one in (plain, robust)]
    assert sent[0] == sent[1]
