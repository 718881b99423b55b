"""Memory that simulations need, and what a machine has."""

from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import chex
import jax
import jax.extend
import numpy as np
import psutil
import pytest

from fedjax_muon import models, problems, simulation, tasks
from fedjax_muon.algorithms import ALL
from fedjax_muon.cli.main import main
from fedjax_muon.core import tree
from fedjax_muon.data import load
from fedjax_muon.data.dataset import digest
from fedjax_muon.engine import plans
from fedjax_muon.runs import compare, simulate as prepare
from fedjax_muon.simulation import memory, rounds, sweeps
from fedjax_muon.simulation.arguments import on_device
from fedjax_muon.simulation.batching import with_replacement
from fedjax_muon.simulation.groups import Outcome
from fedjax_muon.simulation.memory import (
    UnknownMemoryError,
    check_memory,
    container_limits,
    limit_of,
    memory_bytes,
    memory_of,
)
from tests.support import federation
from tests.support.command import refused

pytestmark = pytest.mark.portable

FOUR = jax.devices()[:4]
KEY = jax.random.key(0)
SIZES = {"local_steps": 2, "batch_size": 8, "sampler": with_replacement}
TASK = tasks.classification(models.MLP(3, (64, 48)), (5,))


def prepared(name, plan, clients, cohort, task=TASK, data=None, **changes):
    data = federation.blobs(400) if data is None else data
    parts = np.array_split(np.arange(400, dtype=np.int32), clients)
    algorithm = ALL[name].function(lr=0.1)
    how = {"plan": plan, "cohort": cohort} | SIZES | changes
    return simulation.federate(algorithm, task, data, parts, **how)


@pytest.mark.slow
def test_a_cohort_that_is_mapped_at_once_takes_its_clients_memory():
    model = tree.nbytes(jax.eval_shape(TASK.init, jax.random.key(0)))
    how = {"name": "fedavg_adam", "clients": 24}
    small, large = (prepared(plan=plans.vmapped, cohort=n, **how) for n in (4, 24))
    # parameters and both moments of Adam, for every client
    assert memory_of(large).work - memory_of(small).work > 20 * 3 * model
    chunks = [prepared(plan=plans.chunked(4), cohort=n, **how) for n in (8, 24)]
    few, many = (memory_of(one).work for one in chunks)
    assert many - few < 20 * model


@pytest.mark.slow
def test_the_states_of_clients_are_updated_in_place():
    one = prepared("scaffold", plans.mapped, 80, 10)
    divided = prepared("scaffold", plans.mapped, 400, 4, devices=FOUR)
    state = jax.eval_shape(partial(rounds.init_state, divided.settings), KEY).training
    client = tree.nbytes(state.client_states) // 400
    # every device needs its part alone
    part = 100 * client + tree.nbytes((state.server, state.index)) + 8
    whole = jax.eval_shape(partial(rounds.init_state, one.settings), KEY)
    for each, size in ((one, tree.nbytes(whole)), (divided, part)):
        need = memory_of(each)
        assert need.state == size
        assert need.work < 60 * client  # less than another copy of them


@pytest.mark.slow
def test_examples_count_where_they_lie():
    data = federation.blobs(400)
    labels = 4 * 400 + 4 * 20  # training and test
    ids = 4 * 400 + 2 * 4 * 8 + 4 * 3 * 8  # order, start and size, shares
    rates = 4 * 2  # lr and server_lr
    images = lambda count: 4 * 5 * count
    alone, same, split = (
        memory_of(prepared("fedavg", plans.mapped, 8, 4, data=data, **how)).examples
        for how in ({}, {"devices": FOUR}, {"devices": FOUR, "split_examples": True})
    )
    assert alone == same == images(420) + labels + ids + rates
    assert split == images(120) + labels + ids + rates


@pytest.mark.slow
def test_the_prologue_and_the_evaluation_count():
    # all clients run the prologue, and evaluations take batches of 512
    fafed = [prepared("fafed", plans.vmapped, n, n) for n in (4, 20)]
    few, many = (memory_of(one).work for one in fafed)
    model = tree.nbytes(jax.eval_shape(TASK.init, KEY))
    assert many - few > 16 * model
    tiny = prepared("fedavg", plans.mapped, 8, 2, batch_size=1)
    hidden = 4 * 48 * 400
    assert memory_of(tiny).work > hidden > model


@pytest.mark.slow
@pytest.mark.parametrize("devices", [(), FOUR], ids=["one", "four"])
def test_the_prologue_runs_as_many_clients_at_a_time_as_a_round(devices):
    how = {"plan": plans.vmapped, "cohort": 8, "devices": devices}
    few, many = (prepared("fedmuon", clients=n, **how) for n in (8, 200))
    model = tree.nbytes(jax.eval_shape(TASK.init, KEY))
    assert memory_of(many).work - memory_of(few).work < 2 * model


@pytest.mark.slow
@pytest.mark.parametrize("devices", [(), FOUR], ids=["one", "four"])
def test_a_prologue_that_is_padded_counts_each_client_once(devices):
    how = {"name": "fedmuon", "clients": 9, "cohort": 8}  # 9 is no multiple of a chunk
    reference = prepared(plan=plans.mapped, **how).init(KEY)
    state = prepared(plan=plans.vmapped, devices=devices, **how).init(KEY)
    given = reference.training.server, state.training.server
    chex.assert_trees_all_close(*map(jax.device_get, given), rtol=1e-5, atol=1e-7)


def test_a_checked_simulation_is_not_compiled_again():
    traces = []
    counting = lambda sizes: traces.append(sizes) or simulation.uniform(sizes)
    one = federation.federation(weighting=counting)
    check_memory(one)
    state = one.program.create(one.data, one.run, jax.random.key(0))
    one.compiled.rounds.lower(one.data, one.run, state, 1)
    assert len(traces) == 1


def a_device(process=0, **stats):
    about = {"platform": "gpu", "device_kind": "a kind", "process_index": process}
    return SimpleNamespace(**about, memory_stats=lambda: stats or None)


def test_the_limit_is_the_least_of_this_process():
    sizes = a_device(bytes_limit=7), a_device(bytes_limit=5), a_device(1, bytes_limit=3)
    assert limit_of(sizes) == 5
    assert limit_of() == 4 * limit_of(FOUR) + limit_of() % 4 > 1e9
    for one in (a_device(), a_device(bytes_in_use=3)):  # which do not say it
        with pytest.raises(UnknownMemoryError, match="a kind does not say how much"):
            limit_of([one])


@pytest.fixture
def limit(monkeypatch):
    return lambda count: monkeypatch.setattr(memory, "limit_of", lambda _: count)


def refusal(one) -> str:
    with pytest.raises(ValueError, match=r"^this plan needs \d") as error:
        check_memory(one)
    return str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [(), FOUR], ids=["one", "four"])
def test_what_does_not_fit_is_refused_with_the_numbers(limit, devices):
    one = prepared("fedavg", plans.mapped, 8, 4, devices=devices)
    need = memory_of(one)
    limit(need.total)
    check_memory(one)
    limit(need.total - 1)
    total, *parts = map(memory.bytes_text, (need.total, *need))
    each = " on each device" if devices else ""
    assert refusal(one).startswith(
        f"this plan needs {total} of memory{each}, of "
        f"{memory.bytes_text(need.total - 1)} (state {parts[0]}, examples {parts[1]}, "
        f"work {parts[2]}); take plan mapped, "
    )


def test_what_no_compiler_accepts_does_not_fit(limit, monkeypatch):
    def refused(program):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory on HBM")

    monkeypatch.setattr(memory, "work_of", refused)
    limit(10**9)
    with pytest.raises(ValueError, match=r"^this plan needs more memory than 1 GB; ta"):
        check_memory(prepared("fedavg", plans.vmapped, 40, 36))


@pytest.mark.slow
def test_the_command_refuses_before_the_first_round(limit, capsys, tmp_path):
    how = {"plan": plans.vmapped, "cohort": 16}
    alone = prepare(ALL["fedavg"].function(), problems.classification(), **how)
    limit(memory_of(alone).total - 1)
    words = ["--plan", "vmapped", "--cohort", 16, "--directory", tmp_path / "new"]
    line = refused(capsys, "train", "fedavg", *words)
    assert line.startswith("this plan needs ")
    assert refused(capsys, "compare", "fedavg", *words) == line
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_what_is_unknown_stops_no_run(monkeypatch, capsys, tmp_path):
    def unknown(devices):
        raise UnknownMemoryError("no device says")

    for module in (memory, sweeps):
        monkeypatch.setattr(module, "limit_of", unknown)
    with pytest.warns(UserWarning, match="^memory not checked: no device says"):
        check_memory(federation.federation())
    short = ["--rounds", "1", "--problem", "digits:model=mlp:4", "--cohort", "1"]
    out = tmp_path / "out"
    main(["train", "fedavg", *short, "--directory", str(out)])
    said = capsys.readouterr().err.splitlines()
    line = "fedjax-muon: warning: memory not checked: no device says"
    assert said.count(line) == 1  # beside what other packages warn of
    assert len((out / "metrics.csv").read_text().splitlines()) == 3
    grid = ["--seeds", "1", "--no-extend", "--directory", str(tmp_path / "grid")]
    main(["sweep", "fedavg", "--grid", "lr=0.1,0.2", *grid, *short])
    assert "memory not checked, one cell at a time: " in capsys.readouterr().err


# ------------------- memory of containers, and machines that lack what Linux has

TOTAL = psutil.virtual_memory().total
IN_A_SLICE = {"app.slice": (2, 3_000_000), "app.slice__one": (2, 5_000_000)}
OF_BOTH = {"memory__a": (1, 9_000_000), "unified": (2, 8_000_000)}
UNLIMITED = 9223372036854771712  # what version 1 says where there is no limit


def machine(root: Path, groups: str, **limits) -> Path:
    """A root directory with a process's groups and the limits of some."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, limit in limits.items():
        place = root / "sys/fs/cgroup" / name.replace("__", "/")
        place.mkdir(parents=True)
        file = "memory.max" if limit[0] == 2 else "memory.limit_in_bytes"
        (place / file).write_text(f"{limit[1]}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "limits", "found"),
    [
        # a container that sees its own group alone, at the top
        ("0::/\n", {"": (2, 650_000_000)}, 650_000_000),
        ("0::/\n", {"": (2, "max")}, TOTAL),
        # a service within a slice, where the slice allows less
        ("0::/app.slice/one\n", IN_A_SLICE, 3_000_000),
        # version 1, alone and beside version 2, the path of the host unseen
        ("4:memory:/docker/abc\n1:cpu:/\n", {"memory": (1, 7_000_000)}, 7_000_000),
        ("4:cpu,memory:/\n", {"memory": (1, UNLIMITED)}, TOTAL),
        ("4:memory:/a\n0::/\n", OF_BOTH, 8_000_000),
        ("0::/../else:where\n", {"": (2, 4_000_000)}, 4_000_000),
    ],
)
def test_the_smallest_limit_of_the_groups_counts(tmp_path, groups, limits, found):
    assert memory_bytes(tmp_path / "without groups") == TOTAL
    assert list(container_limits(tmp_path / "without groups")) == []
    assert memory_bytes(machine(tmp_path, groups, **limits)) == found


def test_methods_that_are_compared_share_one_copy_of_the_examples(monkeypatch):
    problem = problems.classification()
    shape = problem.dataset.x_train.shape
    earlier = jax.live_arrays()  # of other tests, which stay where they are
    others, held = {id(x) for x in earlier}, list[int]()
    row = {"round": 0, "validation_accuracy": 0.5, "validation_loss": 1.0}
    row |= {"test_accuracy": 0.5, "train_loss": 1.0}

    def count():
        mine = [x for x in jax.live_arrays() if x.shape[1:] == shape[1:]]
        large = [x for x in mine if len(x) > shape[0] // 2 and id(x) not in others]
        held.append(len({x.unsafe_buffer_pointer() for x in large}))

    def train(*given):
        count()
        return None, [row]

    def cells(simulation, wanted, **how):
        count()
        yield [Outcome([row], None) for _ in wanted]

    monkeypatch.setattr(import_module("fedjax_muon.runs.compare"), "run", train)
    monkeypatch.setattr(import_module("fedjax_muon.runs.cells"), "run_cells", cells)
    makes = {"one": ALL["fedavg"], "two": ALL["fedmuon"], "three": ALL["scaffold"]}
    methods = {name: row.function() for name, row in makes.items()}
    grid = {"lr": (0.01, 0.1, 1.0)}
    compare(methods, problem, rounds=2, grid=grid, progress=False)
    assert len(held) >= 3 + 3 * 3  # of searches and of runs
    assert max(held) == 2  # all of them, and those without validation


def test_examples_on_the_device_have_the_digest_of_those_on_the_host():
    digits = load("digits")
    moved = digits._replace(x_train=on_device(digits.x_train))
    assert digest(moved) == digest(digits)
    assert digest(moved._replace(x_train=moved.x_train + 1)) != digest(digits)
