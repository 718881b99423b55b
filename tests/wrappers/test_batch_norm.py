"""Models with BatchNorm, against loops in torch and in flax."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon import algorithms, core, deploy
from fedjax_muon.core import Variables, tree
from fedjax_muon.engine import plans
from fedjax_muon.simulation import client_accuracies
from fedjax_muon.simulation.batching import draw_rows, full_batch, shuffled_epochs
from fedjax_muon.simulation.participation import by_examples
from fedjax_muon.wrappers.batch_norm import fitted
from fedjax_muon.wrappers.personalization import ditto, keep_own, params_of_clients
from tests.support import federation, traces
from tests.support.cases import slow_but
from tests.support.federation import DATA, PARTS, blobs
from tests.support.packages import needs

MOMENTUM, LR = 0.9, 0.3
LAYERS = "Dense_0", "BatchNorm_0", "Dense_1"


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(8, use_bias=False)(x)  # whose gradient would be rounding errors
        how = {"momentum": MOMENTUM, "use_fast_variance": False}
        x = nn.BatchNorm(use_running_average=not train, **how)(x)
        return nn.Dense(3)(nn.relu(x))


TASK = fm.tasks.classification(Net(), (5,))
federate = partial(federation.federation, task=TASK)


def close(one, other):
    compare = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
    jax.tree.map(compare, one, other)


# ------------------------------------------------------------------------- loops
def torch_client(variables, batches, lr=LR):
    """SGD in float64; torch's running variances have n / (n - 1) in them."""
    torch = needs("torch")
    functional = torch.nn.functional
    tensor = lambda a: torch.tensor(np.asarray(a), dtype=torch.float64)
    params = jax.tree.map(lambda a: tensor(a).requires_grad_(), variables.params)
    mean, var = (tensor(variables.batch_stats["BatchNorm_0"][k]) for k in MEAN_VAR)
    first, norm, last = (params[name] for name in LAYERS)
    for x, y in batches:
        z = tensor(x) @ first["kernel"]
        n, of_batch = len(x), (torch.zeros_like(mean), torch.ones_like(var))
        how = {"training": True, "momentum": 1.0}
        h = functional.batch_norm(z, *of_batch, norm["scale"], norm["bias"], **how)
        mean = MOMENTUM * mean + (1 - MOMENTUM) * of_batch[0]
        var = MOMENTUM * var + (1 - MOMENTUM) * of_batch[1] * (n - 1) / n
        logits = h.relu() @ last["kernel"] + last["bias"]
        loss = functional.cross_entropy(logits, torch.tensor(np.int64(y)))
        leaves = jax.tree.leaves(params)
        for leaf, g in zip(leaves, torch.autograd.grad(loss, leaves), strict=True):
            leaf.data -= lr * g
    params = jax.tree.map(lambda leaf: leaf.detach().numpy(), params)
    pair = mean.detach().numpy(), var.detach().numpy()
    stats = dict(zip(MEAN_VAR, pair, strict=True))
    return Variables(params, {"BatchNorm_0": stats})


MEAN_VAR = "mean", "var"


def flax_client(variables, batches, lr=LR):
    params, stats = variables
    for x, y in batches:

        def loss(params, x=x, y=y, stats=stats):
            given = {"params": params, "batch_stats": stats}
            how = {"train": True, "mutable": ["batch_stats"]}
            logits, changed = Net().apply(given, x, **how)
            picked = jax.nn.log_softmax(logits)[jnp.arange(len(y)), y]
            return -picked.mean(), changed["batch_stats"]

        g, stats = jax.grad(loss, has_aux=True)(params)
        params = jax.tree.map(lambda p, g: p - lr * g, params, g)
    return Variables(params, stats)


def batches_of(prepared, key, index, ids):
    for rows in federation.rows(prepared, key, index, ids):
        kept = [row[row >= 0] for row in rows]
        yield [(DATA.x_train[at], DATA.y_train[at]) for at in kept]


def is_own(path):
    return "BatchNorm_0" in jax.tree_util.keystr(path)


def looped(prepared, state, rounds, client, own=False):
    """The server's variables after some rounds, and those of all clients."""
    x, key = state.params, state.key
    kept = [x] * len(PARTS)
    sizes = np.asarray(prepared.clients.size)
    for index in range(rounds):
        ids = federation.cohort(prepared, key, index)
        given = prepared.settings.weighting(sizes[ids])
        shares = np.asarray(given, np.float64) / np.sum(given)
        ends = []
        for i, batches in zip(ids, batches_of(prepared, key, index, ids), strict=True):
            choose = lambda p, a, b: b if own and is_own(p) else a
            start = jax.tree_util.tree_map_with_path(choose, x, kept[i])
            kept[i] = client(start, batches)
            ends.append(kept[i])
        average = lambda *a, shares=shares: np.tensordot(shares, np.stack(a), 1)
        mean = jax.tree.map(average, *ends)
        fixed = lambda p, a, b: b if own and is_own(p) else a
        x = jax.tree_util.tree_map_with_path(fixed, mean, x)
    return x, kept


CASES = {  # of federate
    "plain training": {"parts": [np.arange(80)], "cohort": 1, "local_steps": 1},
    "a trajectory": {"parts": [np.arange(80)], "cohort": 1, "local_steps": 5},
    "unequal clients": {"weighting": by_examples},
    "unequal batches": {"weighting": by_examples, "sampler": full_batch},
}


@pytest.mark.parametrize(
    "client", [torch_client, pytest.param(flax_client, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("case", CASES)
def test_fedavg_equals_loops(case, client):
    prepared = federate(fm.fedavg(lr=LR), **CASES[case])
    state = prepared.init(jax.random.key(3))
    expected, _ = looped(prepared, state, 4, client)
    start = jax.tree.map(np.asarray, state.params.batch_stats)
    found = federation.trained(prepared, 3, 4).params
    close(found, expected)
    moved = tree.map(lambda a, b: np.abs(a - b).max(), found.batch_stats, start)
    assert min(jax.tree.leaves(moved)) > 0.02


def test_statistics_are_those_of_all_passes():
    """r_K = m^K r_0 + (1 - m) sum_k m^(K - 1 - k) b_k, of batches along the way."""
    prepared = federate(
        fm.fedavg(lr=LR), parts=[np.arange(80)], cohort=1, local_steps=6
    )
    state = prepared.init(jax.random.key(3))
    x, key = state.params, state.key
    (batches,) = batches_of(prepared, key, 0, np.arange(1))
    expected = MOMENTUM**6 * np.asarray(x.batch_stats["BatchNorm_0"]["mean"])
    for k, batch in enumerate(batches):
        b = (batch[0] @ np.asarray(x.params["Dense_0"]["kernel"])).mean(0)
        expected = expected + (1 - MOMENTUM) * MOMENTUM ** (5 - k) * b
        x = flax_client(x, [batch])
    found = federation.trained(prepared, 3, 1).params
    close(found.batch_stats["BatchNorm_0"]["mean"], expected)


# ------------------------------------------------------------------------- FedBN
TESTS = {"test_parts": np.array_split(np.arange(20), len(PARTS))}


def test_fedbn_equals_a_loop():
    how = {"own_norms": True, "weighting": by_examples, **TESTS}
    prepared = federate(fm.fedavg(lr=LR), **how)
    state = prepared.init(jax.random.key(3))
    expected, kept = looped(prepared, state, 4, torch_client, own=True)
    state = federation.trained(prepared, 3, 4)
    close(state.params, expected)
    clients = params_of_clients(state.params, state.training.client_states)
    correct = []
    for i, of_client in enumerate(kept):
        found = jax.tree.map(lambda leaf, i=i: leaf[i], clients)
        variables = jax.tree_util.tree_map_with_path(
            lambda path, a, b: b if is_own(path) else a, expected, of_client
        )
        close(found, variables)
        at = TESTS["test_parts"][i]
        logits = Net().apply(variables._asdict(), DATA.x_test[at])
        correct.append(np.mean(np.argmax(logits, 1) == DATA.y_test[at]))
    np.testing.assert_allclose(client_accuracies(prepared, state), correct, atol=1e-6)
    mean = prepared.evaluate(state)["personal_accuracy_mean"]
    np.testing.assert_allclose(mean, np.mean(correct), atol=1e-6)


@pytest.mark.parametrize("algorithm", [fm.fedavg(), fm.fedmuon()])
def test_own_layers_are_not_sent(algorithm):
    """Of 83 parameters, BatchNorm has 16, and it has 16 statistics."""
    per_round = lambda **how: np.diff(
        [federate(algorithm, **how).meter.bytes_after(n) for n in (1, 2)], axis=0
    )
    times = 1 if algorithm.recipe.function is fm.fedavg else 2  # with a momentum
    assert (per_round() == 3 * 4 * (83 * times + 16)).all()
    assert (per_round(own_norms=True) == 3 * 4 * 67 * times).all()
    shapes = jax.eval_shape(TASK.init, jax.random.key(0))
    for own in (False, True):
        sent = core.message_shapes(fitted(algorithm, shapes, own=own), shapes)
        paths = [p for p, _ in jax.tree_util.tree_leaves_with_path(sent)]
        assert any(map(is_own, paths)) != own


def test_layers_are_told_apart_by_their_paths():
    params = {"a": {"norm": {"scale": 1.0}}, "b": {"norm": {"scale": 1.0}, "k": 2.0}}
    algorithm = keep_own(fm.fedavg(), ["a/norm"])
    own = algorithm.init_client(tree.map(jnp.float32, params)).params
    assert len(jax.tree.leaves(own)) == len(jax.tree.leaves(own["a"])) == 1
    with pytest.raises(ValueError, match="no parameter has 'norm/k' in its path"):
        keep_own(fm.fedavg(), ["norm/k"]).init(params)


# ------------------------------------------------------- methods and ways to run them
class Stateless(nn.Module):
    """The same network, which always normalizes by the batch."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(8, use_bias=False)(x)
        x = Batchwise(name="BatchNorm_0")(x)
        return nn.Dense(3)(nn.relu(x))


class Batchwise(nn.Module):
    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        x = x - x.mean(0, keepdims=True)
        x = x / jnp.sqrt((x**2).mean(0, keepdims=True) + 1e-5)
        return x * scale[None] + bias[None]


ADAPTERS = {"fedit", "ffa_lora", "rolora", "fedsa_lora", "fedex_lora", "flora"}
ADAPTERS |= {"flexlora", "fedsubmuon", "fedsubmuon_gt"}
OF_LOSSES = {"fedcomuon", "fedcomuon_vr"}  # which are those of evaluations
MINIMIZING = {names[-1] for names in traces.by_code(algorithms.ALL)}
MINIMIZING -= ADAPTERS | OF_LOSSES


@pytest.mark.parametrize("name", slow_but(["fednova"], sorted(MINIMIZING)))
def test_methods_train_as_without_statistics(name):
    algorithm = algorithms.ALL[name].function()
    size = len(PARTS) if algorithm.full_participation else 3
    stateless = fm.tasks.classification(Stateless(), (5,))
    key, found = jax.random.key(3), []
    for task in (TASK, stateless):
        prepared = federate(algorithm, task=task, cohort=size)
        params = TASK.init(key)
        params = params if task is TASK else params.params
        state = prepared.init(key, params=params)
        found.append(prepared.train_rounds(state, 2)[0].params)
    with_statistics, without = found
    federation.assert_close(with_statistics.params, without)
    means = with_statistics.batch_stats["BatchNorm_0"]["mean"]
    assert 0.05 < np.abs(means).max() < 10


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OF_LOSSES))
def test_methods_of_losses_use_the_running_statistics(name):
    prepared = federate(algorithms.ALL[name].function(), cohort=len(PARTS))
    state = federation.trained(prepared, 0, 2)
    assert tree.all_finite(state.params)
    assert np.abs(state.params.batch_stats["BatchNorm_0"]["mean"]).max() > 0.02


UNEQUAL = {"local_steps": [1, 2, 3, 1, 2, 3]}
EXECUTIONS = {
    "vmapped": {"plan": plans.vmapped},
    "devices": {"plan": plans.chunked(2), "devices": jax.devices()[:2]},
    "unequal steps": {"plan": plans.vmapped, **UNEQUAL},
    "dropout": {"cohort": fm.sampled(3, dropout=0.3), **UNEQUAL},
}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("case", slow_but(["unequal steps"], EXECUTIONS))
def test_plans_and_devices_agree(case, own):
    how = EXECUTIONS[case]
    same = {k: v for k, v in how.items() if k not in ("plan", "devices")}
    usual = federate(plan=plans.mapped, own_norms=own, **same)
    other = federate(own_norms=own, **how)
    states = [federation.trained(prepared, 3, 3) for prepared in (usual, other)]
    close(*[state.params for state in states])
    close(*[params_or_none(state) for state in states])


def params_or_none(state):
    states = jax.tree.map(lambda a: a[: len(PARTS)], state.training.client_states)
    return params_of_clients(state.params, states)


def test_personal_heads_share_the_statistics():
    prepared = federate(keep_own(fm.fedavg(lr=LR), ["Dense_1"]), **TESTS)
    state = federation.trained(prepared, 3, 3)
    clients = params_of_clients(state.params, state.training.client_states)
    for leaf, of_server in zip(
        *map(jax.tree.leaves, (clients.batch_stats, state.params.batch_stats)),
        strict=True,
    ):
        np.testing.assert_array_equal(leaf, np.stack([of_server] * len(PARTS)))
    assert np.ptp(clients.params["Dense_1"]["bias"], 0).max() > 0.01
    assert "personal_accuracy_mean" in prepared.evaluate(state)


def test_tuned_clients_pass_in_training_mode():
    prepared = federate(fm.fedavg(lr=LR), local_steps=1, **TESTS)
    state = federation.trained(prepared, 3, 1)
    key = jax.random.key(1)
    draw = draw_rows(prepared.clients, shuffled_epochs, 3, 4)
    expected = []
    for i, each in enumerate(jax.random.split(key, len(PARTS))):
        rows = np.asarray(draw(jnp.int32(i), jax.random.split(each)[0]).ids)
        batches = [(DATA.x_train[row], DATA.y_train[row]) for row in rows]
        variables = torch_client(state.params, batches, lr=1.0)
        at = TESTS["test_parts"][i]
        logits = Net().apply(variables._asdict(), DATA.x_test[at])
        expected.append(np.mean(np.argmax(logits, 1) == DATA.y_test[at]))
    found = client_accuracies(prepared, state, steps=3, lr=1.0, key=key)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_deployed_clients_keep_or_send_statistics(own):
    """With the numbers of a simulation."""
    how = {"cohort": 3, "local_steps": 2, "batch_size": 4, "own_norms": own}
    numbers = {"num_clients": len(PARTS), "max_client_size": 32, "classes": 3}
    shared = deploy.federation(fm.fedmuon(), TASK, **numbers, **how)
    x, y = DATA.x_train, DATA.y_train
    each = ((i, x[part], y[part]) for i, part in enumerate(PARTS))
    nodes = {given[0]: deploy.Node(shared, *given) for given in each}
    key, send = jax.random.key(3), deploy.in_process(nodes)
    ended = deploy.serve(shared, send, key, rounds=2)
    prepared = federate(fm.fedmuon(), plan=plans.mapped, own_norms=own)
    state = prepared.train_rounds(prepared.init(key), 2)[0]
    close(ended.params, state.params)


@pytest.mark.slow
def test_a_sweep_has_the_numbers_of_a_run():
    prepared = federate(fm.fedavg(lr=LR))
    cells = [federation.cell(lr, seed) for lr in (0.1, 0.3) for seed in (0, 1)]
    (outcomes,) = fm.run_cells(prepared, cells, rounds=2, evaluate_every=2)
    for cell, outcome in zip(cells, outcomes, strict=True):
        alone = federate(fm.fedavg(lr=cell.hyper["lr"]), parts=cell.parts)
        state = alone.train_rounds(alone.init(cell.key), 2)[0]
        expected = alone.evaluate(state)["test_loss"]
        np.testing.assert_allclose(outcome.rows[-1]["test_loss"], expected, 1e-6)


def test_training_goes_on_and_parameters_are_kept(tmp_path):
    net = lambda data: Net()
    problem = fm.problems.classification(blobs(), clients=4, model=net)
    how = {"rounds": 4, "evaluate_every": 2, "progress": False, "own_norms": True}
    how |= {"cohort": 3, "local_steps": 2, "batch_size": 4}
    whole = fm.train(fm.fedmuon(lr=0.02), problem, **how).params
    at = {"directory": tmp_path / "run"}
    fm.train(fm.fedmuon(lr=0.02), problem, **how | {"rounds": 2} | at)
    parts = fm.train(fm.fedmuon(lr=0.02), problem, **how | at).params
    federation.assert_same_bits(whole, parts)
    needs("safetensors")
    file = fm.models.save_params(tmp_path / "net.safetensors", parts)
    again = fm.models.load_params(file, like=jax.tree.map(jnp.zeros_like, parts))
    federation.assert_same_bits(again, parts)
    logits = Net().apply(again._asdict(), DATA.x_test)
    scores = problem.task.evaluate(parts, DATA.x_test, DATA.y_test)
    np.testing.assert_array_equal(scores["correct"], logits.argmax(1) == DATA.y_test)


@pytest.mark.slow
def test_comparisons_have_both_ways():
    problem = fm.problems.classification(blobs(), clients=4, model=lambda data: Net())
    how = {"rounds": 2, "evaluate_every": 2, "seeds": (0,), "progress": False}
    how |= {"cohort": 3, "local_steps": 2, "batch_size": 4, "search": False}
    how["grid"] = {"own_norms": (False, True)}
    compared = fm.compare([fm.fedavg(lr=0.1)], problem, **how)
    losses = {row["own_norms"]: row["test_loss"] for row in compared.rows}
    assert len(losses) == 2


def test_statistics_that_are_not_finite_are_left_out():
    def broken(params, batch, key):
        g = TASK.grad(params, batch, key)
        is_two = batch.client.max() == 2
        bad = lambda leaf: jnp.where(is_two, jnp.nan, leaf)
        return g._replace(batch_stats=tree.map(bad, g.batch_stats))

    everyone = {"cohort": len(PARTS), "task": TASK._replace(grad=broken)}
    prepared = federate(fm.fedavg(lr=LR), **everyone)
    state, metrics = prepared.train_rounds(prepared.init(jax.random.key(3)), 2)
    assert tree.all_finite(state.params)
    np.testing.assert_array_equal(metrics.lost, 2 * (np.arange(len(PARTS)) == 2))
    with pytest.raises(fm.NonFiniteError, match="not a finite message from client 2;"):
        fm.run(prepared, prepared.init(jax.random.key(3)), rounds=1)


def test_compression_leaves_statistics_alone_and_robust_rules_see_them():
    packed = fm.compress(fm.fedavg(lr=0.0), fm.top_k(0.2))
    usual, other = (
        federation.trained(federate(algorithm), 3, 2).params.batch_stats
        for algorithm in (fm.fedavg(lr=0.0), packed)
    )
    close(usual, other)
    attacked = fm.attack(fm.fedavg(), fm.attacks.gaussian(1e3), [2])
    defended = fm.robust(attacked, fm.aggregators.median())
    for algorithm, is_small in ((attacked, False), (defended, True)):
        state = federation.trained(federate(algorithm, cohort=6), 3, 1)
        (stats,) = state.params.batch_stats.values()
        assert (np.abs(stats["mean"]).max() < 10) == is_small


# ---------------------------------------------------------------------- refusals
def private():
    promise = fm.privacy.ClientPrivacy(epsilon=8.0, cohort=3, rounds=2, clip_norm=1.0)
    return federate(cohort=None, privacy=promise)


def agents():
    how = {"weights": np.full((6, 6), 1 / 6), "batch_size": 3}
    return fm.decentralize(fm.decentralized.dsgd(lr=0.1), TASK, DATA, PARTS, **how)


def summed():
    algorithm = fm.fedavg()
    exchanges = (algorithm.exchanges[0]._replace(reduce_sum=True),)
    return federate(algorithm._replace(exchanges=exchanges))


def of_examples():
    algorithm = fm.fedavg()
    (main,) = algorithm.exchanges

    def client(objective, broadcast, state, batches, round):
        batch = jax.tree.map(lambda a: a[0], batches)
        g = objective.example_grad(broadcast.params, batch, round.key)
        return broadcast._replace(params=tree.map(lambda a: a.mean(0), g)), state

    return federate(algorithm._replace(exchanges=(main._replace(client=client),)))


class Merged(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.BatchNorm(use_running_average=not train)(x.reshape(-1, 1))
        return nn.Dense(3)(x.reshape(-1, 5))


MINIMAX = {
    "agnostic": lambda: fm.tasks.agnostic(Net(), (5,), num_clients=6),
    "adversarial": lambda: fm.tasks.adversarial(Net(), (5,), radius=0.1),
}
REFUSED = {
    "private runs, which bound": private,
    "agents without a server, who mix": agents,
    "asynchronous rounds, whose": lambda: federate(cohort=fm.buffered(3, 2)),
    "takes no mean of messages": summed,
    "gradients of single examples": of_examples,
    "ditto, which trains two models": lambda: federate(ditto(fm.fedavg())),
    "keep_own and own_norms need an": lambda: federate(fm.scaffold(), own_norms=True),
    "own_norms is for models with BatchNorm": lambda: federate(
        task=federation.TASK, own_norms=True
    ),
    r"BatchNorm needs the examples on axis 0, got \(20, 1\)": lambda: federate(
        task=fm.tasks.classification(Merged(), (5,))
    ),
    "not go with constraints": lambda: federate(
        task=TASK._replace(project=lambda params: params)
    ),
    "not go with minimax problems": lambda: federate(task=MINIMAX["agnostic"]()),
    "not go with starting_at, but with Simul": lambda: fm.tasks.starting_at(TASK, {}),
    "not go with low-rank adapters": lambda: fm.tasks.lora.lora_classification(
        Net(), {}, (5,), rank=2, alpha=2
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_has_no_running_statistics_is_refused(message):
    with pytest.raises((ValueError, TypeError), match=message) as error:
        REFUSED[message]()
    assert "\n" not in str(error.value)


def test_minimax_problems_of_agents_are_refused():
    method, how = fm.decentralized.dsgd(lr=0.1), {"weights": np.full((6, 6), 1 / 6)}
    with pytest.raises(ValueError, match="do not go with agents without a server"):
        fm.decentralize(
            method, MINIMAX["adversarial"](), DATA, PARTS, batch_size=3, **how
        )
