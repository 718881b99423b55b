"""Memory that simulations need, and what a machine has."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import federation
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from command import refused
from traces import by_code

from fedjax_muon import models, simulation, tasks
from fedjax_muon.algorithms import ALL
from fedjax_muon.cli import main
from fedjax_muon.core import tree
from fedjax_muon.data import Dataset, load
from fedjax_muon.engine import plans
from fedjax_muon.engine.sharding import REPLICATED, SHARDED, across, shardings
from fedjax_muon.planning import memory
from fedjax_muon.planning.memory import (
    UnknownMemoryError,
    check_memory,
    container_limits,
    limit_of,
    memory_bytes,
    memory_of,
)
from fedjax_muon.runs import directory
from fedjax_muon.runs.build import simulation_of
from fedjax_muon.runs.config import Config, Run
from fedjax_muon.simulation import rounds
from fedjax_muon.simulation.batching import with_replacement

pytestmark = pytest.mark.portable

FOUR = jax.devices()[:4]
KB = jnp.zeros(250)  # a thousand bytes


def peak(function, *given, donated=()):
    return memory.peak_bytes(jax.jit(function).trace(*given).jaxpr, donated)


def product(x):
    """Something that can't be written over what it is made from."""
    return jnp.flip(x)


def test_values_are_freed_and_written_over():
    # of what nobody reads one result and the next, at most, however many there are
    assert peak(lambda x: product(product(product(product(x)))), KB) == 2000
    assert peak(lambda x: product(x) + product(product(x)), KB) == 3000
    assert peak(lambda x: (product(x), 0)[1], KB) == 1000
    # what is element-wise is written over its operand
    assert peak(lambda x: jnp.sin(jnp.cos(jnp.exp(product(x)))), KB) == 1000
    assert peak(lambda x: jnp.sin(x), KB) == 1000
    assert peak(lambda x: jnp.sin(x), KB, donated=[True]) == 1000
    assert peak(lambda x: product(x), KB, donated=[True]) == 2000
    change = lambda x: x.at[3].set(1)
    assert 1000 <= peak(change, KB, donated=[True]) < 1100
    assert 2000 <= peak(lambda x: (change(x), x), KB, donated=[True]) < 2100
    # so are sums at indices
    add = lambda x: jnp.flip(x).at[jnp.array([3])].add(1.0)
    assert 1000 <= peak(add, KB) < 1100
    keep = lambda x: (product(x), product(x).at[jnp.array([3])].add(1.0))
    assert 2000 <= peak(keep, KB) < 2100
    # products copy their operands
    x = jnp.zeros((5, 50))
    assert peak(lambda x: x @ x.T, x) == 1000 + 2 * 1000 + 100


def test_a_loop_carries_in_place_and_stacks_its_results():
    body = lambda carry, x: (carry + product(x), jnp.sum(x))
    trace = lambda carry, xs: jax.lax.scan(body, carry, xs)
    xs = jnp.zeros((10, 250))
    # the sums; carry, a slice, what is made of it, and a sum
    assert peak(trace, KB, xs, donated=[True]) == 40 + 3000
    assert peak(trace, KB, xs) == 40 + 3000  # the carry is a copy
    both = peak(lambda c, xs: (trace(c, xs), c), KB, xs, donated=[True])
    assert both == 40 + 4000  # as it is if somebody reads the carry afterwards


def test_a_while_loop_and_branches():
    trace = lambda x: jax.lax.while_loop(lambda c: c[250 - 1] < 3, product, x)
    assert peak(trace, KB, donated=[True]) == 2000
    heavy = lambda x: product(product(product(x)))
    branch = lambda x: jax.lax.cond(x[0] > 0, heavy, lambda x: x, x)
    assert 2000 <= peak(branch, KB) < 2100
    assert 2000 <= peak(branch, KB, donated=[True]) < 2100


def test_of_several_devices_one_counts():
    x = jnp.zeros((4, 250))
    iteration = lambda x, y: product(product(x)) + y
    for devices, expected in ((FOUR, 2000), (FOUR[:1], 8000)):
        spread = across(devices, iteration, (SHARDED, REPLICATED), SHARDED)
        assert peak(spread, x, jnp.zeros((1, 250)), donated=[True]) == expected


SIZES = {"local_steps": 2, "batch_size": 8, "sampler": with_replacement}
TASK = tasks.classification(models.MLP(3, (64, 48)), (5,))


def prepared(name, plan, clients, cohort, task=TASK, data=None, **changes):
    data = federation.blobs(400) if data is None else data
    parts = np.array_split(np.arange(400, dtype=np.int32), clients)
    algorithm = ALL[name].function(lr=0.1)
    how = {"plan": plan, "cohort_size": cohort} | SIZES | changes
    return simulation.federate(algorithm, task, data, parts, **how)


def abstract(one):
    """The state of a simulation, where it is to lie."""
    init_state = partial(rounds.init_state, one.setup)
    state = jax.eval_shape(init_state, jax.random.key(0))
    if not one.setup.devices:
        return state
    put = lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
    place = lambda where, below: jax.tree.map(lambda x: put(x, where), below)
    where = shardings(one.setup.devices, simulation.STATE)
    return jax.tree.map(place, where, state)


def given_to_a_round(one):
    return one.inputs, abstract(one), one.clients, 1


def compiled(one) -> int:
    """What XLA allocates on a device for the state and the work of a round."""
    program = one.programs.rounds.lower(*given_to_a_round(one))
    # LLVM's optimisation takes most of the time, and has no part in this
    quick = {"xla_backend_optimization_level": 0}
    found = program.compile(compiler_options=quick).memory_analysis()
    examples = sum(x.addressable_data(0).nbytes for x in jax.tree.leaves(one.clients))
    total = found.argument_size_in_bytes + found.temp_size_in_bytes
    total += found.output_size_in_bytes - found.alias_size_in_bytes
    return total - examples


def estimated(one) -> int:
    traced = one.programs.rounds.trace(*given_to_a_round(one))
    donated = [True] * len(jax.tree.leaves(abstract(one)))
    return memory.peak_bytes(traced.jaxpr, donated)


@pytest.mark.slow
def test_the_estimate_is_close_and_grows_with_a_cohort_that_is_mapped_at_once():
    small, large = (prepared("fedavg_adam", plans.vmapped, 24, n) for n in (4, 24))
    allocated = compiled(small), compiled(large)
    found = estimated(small), estimated(large)
    ratios = *np.divide(found, allocated), *(np.diff(found) / np.diff(allocated))
    assert all(0.7 < ratio < 2.5 for ratio in ratios), ratios
    chunks = [prepared("fedavg_adam", plans.chunked(4), 24, n) for n in (8, 24)]
    few, many = map(estimated, chunks)
    # with the cohort grow ids, weights, notes and keys alone
    assert few <= many < few + 16 * 100


@pytest.mark.slow
def test_the_states_of_clients_are_updated_in_place():
    one = prepared("scaffold", plans.mapped, 80, 10)
    divided = prepared("scaffold", plans.mapped, 400, 4, devices=FOUR)
    state = abstract(divided).training
    client = tree.nbytes(state.client_states) // 400
    # every device needs its part alone
    part = 100 * client + tree.nbytes((state.server, state.index)) + 8
    for each, size in ((one, tree.nbytes(abstract(one))), (divided, part)):
        assert memory_of(each).state == size
        allocated = compiled(each)
        assert allocated < 1.3 * size
        assert 0.7 < estimated(each) / allocated < 2.5


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
    model = tree.nbytes(abstract(fafed[0]).params)
    assert many - few > 16 * model
    tiny = prepared("fedavg", plans.mapped, 8, 2, batch_size=1)
    hidden = 4 * 48 * 400
    assert memory_of(tiny).work > hidden > tree.nbytes(abstract(tiny))


def test_a_checked_simulation_is_not_traced_again():
    traces = []
    counting = lambda sizes: traces.append(sizes) or simulation.uniform(sizes)
    one = federation.federation(weighting=counting)
    check_memory(one)
    state = one.programs.create(jax.random.key(0))
    one.programs.rounds.lower(one.inputs, state, one.clients, 1)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", [names[-1] for names in by_code(ALL)])
def test_every_method_has_an_estimate(name):
    assert memory_of(prepared(name, plans.mapped, 4, 4)).work > 0


@pytest.fixture
def limit(monkeypatch):
    return lambda count: monkeypatch.setattr(memory, "limit_of", lambda _: count)


def refusal(one) -> str:
    with pytest.raises(ValueError, match=r"^this plan needs about ") as error:
        check_memory(one)
    return str(error.value)


@pytest.mark.slow
def test_a_plan_that_fits_is_named(limit):
    one = prepared("fedavg", plans.vmapped, 40, 36)
    need = lambda plan: memory_of(simulation.with_plan(one, plan)).total
    limit(need(plans.vmapped))
    check_memory(one)
    kinds = plans.vmapped, plans.chunked(18), plans.chunked(9)
    sizes = [need(plan) for plan in kinds]
    assert sizes[0] > sizes[1] > sizes[2]
    limit(sizes[2])
    total, fits = (memory.bytes_text(size) for size in (sizes[0], sizes[2]))
    assert refusal(one) == (
        f"this plan needs about {total} of memory, of {fits}; chunked with chunk_size "
        f"9 needs about {fits}"
    )
    three = prepared("fedavg", plans.vmapped, 40, 3, batch_size=512)
    limit(memory_of(simulation.with_plan(three, plans.mapped)).total)
    assert "; mapped needs about " in refusal(three)


@pytest.fixture
def accelerator(monkeypatch):
    """Devices that are said to be no CPUs."""
    device = SimpleNamespace(platform="gpu")
    return lambda: monkeypatch.setattr(memory.jax, "devices", lambda: [device])


@pytest.mark.slow
def test_the_compiler_counts_on_accelerators(limit, accelerator):
    one = prepared("fedavg", plans.vmapped, 40, 36)
    lowered = one.programs.rounds.lower(*given_to_a_round(one))
    xla = lowered.compile().memory_analysis()
    estimate, found = memory_of(one), memory_of(one, compiled=True)
    assert found._replace(work=0) == estimate._replace(work=0)
    work = xla.temp_size_in_bytes
    assert work <= found.work < 1.1 * work != estimate.work
    smaller = min(estimate.total, found.total)
    limit(smaller)
    first, then = refusal, check_memory
    if smaller != found.total:
        first, then = then, first
    first(one)
    accelerator()
    then(one)


def test_what_no_compiler_accepts_does_not_fit(limit, accelerator, monkeypatch):
    def refused(rounds):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory on HBM")

    monkeypatch.setattr(memory, "_compiled_work", refused)
    one = prepared("fedavg", plans.vmapped, 40, 36)
    accelerator()
    limit(10**9)
    with pytest.raises(ValueError, match=r"^this plan needs more memory than 1 GB; ch"):
        check_memory(one)


@pytest.mark.slow
def test_what_does_not_fit_at_all_is_named(limit):
    limit(9000)
    large = np.zeros((4000, 28, 28), np.float32)
    y = np.arange(4000, dtype=np.int32) % 3
    images = Dataset(large, y, large[:20], y[:20], ("a", "b", "c"))
    task = tasks.classification(federation.Linear(3), (28, 28))
    about = {"task": task, "data": images}
    said = refusal(prepared("fedavg", plans.mapped, 8, 4, **about))
    assert "of 9 kB; even mapped needs " in said
    fewer = " MB are examples: take fewer, or more devices and split_examples"
    assert said.endswith(fewer)
    about |= {"devices": FOUR, "split_examples": True}
    more = np.zeros((40_000, 28, 28), np.float32), np.resize(y, 40_000)
    about["data"] = Dataset(*more, large[:20], y[:20], ("a", "b", "c"))
    said = refusal(prepared("fedavg", plans.mapped, 8, 4, **about))
    assert "of memory on each device, of " in said
    assert said.endswith("examples: take fewer, or more devices")
    held = prepared("scaffold", plans.mapped, 80, 2)
    fewer = "are the state: take more devices, fewer clients or a smaller model"
    assert refusal(held).endswith(fewer)
    limit(2_500_000_000)
    said = refusal(prepared("fedavg", plans.mapped, 8, 2, batch_size=10_000_000))
    assert " GB of memory, of 2.5 GB; even mapped needs " in said
    assert said.endswith("are for the work: take smaller batches or a smaller model")


@pytest.mark.slow
def test_the_command_refuses_before_the_first_round(limit, capsys, tmp_path):
    config = Config(plan="vmapped", cohort_size=16)
    asked = Run("fedavg", {}, 0, config)
    alone = simulation_of(asked, load(config.dataset))
    limit(memory_of(alone).total - 1)
    old = directory.create(tmp_path / "old", asked)
    new = ["--plan", "vmapped", "--cohort-size", 16, "--output", tmp_path / "new"]
    line = refused(capsys, "train", "--algorithm", "fedavg", *new)
    assert line.startswith("this plan needs about ")
    assert line.count("; chunked with chunk_size ") == 1
    assert not (tmp_path / "new").exists()
    assert refused(capsys, "resume", old) == line
    assert refused(capsys, "compare", "fedavg", *new) == line
    assert not list(tmp_path.rglob("metrics.csv"))


# ---------------------------------------------------------- what cannot be estimated
def unreadable(number):
    """A scan in a form of no JAX that there is: with parameters of other names, without
    a program, or of an operation that nobody knows."""
    traced = jax.jit(lambda x: jax.lax.scan(lambda c, _: (c * 2, ()), x, length=3)[0])
    program = traced.trace(jnp.zeros(250)).jaxpr
    (eqn,) = program.jaxpr.eqns
    other = (
        {"params": {"reverse": False}},
        {"params": {"jaxpr": eqn.params["jaxpr"], "more": eqn.params["jaxpr"]}},
        {"primitive": jax.extend.core.Primitive("swirl")},
    )[number]
    ends = {"invars": program.jaxpr.invars, "outvars": program.jaxpr.outvars}
    given = {"constvars": (), "eqns": [eqn.replace(**other)], **ends}
    return SimpleNamespace(jaxpr=SimpleNamespace(**given))


def test_a_program_in_an_unknown_form_has_an_unknown_estimate():
    form = r"jax [0-9.]+ describes programs in an unknown form \(ValueError: "
    for number, message in enumerate((form, form, "the operation swirl is unknown")):
        with pytest.raises(UnknownMemoryError, match=message):
            memory.peak_bytes(unreadable(number))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_what_is_unknown_stops_no_run(monkeypatch, capsys, tmp_path):
    def unknown(program, donated=()):
        return memory._peak(unreadable(2).jaxpr, donated)

    monkeypatch.setattr(memory, "peak_bytes", unknown)
    with pytest.warns(UserWarning, match="^memory not checked: the operation swirl"):
        check_memory(federation.federation())
    short = ["--rounds", "1", "--model", "mlp", "--hidden", "4", "--cohort-size", "1"]
    out = tmp_path / "out"
    main(["train", "--algorithm", "fedavg", *short, "--output", str(out)])
    said = capsys.readouterr().err.splitlines()
    line = "fedjax-muon: warning: memory not checked: the operation swirl is unknown"
    assert said.count(line) == 1  # beside what other packages warn of
    assert len((out / "metrics.csv").read_text().splitlines()) == 3
    grid = ["--grid", "lr=0.1", "--seeds", "1", "--output", str(tmp_path / "grid")]
    main(["sweep", "--algorithms", "fedavg", *grid, *short])
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
