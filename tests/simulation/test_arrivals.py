"""Asynchronous rounds, clocks and deadlines.

The oracle is an event queue of its own, in plain Python and float64, which trains a
client when it arrives.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_muon as fm
from fedjax_muon import clocks, engine, staleness
from fedjax_muon.core import Algorithm, Exchange
from fedjax_muon.engine import plans
from fedjax_muon.linalg import newton_schulz
from fedjax_muon.simulation import cohorts
from fedjax_muon.simulation.arrivals import queue
from fedjax_muon.simulation.meter import TIMINGS
from tests.oracles.outer import heloco_corrected
from tests.support import federation

N, K, LR = 12, 3, 0.1
KEY = jax.random.key(0)
TARGETS = np.random.default_rng(0).normal(size=(N, 5, 3))
SPREAD = np.random.default_rng(1).lognormal(0, 1, N)
TIED = np.tile([1.0, 2.0, 3.0], 4)  # arrivals at the same time
AWAY = {0: [(0.0, 3.0)], 4: [(1.0, 2.5), (6.0, 9.0)], 7: [(2.0, math.inf)]}
EXACT = fm.transforms.orthogonalize(newton_schulz.polar)


def order_of(step):
    return np.random.default_rng([7, step]).permutation(N)


def coins(chance):
    rng = np.random.default_rng(3)
    return lambda: rng.random() < chance


# ---------------------------------------------------------------------------- oracle


def gradient(x, client):
    return np.tanh(x - TARGETS[client])


def local_change(x, client):
    y = x.copy()
    for _ in range(K):
        y -= LR * gradient(y, client)
    return y - x


def literal(arrivals, durations, server, steps, chance=0.0, away=clocks.NEVER):
    """Trains by events; returns the parameters after every step, and their times."""
    lost, changes = coins(chance), {t for c in away for span in away[c] for t in span}
    gone = lambda client, t: any(a <= t < b for a, b in away.get(client, ()))
    x, version, now, numbers = np.zeros((5, 3)), 0, 0.0, itertools.count()
    jobs, buffer, path, times = [], [], [], []
    while True:
        waiting = [job["client"] for job in jobs] + [entry[0] for entry in buffer]
        for client in order_of(version):
            if len(jobs) == arrivals.concurrency or gone(client, now):
                continue
            if client not in waiting:
                job = {"client": client, "x": x, "version": version}
                jobs.append(job | {"end": now + durations[client], "n": next(numbers)})
        next_change = min((t for t in changes if t > now), default=math.inf)
        now = min([next_change, *(job["end"] for job in jobs)])
        due = sorted((j for j in jobs if j["end"] == now), key=lambda j: j["n"])
        for job in due:
            if not any(job is each for each in jobs):
                continue
            jobs = [each for each in jobs if each is not job]
            if lost():
                continue
            buffer.append((job["client"], job["x"], version - job["version"]))
            if len(buffer) < arrivals.buffer:
                continue
            x = server(x, buffer)
            version, buffer = version + 1, []
            path.append(x)
            times.append(now)
            if version == steps:
                return path, times
            oldest = version - arrivals.max_staleness
            stopped = [job for job in jobs if job["version"] < oldest]
            jobs = [job for job in jobs if job["version"] >= oldest]
            for old in stopped:
                client = old["client"]
                new = {"client": client, "x": x, "version": version}
                jobs.append(new | {"end": now + durations[client], "n": next(numbers)})
        jobs = [job for job in jobs if not gone(job["client"], now)]


def fedbuff(exponent):
    def server(x, buffer):
        scaled = [(1 + late) ** -exponent * local_change(y, c) for c, y, late in buffer]
        return x + sum(scaled) / len(buffer)

    return server


def fedasync(weight, slope, delay):
    def server(x, buffer):
        ((client, start, late),) = buffer
        a = weight * (1 if late <= delay else 1 / (slope * (late - delay) + 1))
        return (1 - a) * x + a * (start + local_change(start, client))

    return server


def fadas(server_lr, delay):
    """FedAdam's step, which is shorter if a message is late."""
    m, v = np.zeros((5, 3)), np.full((5, 3), 1e-6)

    def server(x, buffer):
        nonlocal m, v
        g = sum(local_change(y, client) for client, y, _ in buffer) / len(buffer)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        latest = max(late for *_, late in buffer)
        factor = 1 if latest <= delay else 1 / latest
        return x + factor * server_lr * m / (np.sqrt(v) + 1e-3)

    return server


def ringmaster(rate):
    """Muon at the server, of single gradients."""
    m = np.zeros((5, 3))

    def server(x, buffer):
        nonlocal m
        ((client, start, _),) = buffer
        m = 0.95 * m + 0.05 * gradient(start, client)
        u, _, vt = np.linalg.svd(m, full_matrices=False)
        return x - rate * u @ vt

    return server


def heloco(rate, mu):
    """Jobs start from look-ahead points, and messages are corrected."""
    m, points, branches = np.zeros((5, 3)), [np.zeros((5, 3))], set()

    def server(x, buffer):
        nonlocal m
        ((client, _, late),) = buffer
        d = -local_change(points[-1 - late], client)
        c = np.sum(d * m) / max(np.linalg.norm(d) * np.linalg.norm(m), 1e-30)
        branches.add("passes" if c >= 0.2 else "shrinks" if c < 0 else "turns")
        g = 0.5 * heloco_corrected(d, m)
        m = mu * m + (1 - mu) * g
        x = x - rate * (g + mu * m)
        points.append(x - rate * mu * m)
        assert len(points) < 31 or len(branches) == 3
        return x

    return server


# ------------------------------------------------------------------------ the library


def objective():
    grad = lambda x, batch, key: jax.tree.map(lambda p: jnp.tanh(p - batch), x)
    return fm.Objective(grad)


def path_of(algorithm, arrivals, steps, plan=plans.mapped, steps_of=K):
    """The engine's parameters after every step of a schedule."""
    x0 = {"w": jnp.zeros((5, 3), jnp.float64)}
    executed = arrivals.executed(algorithm)
    state = engine.init(executed, x0, N)
    batches = lambda ids: jnp.asarray(np.repeat(TARGETS[ids][:, None], steps_of, 1))
    run = jax.jit(engine.make_round(executed, objective(), N, plan))
    path = []
    for step in steps:
        ids, starts = np.array(step.clients), jnp.array(step.starts, jnp.int32)
        args = (jnp.asarray(ids, jnp.int32), batches(ids), jnp.ones(len(ids)), KEY)
        state, received = run(state, *args, starts)
        assert received.all()
        path.append(np.asarray(state.server.params["w"]))
    return path


def schedule(arrivals, durations, steps, chance=0.0, away=clocks.NEVER):
    events = queue(arrivals, durations, order_of, coins(chance), away)
    return list(itertools.islice(events, steps))


constant = staleness.constant()
CASES = {
    "FedBuff": (
        lambda: fm.fedavg(lr=LR),
        fm.buffered(6, 2, staleness=staleness.polynomial(0.7)),
        lambda: fedbuff(0.7),
    ),
    "FedAsync": (
        lambda: fm.fedavg(lr=LR),
        fm.fedasync(6, staleness=staleness.hinge(10.0, 4.0)),
        lambda: fedasync(0.6, 10.0, 4.0),
    ),
    "FADAS": (
        lambda: fm.fedadam(lr=LR, server_lr=0.05),
        fm.buffered(6, 3, staleness=constant, damping=staleness.inverse(1)),
        lambda: fadas(0.05, 1),
    ),
    "Ringmaster": (
        lambda: fm.fedavg(
            lr=1.0,
            server_lr=0.02,
            server_rule=optax.chain(optax.ema(0.95, debias=False), EXACT),
        ),
        fm.buffered(6, 1, staleness=constant, max_staleness=2),
        lambda: ringmaster(0.02),
    ),
}

# of messages x_i - x, where those of FedAvg are x - x_i
CASES["FedAsync, FedProx"] = (lambda: fm.fedprox(lr=LR, mu=0.0), *CASES["FedAsync"][1:])

CASES["HeLoCo"] = (
    lambda: fm.heloco(lr=LR, rule=optax.identity(), server_lr=0.9, weight=0.5),
    fm.buffered(6, 1, staleness=constant),
    lambda: heloco(0.9, 0.9),
)


@pytest.mark.parametrize(
    ("durations", "away"),
    [(SPREAD, clocks.NEVER), (TIED, clocks.NEVER), (TIED, AWAY)],
    ids=["spread", "tied", "away"],
)
@pytest.mark.parametrize("chance", [0.0, 0.3])
@pytest.mark.parametrize("name", CASES)
def test_server_rules_are_those_of_an_event_queue(name, chance, durations, away):
    make, arrivals, server = CASES[name]
    steps = schedule(arrivals, durations, 30, chance, away)
    expected, times = literal(arrivals, durations, server(), 30, chance, away)
    assert [step.seconds for step in steps] == times
    late = [i - start for i, step in enumerate(steps) for start in step.starts]
    assert 1 < max(late) <= arrivals.max_staleness
    with jax.enable_x64(True):
        found = path_of(make(), arrivals, steps, steps_of=1 if name[0] == "R" else K)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


def test_a_client_has_one_job_and_none_while_its_message_waits():
    for chance in (0.0, 0.3):
        arrivals = fm.buffered(9, 4, max_staleness=5)
        steps = schedule(arrivals, SPREAD, 200, chance)
        for step in steps:
            assert len(set(step.clients)) == 4
        started = [
            (client, start)
            for step in steps
            for client, start in zip(step.clients, step.starts, strict=True)
        ]
        assert len(set(started)) == len(started)
        assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(steps))


# ------------------------------------------------------------------------ simulations


def simulated(algorithm, rounds=6, start=KEY, **changes):
    simulation = federation.federation(algorithm, **changes)
    return simulation, simulation.train_rounds(simulation.init(start), rounds)[0]


ALGORITHMS = {
    "fedavg": lambda: fm.fedavg(lr=0.3),
    "fedadam": lambda: fm.fedadam(lr=0.3),
    "fedmuon": lambda: fm.fedmuon(lr=0.1),  # has a prologue
    "fedmuon_align": lambda: fm.fedmuon_align(lr=0.1),
    "scaffold": lambda: fm.scaffold(lr=0.3),  # has client states
    "feddyn": lambda: fm.feddyn(lr=0.3),
    "compressed": lambda: fm.compress(fm.fedavg(lr=0.3), fm.top_k(0.5)),
    "robust": lambda: fm.robust(fm.fedavg(lr=0.3), fm.aggregators.median()),
    "diloco": lambda: fm.diloco(lr=0.01),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_with_equal_speeds_steps_are_synchronous_rounds(name):
    _, expected = simulated(ALGORITHMS[name]())
    _, found = simulated(ALGORITHMS[name](), cohort=fm.buffered(3, 3))
    alike(expected.params, found.params)
    alike(expected.training.client_states, found.training.client_states)


@pytest.mark.slow
def test_devices_give_the_same_numbers():
    clock = clocks.lognormal(1.0, key=KEY)
    how = {"cohort": fm.buffered(5, 2, clock)}
    _, alone = simulated(fm.scaffold(lr=0.3), **how)
    _, found = simulated(fm.scaffold(lr=0.3), devices=jax.devices()[:2], **how)
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    jax.tree.map(near, alone.params, found.params)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def alike(a, b):
    """The same bits; XLA of older versions fuses the two programs differently."""
    if jax.__version_info__ >= (0, 11):
        same(a, b)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, a, b)


def test_it_resumes_in_the_middle_of_the_queue():
    clock = clocks.lognormal(1.0, key=KEY)
    how = {"cohort": fm.buffered(5, 2, clock, dropout=0.2)}
    simulation, whole = simulated(fm.scaffold(lr=0.3), 9, **how)
    _, half = simulated(fm.scaffold(lr=0.3), 4, **how)
    again = federation.federation(fm.scaffold(lr=0.3), **how)
    resumed, _ = again.train_rounds(half, 5)
    same(whole.training, resumed.training)
    assert (
        simulation.meter.virtual_seconds(whole.key, whole.round)
        == again.meter.virtual_seconds(resumed.key, resumed.round)
        > 0
    )


def test_random_streams_are_by_the_start_of_a_job():
    """A client trains on the batches that it would have in a synchronous round."""
    shape = {"ids": jnp.zeros((2, 4), jnp.int32), "index": jnp.int32(-1)}

    def client(objective, broadcast, state, batches, round):
        del objective, state
        ids = getattr(batches, "ids", jnp.zeros((2, 4), jnp.int32))
        return broadcast, {"ids": ids, "index": jnp.asarray(round.index)}

    main = Exchange(fm.broadcast_params, client, lambda state, mean, round: state)
    spying = Algorithm(fm.ParamsMessage, lambda params: shape, (main,))
    every = federation.federation(spying, cohort=6)
    state, drawn = every.init(KEY), {}
    for index in range(8):
        state, _ = every.train_round(state)
        for who, ids in enumerate(state.training.client_states["ids"].tolist()):
            drawn[index, who] = ids
    clock = clocks.measured([1.0, 1.3, 1.7, 2.1, 4.0, 9.0])
    late, state = simulated(spying, 0, cohort=fm.buffered(6, 2, clock))
    starts = set()
    for index in range(8):
        state, _ = late.train_round(state)
        kept = jax.tree.map(np.asarray, state.training.client_states)
        for who in np.flatnonzero(kept["index"] >= 0):
            assert kept["ids"][who].tolist() == drawn[kept["index"][who].item(), who]
            starts.add(index - kept["index"][who].item())
    assert len(starts) > 3


def test_a_lost_message_leaves_later_starts_their_broadcast():
    """Client 0 sends NaN in every step; the others train as if it were absent."""

    def client(objective, broadcast, state, batches, round):
        del objective, state
        who = getattr(batches, "client", batches)  # shapes are asked without clients
        bad = jnp.where(who[0] == 0, jnp.nan, 0.0)
        step = jax.tree.map(lambda x: 0 * x + 1 + bad, broadcast.params)
        return fm.ParamsMessage(step), ()

    add = lambda state, mean, round: fm.ParamsMessage(
        jax.tree.map(jnp.add, state.params, mean.params)
    )
    main = Exchange(fm.broadcast_params, client, add)
    counting = Algorithm(fm.ParamsMessage, lambda params: (), (main,))
    clock = clocks.measured([1.0, 1.5, 1.75, 100, 100, 100])
    late = fm.buffered(6, 1, clock, staleness=staleness.constant())
    simulation, state = simulated(counting, 0, cohort=late)
    begin = state.params
    moved = simulation.init(KEY)
    moved, metrics = simulation.train_rounds(moved, 8)
    lost = int(np.asarray(metrics.lost)[0])
    assert lost > 1
    add_up = lambda a, b: np.testing.assert_allclose(b - a, 8 - lost, rtol=1e-5)
    jax.tree.map(add_up, begin, moved.params)


# ------------------------------------------------------------------------ virtual time


def test_a_round_lasts_as_long_as_its_slowest_member():
    step = np.array([1.0, 2, 3, 4, 5, 6])
    simulation = federation.federation(cohort=fm.timed(3, clocks.measured(step)))
    _, records = fm.run(
        simulation, simulation.init(KEY), rounds=5, evaluate_every=1, progress=False
    )
    seconds = np.diff([record["virtual_seconds"] for record in records])
    assert set(seconds / 2) <= {3.0, 4, 5, 6}  # two local steps, three members
    assert len(set(seconds)) > 1


def test_bytes_take_time_and_local_steps_differ():
    steps = [1, 2, 3, 1, 1, 1]
    clock = clocks.constant(step=0.0, byte=0.5)
    timed = federation.federation(cohort=fm.timed(3, clock), local_steps=steps)
    down, up = timed.meter.bytes_after(1)
    np.testing.assert_allclose(timed.meter.durations, 0.5 * (down + up) / 3)
    clock = clocks.constant(step=2.0)
    timed = federation.federation(cohort=fm.timed(3, clock), local_steps=steps)
    np.testing.assert_allclose(timed.meter.durations, 2 * np.array(steps))


def test_cohorts_of_all_runs_are_drawn_by_one_program():
    clock = clocks.measured([1.0, 2, 3, 4, 5, 6])
    simulation = federation.federation(cohort=fm.timed(4, clock, deadline=4.5))
    before = cohorts._block._cache_size()
    for seed in range(2 * TIMINGS + 1):
        varied = simulation.at(hyper={"lr": 0.1}) if seed % 2 else simulation
        assert varied.meter.timing(jax.random.key(seed)).seconds(3) > 0
    assert cohorts._block._cache_size() == before + 1
    other = fm.timed(4, clocks.constant(), deadline=9.0)
    other = federation.federation(cohort=other)
    assert other.meter.timing(jax.random.key(0)).seconds(3) > 0
    assert cohorts._block._cache_size() == before + 1
    assert len(simulation.meter._timings) == TIMINGS  # the last ones


def test_a_deadline_ends_rounds_without_those_who_are_late():
    clock = clocks.measured([1, 1, 1, 1, 1, 9])
    until = lambda deadline: fm.timed(5, clock, deadline=deadline)
    simulation, state = simulated(fm.scaffold(lr=0.3), 6, cohort=until(2.5))
    control = jax.tree.leaves(state.training.client_states)[0]
    assert np.abs(control[:5]).max(axis=tuple(range(1, control.ndim))).min() > 0
    assert np.abs(control[5]).max() == 0
    ends = [simulation.meter.timing(state.key).seconds(n) for n in range(7)]
    assert set(np.diff(ends)) <= {2.0, 2.5}
    assert 2.5 in np.diff(ends)
    _, whole = simulated(fm.scaffold(lr=0.3), 6, cohort=5)
    _, long = simulated(fm.scaffold(lr=0.3), 6, cohort=until(99.0))
    same(whole.params, long.params)


def test_clocks_have_the_speeds_that_they_name(tmp_path):
    assert set(clocks.constant(0.5, 2.0)(3).step) == {0.5}
    assert set(clocks.constant(0.5, 2.0)(3).byte) == {2.0}
    speeds = clocks.lognormal(0.7, step=2.0, key=KEY)(4000).step
    assert abs(np.median(speeds) / 2 - 1) < 0.05
    assert abs(np.log(speeds).std() / 0.7 - 1) < 0.05
    slow = clocks.two_speeds(8.0, 0.25, key=KEY)(40).step
    assert sorted(slow) == [1.0] * 30 + [8.0] * 10
    path = tmp_path / "trace.csv"
    path.write_text("client,step,byte\n1,0.5,1e-6\n0,0.25,2e-6\n")
    assert clocks.trace(path)(2).step.tolist() == [0.25, 0.5]
    assert clocks.trace(path)(2).byte.tolist() == [2e-6, 1e-6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,step\n0,1\n2,1\n", "lacks client 1"),
        ("client,step\n0,1\n0,1\n", "has a client twice"),
        ("client,steps\n0,1\n", "has no column 'step'"),
        ("client,step\n0,fast\n", "not all numbers"),
        ("client,step\n0,-1\n", "at least 0, got -1"),
        ("client,step\n0,1\n1,nan\n", "at least 0, got nan"),
        ("client,step\n0,0\n", "a time above 0 for a step"),
        ("", "has no column"),
        ("client,step\n", "has no clients"),
        ("client,step\n0,1\n-1,1\n", "lacks client 1"),
        ('client,step\n0,"' + 200_000 * "1", "not a CSV file"),
    ],
)
def test_traces_are_checked(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        clocks.trace(path)


@pytest.mark.slow
def test_all_methods_are_asynchronous_but_these():
    refused, model = {}, fm.models.MLP(3, (4,))
    frozen = model.init(KEY, federation.DATA.x_train[:1])["params"]
    how = {"rank": 2, "layers": ("Dense_0",), "head": "head", "folded": True}
    adapted = fm.tasks.lora.lora_classification(model, frozen, (5,), **how)
    for name, method in fm.algorithms.ALL.items():
        task = adapted if name in fm.algorithms.ADAPTERS else federation.TASK
        cohort = fm.buffered(4, 2)
        try:
            federation.federation(method.function(), task=task, cohort=cohort)
        except ValueError as error:
            refused[name] = str(error)
    of_all_messages = {"fedex_lora", "flora", "flexlora"}
    others = {"stem", "fafed", "streaming_diloco", "ef21_muon"}
    others |= {"fedcomuon_vr", "sign_vote", "signmuon", "muonusign", "muonsign"}
    assert set(refused) == others | of_all_messages
    assert all("give a" in text for text in refused.values())


def test_a_run_whose_clients_have_left_ends():
    for_good = {client: [(4.0, math.inf)] for client in range(N - 1)}
    with pytest.raises(ValueError, match="after 6 seconds and 4 rounds, too few"):
        schedule(fm.buffered(4, 2), np.full(N, 2.0), 9, away=for_good)


def test_jobs_that_end_without_an_answer_are_counted():
    """As sampled clients are that drop out: a lost job has received a model."""
    coin, tossed = np.random.default_rng(3), []
    lost = lambda: tossed.append(coin.random() < 0.8) or tossed[-1]
    steps = queue(fm.buffered(4, 2), np.arange(1.0, 7), lambda _: np.arange(6), lost)
    total = 0
    for step in itertools.islice(steps, 9):
        total += len(step.clients) + step.lost
        assert total == len(tossed)
    assert sum(tossed) == total - 18
    # of two clients, one is so slow that it is stopped after every other step
    slow = fm.buffered(2, 1, max_staleness=1)
    steps = queue(slow, np.array([1.0, 100.0]), lambda _: np.arange(2), lambda: False)
    assert [step.lost for step in itertools.islice(steps, 6)] == [0, 0, 1, 0, 1, 0]
    # and one that leaves
    away = {1: [(0.5, math.inf)]}
    steps = queue(slow, np.ones(2), lambda _: np.arange(2), lambda: False, away)
    assert [step.lost for step in itertools.islice(steps, 3)] == [1, 0, 0]


def test_bytes_are_those_of_all_jobs_and_of_messages_that_arrive():
    row = lambda cohort: run_of(cohort)[1][-1]
    plain, lossy = row(fm.buffered(4, 2)), row(fm.buffered(4, 2, dropout=0.8))
    assert "answered" not in plain
    assert lossy["answered"] == 2 * 6
    assert lossy["bytes_up"] == plain["bytes_up"]
    simulation, _ = run_of(fm.buffered(4, 2, dropout=0.8))
    jobs = simulation.meter.jobs(simulation.init(KEY).key, 6)
    assert jobs > 3 * 12
    assert lossy["bytes_down"] * 12 == plain["bytes_down"] * jobs
    # a record of three messages, in buffers of four
    record = [(0, 0, 0, 1.0), (0, 1, 0, 1.0), (1, 2, 1, 2.0)]
    replay = fm.replayed(fm.buffered(4, 4), record)
    simulation, rows = run_of(replay, rounds=2)
    assert rows[-1]["answered"] == 3
    per_message = simulation.meter.bytes_after(1).up // 4
    assert rows[-1]["bytes_up"] == rows[-1]["bytes_down"] == 3 * per_message


def run_of(cohort, rounds=6):
    simulation = federation.federation(fm.fedavg(lr=0.3), cohort=cohort)
    start = simulation.init(KEY)
    how = {"rounds": rounds, "evaluate_every": rounds, "progress": False}
    return simulation, fm.run(simulation, start, **how)[1]
