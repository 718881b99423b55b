"""Several devices and processes: the same numbers, little communication."""

import re
import socket
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon import simulation
from fedjax_muon.algorithms import ALL
from fedjax_muon.engine import plans, processes, sharding
from fedjax_muon.engine.launch import PLACES
from fedjax_muon.runs import metrics_csv
from fedjax_muon.runs.loading import load_run
from fedjax_muon.simulation import batching, sweeps
from fedjax_muon.simulation.batching import with_replacement
from tests.support import federation
from tests.support.command import run, spawn, wait_for
from tests.support.federation import assert_close, assert_same_bits, trained
from tests.support.jaxprs import equations

EIGHT = jax.devices()[:8]
SCAFFOLD = ALL["scaffold"].function(lr=0.3)  # private states, and a prologue: none
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective")


def unpadded(prepared, training):
    first = lambda x: x[: prepared.settings.num_clients]
    return training._replace(client_states=jax.tree.map(first, training.client_states))


def test_eight_devices_give_six_clients_the_same_numbers():
    # a prologue, and states of clients; another test splits the examples
    how = {"algorithm": ALL["stem"].function(lr=0.1), "cohort": 6}
    alone = federation.federation(**how)
    shared = federation.federation(**how, devices=EIGHT)
    want, got = trained(alone, 1, 5), trained(shared, 1, 5)
    assert_close(unpadded(shared, got.training), want.training)
    assert_close(shared.evaluate(got), alone.evaluate(want))
    assert shared.meter.bytes_after(5) == alone.meter.bytes_after(5)


@pytest.mark.slow
def test_a_plan_within_a_device_and_dropouts_and_gaps():
    # five of six clients on two devices, in chunks of two: none of it is divided
    how = {"cohort": fm.sampled(5, dropout=0.4), "sampler": batching.full_batch}
    want = trained(federation.federation(SCAFFOLD, **how), 2, 4)
    where = {"devices": EIGHT[:2], "plan": plans.chunked(2), "split_examples": True}
    shared = federation.federation(SCAFFOLD, **where, **how)
    assert_close(unpadded(shared, trained(shared, 2, 4).training), want.training)


@pytest.mark.slow
def test_all_clients_run_where_their_states_are():
    # six clients on four devices, so two of eight places are padding
    plan = plans.chunked(2)
    how = {"cohort": fm.sampled(6, dropout=0.3), "plan": plan}
    alone = federation.federation(SCAFFOLD, **how)
    shared = federation.federation(SCAFFOLD, devices=EIGHT[:4], **how)
    want, got = trained(alone, 2, 5), trained(shared, 2, 5)
    assert_close(unpadded(shared, got.training), want.training)
    controls = jax.tree.leaves(want.training.client_states)
    assert all(jnp.any(x != 0) for x in controls)
    text = lowered(SCAFFOLD, cohort=6, plan=plan).lower().compile().as_text()
    assert operations(text) == {"all-reduce": 1}


def test_a_message_that_is_not_finite_is_named():
    data = federation.DATA
    spoilt = data._replace(x_train=data.x_train.copy())
    spoilt.x_train[federation.PARTS[4][0]] = 3e38
    how = {"cohort": 6, "sampler": batching.full_batch, "data": spoilt}
    shared = federation.federation(devices=EIGHT, split_examples=True, **how)
    state, metrics = shared.train_rounds(shared.init(jax.random.key(0)), 3)
    np.testing.assert_array_equal(metrics.lost, [0, 0, 0, 0, 3, 0])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))


def test_copies_are_made_in_an_order_that_all_processes_share(monkeypatch):
    given = sorted((np.zeros(n) for n in (1, 2, 3)), key=id, reverse=True)
    seen = []
    real = sharding.placed

    def placed(tree, *rest):
        seen.extend(jax.tree.leaves(tree))
        return real(tree, *rest)

    monkeypatch.setattr(sharding, "placed", placed)
    first, *_, last = sharding.replicated([*given, given[0]], EIGHT)
    assert [id(x) for x in seen] == [id(x) for x in given]  # and each once
    assert first is last


@pytest.mark.slow
def test_every_device_holds_its_part_of_the_clients():
    shared = federation.federation(SCAFFOLD, devices=EIGHT, split_examples=True)
    state = shared.init(jax.random.key(0))
    before = jax.tree.map(lambda x: x.sharding, state)
    state = shared.train_rounds(state, 2)[0]
    after = jax.tree.map(lambda x: x.sharding, state)
    assert jax.tree.leaves(before) == jax.tree.leaves(after)
    for x in [*jax.tree.leaves(state.training.client_states), shared.clients.x]:
        total = len(x)
        assert total % 8 == 0
        assert {s.data.shape[0] for s in x.addressable_shards} == {total // 8}
    assert all(x.is_fully_replicated for x in jax.tree.leaves(state.params))
    # six clients, padded
    assert len(jax.tree.leaves(state.training.client_states)[0]) == 8
    assert shared.clients.x.shape[0] == 80


@pytest.mark.slow
def test_rounds_are_compiled_once_and_resume_to_the_bit(caplog):
    shared = federation.federation(SCAFFOLD, devices=EIGHT)
    state = shared.init(jax.random.key(3))
    with jax.log_compiles():
        state = shared.train_rounds(state, 2)[0]
        kept = jax.tree.map(jnp.copy, state)
        once = shared.train_rounds(state, 5)[0]
        others = federation.cut([5, 10, 15, 20, 12, 13], seed=9)
        moved = shared.at(parts=others)
        moved.train_rounds(moved.init(jax.random.key(0)), 1)
        again = shared.train_rounds(shared.train_rounds(kept, 3)[0], 2)[0]
    assert_same_bits(again, once)
    said = [r.getMessage() for r in caplog.records]
    compiled = [s for s in said if s.startswith("Finished XLA compilation of jit(")]
    assert len([s for s in compiled if "jit(rounds)" in s]) == 1, compiled


def lowered(algorithm, **changes):
    shared = federation.federation(algorithm, devices=EIGHT, **changes)
    state = shared.init(jax.random.key(0))
    return shared.compiled.rounds.trace(shared.data, shared.run, state, 1)


def operations(text: str) -> dict[str, int]:
    """How many collectives there are of each kind, in compiled text."""
    found = re.findall(rf"= .*? ({'|'.join(COLLECTIVES)})[a-z-]*\(", text)
    return {name: found.count(name) for name in COLLECTIVES if name in found}


@pytest.mark.slow
def test_one_reduction_ends_an_exchange():
    for name in ("fedavg", "padamfed_vr", "scaffold"):
        algorithm = ALL[name].function(lr=0.1)
        traced = lowered(algorithm)
        found = operations(traced.lower().compile().as_text())
        assert found.pop("all-reduce") == len(algorithm.exchanges), name
        has_states = algorithm.init_client(federation.TASK.init(jax.random.key(0)))
        assert bool(found) == bool(jax.tree.leaves(has_states)), (name, found)


@pytest.mark.slow
def test_local_training_has_no_communication():
    steps = 7  # no other scan is as long
    how = {"local_steps": steps, "split_examples": True, "sampler": with_replacement}
    traced = lowered(ALL["scaffold"].function(lr=0.1), **how)
    talking = ("psum", "all_gather", "reduce_scatter", "psum_scatter", "ppermute")
    found = list(equations(traced.jaxpr.jaxpr))
    # states and examples travel
    assert {"all_gather", "reduce_scatter"} <= {e.primitive.name for e in found}
    scans = [e.params for e in found if e.primitive.name == "scan"]
    loops = [scan["jaxpr"].jaxpr for scan in scans if scan["length"] == steps]
    inside = [e.primitive.name for loop in loops for e in equations(loop)]
    assert not [name for name in inside if name.startswith(talking)]
    assert "dot_general" in inside


def test_gradients_are_not_summed_over_devices():
    """`jax.grad` of a replicated parameter inside shard_map would, if it were typed."""
    devices = EIGHT[:2]

    part = lambda w, x: jax.grad(lambda w: jnp.sum(w * x))(w)[None]
    same, split = sharding.REPLICATED, sharding.SHARDED
    whole = sharding.across(devices, part, (same, split), split)
    np.testing.assert_array_equal(whole(jnp.ones(()), jnp.array([1.0, 5.0])), [1, 5])


def test_other_devices_are_refused():
    shared = federation.federation(devices=EIGHT)
    cells = [sweeps.Cell({}, jax.random.key(0), federation.PARTS)]
    with pytest.raises(ValueError, match="one device"):
        list(sweeps.run_cells(shared, cells, rounds=1))
    assert simulation.STATE.training.client_states == sharding.SHARDED


# ---------------- two processes that train together, until one of them is killed

TOGETHER = ["train", "scaffold", "--problem", "digits:clients=6,model=mlp:8"]
TOGETHER += ["--cohort", 3, "--local-steps", 2, "--batch-size", 8]
TOGETHER += ["--evaluate-every", 20]


@pytest.mark.slow
def test_two_processes_are_one_run_and_the_death_of_one_ends_the_other(tmp_path):
    place = tmp_path / "both"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        coordinator = f"localhost:{free.getsockname()[1]}"
    command = [*TOGETHER, "--rounds", 10**6, "--directory", place, "--distributed"]
    places = {PLACES[0]: coordinator, PLACES[1]: "2"}
    both = [spawn(*command, **places, **{PLACES[2]: str(i)}) for i in range(2)]
    checkpoints = lambda: place.glob("checkpoints/[0-9]*")
    saved = lambda: sorted(int(p.name) for p in checkpoints() if p.name.isdigit())
    try:
        wait_for(lambda: saved()[-1:] > [0], both[0])
        both[1].kill()
        killed = time.monotonic()
        output = both[0].communicate(timeout=60)[0]
    finally:
        for process in both:
            process.kill()
            process.communicate()
    assert time.monotonic() - killed < 60
    assert both[0].returncode != 0, output

    # one process reads what two have written: of the six clients, three each
    last, alone = saved()[-1], tmp_path / "alone"
    run(*TOGETHER, "--rounds", last, "--directory", alone)
    ours, theirs = (metrics_csv.read(p / "metrics.csv") for p in (alone, place))
    assert ours["round"].tolist() == list(range(0, last + 1, 20))
    for name in set(ours) - {"seconds"}:
        known = theirs[name][: len(ours[name])]
        np.testing.assert_allclose(known, ours[name], 1e-3, 1e-4, err_msg=name)
    got, want = load_run(place).params, load_run(alone).params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-3, 1e-3), got, want)


def test_one_process_is_the_first_and_agrees_with_itself():
    assert processes.is_first()
    assert processes.broadcast_from_first(0.25) == 0.25
    np.testing.assert_array_equal(processes.full_array(jax.numpy.arange(3)), [0, 1, 2])
