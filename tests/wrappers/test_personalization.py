"""Clients with parameters of their own, against loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_muon as fm
from fedjax_muon import algorithms, engine
from fedjax_muon.core import Round, tree
from fedjax_muon.engine import plans
from fedjax_muon.wrappers.compression import compress, top_k
from fedjax_muon.wrappers.personalization import ditto, keep_own, params_of_clients
from tests.oracles import personal as oracle
from tests.oracles.cases import PARTIAL, X
from tests.support import traces
from tests.support.cases import slow_but

N = PARTIAL.num_clients
WITHOUT = {"scaffold", "scaffold_momentum", "scaffold_adam", "fedmuon_correct"}
WITHOUT |= {"fedmuon_correct_euclidean", "fedmuon_correct_max_norm", "fedmuon_svd"}
WITHOUT |= {"fedcm", "fedavg_m", "fedavg_vr", "scaffold_m", "scaffold_vr", "padamfed"}
WITHOUT |= {
    "padamfed_vr",
    "fedlada",
    "fafed",
    "stem",
    "feddyn",
    "ef21_muon",
    "sign_vote",
    "signmuon",
    "muonusign",
    "muonsign",
    "fedcomuon_vr",
    "sparseloco",
    "streaming_diloco",
    "fedit",
    "ffa_lora",
    "rolora",
    "fedsa_lora",
    "fedex_lora",
    "flora",
    "flexlora",
    "fedsubmuon",
    "fedsubmuon_gt",
}


def clients_of(state):
    return params_of_clients(state.server.params, state.client_states)


@pytest.mark.parametrize(
    "plan", [plans.mapped, pytest.param(plans.vmapped, marks=pytest.mark.slow)]
)
def test_fedper_equals_a_loop(plan):
    algorithm = keep_own(fm.fedavg(0.2, rule=optax.trace(0.5)), ["b"])
    state = traces.run(algorithm, X, PARTIAL, plan=plan)[-1]
    shared, kept = oracle.fedper(X, PARTIAL, 0.2, momentum=0.5)[-1]
    assert traces.farthest([state.server.params], [shared]) < 1e-10
    clients = clients_of(state)
    for i, own in enumerate(kept):
        np.testing.assert_allclose(clients["b"][i], own["b"], atol=1e-10)
        np.testing.assert_allclose(clients["w"][i], shared["w"], atol=1e-10)
    assert np.ptp(np.asarray(clients["b"]), axis=0).max() > 0.1


def test_ditto_equals_a_loop():
    state = traces.run(ditto(fm.fedavg(0.2), personal_lr=0.1, pull=0.7), X, PARTIAL)[-1]
    x, own = oracle.ditto(X, PARTIAL, 0.2, 0.1, 0.7)[-1]
    assert traces.farthest([state.server.params], [x]) < 1e-10
    clients = clients_of(state)
    got = [{k: v[i] for k, v in clients.items()} for i in range(N)]
    assert traces.farthest(got, own) < 1e-10


def as_float32(tree):
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)


def sent(algorithm):
    batches = jax.tree.map(lambda a: jnp.asarray(a)[0], traces.stack(PARTIAL.first))
    given = algorithm.exchanges, algorithm, traces.TOY, as_float32(X), batches
    return engine.traffic(*given)


def test_own_parameters_are_not_sent():
    whole, part = sent(fm.fedmuon()), sent(keep_own(fm.fedmuon(), ["b"]))
    assert (whole.down, whole.up) == (2 * 15 * 4, 2 * 15 * 4)
    assert (part.down, part.up) == (2 * 12 * 4, 2 * 12 * 4)  # of 15, b has 3
    assert sent(ditto(fm.fedmuon())) == whole
    packed = compress(keep_own(fm.fedavg(), ["b"]), top_k(0.2))
    assert sent(packed).up < sent(keep_own(fm.fedavg(), ["b"])).up
    state = traces.run(packed, X, PARTIAL)[-1]
    assert len(clients_of(state)["b"]) == N


ONE_OF_EACH = {names[-1] for names in traces.by_code(algorithms.ALL)}


@pytest.mark.parametrize("name", slow_but(["fedprox"], sorted(ONE_OF_EACH - WITHOUT)))
def test_messages_tell_where_clients_end(name):
    """By a projection that sees every local move."""
    algorithm = algorithms.ALL[name].function()
    (exchange,) = algorithm.exchanges
    ends = []
    objective = traces.TOY._replace(project=lambda x: ends.append(x) or x)
    params = as_float32(X)
    stacked = traces.stack(PARTIAL.rounds[0][1])
    batches = as_float32(jax.tree.map(lambda a: a[0], stacked))
    round = Round(jnp.int32(0), jax.random.key(0), 4, 1, 1.0)
    with jax.disable_jit():
        broadcast = exchange.broadcast(algorithm.init(params), round)
        before = algorithm.init_client(params)
        message, _ = exchange.client(objective, broadcast, before, batches, round)
        got = exchange.local_params(broadcast, message)
    error = tree.map(lambda a, b: float(jnp.abs(a - b).max()), got, ends[-1])
    assert max(error.values()) < 1e-6
    assert max(float(jnp.abs(a - params[k]).max()) for k, a in got.items()) > 1e-4


def test_other_methods_are_refused():
    for name, method in algorithms.ALL.items():
        algorithm = method.function()
        if name not in WITHOUT:
            keep_own(algorithm, ["b"])
            continue
        with pytest.raises(ValueError, match="whose clients average what they move"):
            keep_own(algorithm, ["b"])
