"""Rounds that are compiled for TPUs, where the compiler of TPUs is installed."""

import fcntl
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packages import needs

from fedjax_muon import data, models, partition
from fedjax_muon.algorithms import fedavg, fedmuon, scaffold
from fedjax_muon.decentralized import dsgd, topology
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.engine.plans import mapped
from fedjax_muon.planning import ahead_of_time
from fedjax_muon.planning.ahead_of_time import (
    Collective,
    Products,
    collectives_of,
    compile_for,
    products_of,
)
from fedjax_muon.simulation.federated import federate
from fedjax_muon.tasks import classification

DIGITS = data.load("digits")
PARTS = partition.iid(DIGITS.y_train, 8, key=jax.random.key(0))
TASK = classification(models.MLP(10, (16,)), DIGITS)
LOCK = Path("/tmp/libtpu_lockfile")  # of every process that loads the compiler


@pytest.fixture
def libtpu():
    needs("libtpu", "tpu-aot")


def simulated(algorithm, **given):
    sizes = {"cohort_size": 4, "local_steps": 3, "batch_size": 8}
    return federate(algorithm, TASK, DIGITS, PARTS, **sizes, **given)


def test_products_are_counted_as_often_as_they_run():
    a, b = jnp.ones((2, 3)), jnp.ones((3, 5))

    def program(a, b):
        once = jnp.tanh(a @ b)
        body = lambda x, _: (x @ b @ b.T, None)
        many, _ = jax.lax.scan(body, a, length=4)
        either = jax.lax.cond(a[0, 0] > 0, lambda: a @ b, lambda: once + 1)
        return once, many, either

    one, nbytes = 2 * 2 * 3 * 5, 4 * (2 * 3 + 3 * 5 + 2 * 5)
    times = 1 + 4 * 2 + 1
    found = products_of(jax.make_jaxpr(program)(a, b), "tpu")
    assert found == Products(times * one, times * nbytes)


def test_of_the_forms_for_each_platform_one_counts():
    def program(a):
        forms = {"cpu": lambda a: a @ a @ a, "default": lambda a: a @ a}
        return jax.lax.platform_dependent(a, **forms)

    traced = jax.make_jaxpr(program)(jnp.ones((2, 2)))
    flops = [products_of(traced, name).flops for name in ("cpu", "tpu", "cuda")]
    assert flops == [32, 16, 16]


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_count_as_xla_counts_them(groups):
    x, kernel = jnp.ones((2, 8, 8, 4)), jnp.ones((3, 3, 4 // groups, 6))

    def convolve(x, kernel):
        how = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        how |= {"feature_group_count": groups, "padding": "VALID"}
        return jax.lax.conv_general_dilated(x, kernel, window_strides=(1, 1), **how)

    xla = jax.jit(convolve).lower(x, kernel).compile().cost_analysis()
    ours = products_of(jax.make_jaxpr(convolve)(x, kernel), "tpu")
    assert ours == (xla["flops"], xla["bytes accessed"])


@pytest.mark.slow
def test_a_round_counts_all_its_local_steps():
    simulation = simulated(fedavg(lr=0.1), plan=mapped)
    state = simulation.init(jax.random.key(0))
    given = simulation.inputs, state, simulation.clients, 1
    found = products_of(simulation.programs.rounds.trace(*given).jaxpr, "tpu").flops
    # forward, both gradients of the second layer, one of the first
    features = math.prod(DIGITS.x_train.shape[1:])
    per_example = 2 * (2 * features * 16 + 3 * 16 * 10)
    assert found == pytest.approx(4 * 3 * 8 * per_example, rel=0.02)


TEXT = """
%psum.8 = f32[9629]{0:T(1024)S(1)} all-reduce(%concatenate.55), channel_id=1
%a = (bf16[4,8]{1,0}, pred[3]{0}) all-reduce-start(%x, %y), channel_id=2
%b = (bf16[4,8]{1,0}, pred[3]{0}) all-reduce-done(%a)
%c = (f32[2]{0}, f32[8]{0}) all-gather-start(%z), metadata={op_name="while/body/a"}
%g = f32[8]{0} all-gather(%z), metadata={op_name="jit/while/body/b/while/body/c" id=3}
ROOT %d = s32[] add(%e, %f), metadata={op_name="all-reduce(it)"}
"""


def test_communication_is_read_from_the_program():
    assert collectives_of(TEXT) == (
        Collective("all-reduce", 2, 4 * 9629 + 2 * 32 + 3, 0),
        Collective("all-gather", 2, 4 * (2 + 8) // 2 + 4 * 8, 1),
    )
    assert collectives_of("ROOT %d = s32[] add(%e, %f)") == ()


@pytest.mark.parametrize("name", ["v9:2x2", "v5e", "v5e:2", "v5e:axb", ""])
def test_unknown_topologies_are_refused(name):
    with pytest.raises(ValueError, match=r"such as v4:2x2, v5e:2x2, v5p:2x2, v6e"):
        compile_for(simulated(fedavg(lr=0.1)), name)


def test_a_compiler_that_is_missing_or_locked_is_named(monkeypatch):
    def locked(**given):
        raise RuntimeError(
            "ABORTED: error when accessing libtpu multi-process lockfile"
        )

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", locked)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    with pytest.raises(
        ValueError, match=r"^another process has locked the TPU compiler"
    ):
        compile_for(simulated(fedavg(lr=0.1)), "v5e:2x2")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"^compiling for TPUs needs libtpu, .*pip"):
        compile_for(simulated(fedavg(lr=0.1)), "v5e:2x2")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v5e:1x1", "v6e:4x4"])
def test_one_reduction_ends_an_exchange(name, libtpu):
    compiled = compile_for(simulated(fedmuon(lr=0.1)), name)
    assert compiled.fits
    assert compiled.devices == (1 if name == "v5e:1x1" else 16)
    params = jax.tree.leaves(jax.eval_shape(TASK.init, jax.random.key(0)))
    numbers = sum(x.size for x in params)
    found = {one.kind: one for one in compiled.collectives}
    assert set(found) == (set() if compiled.devices == 1 else {"all-reduce"})
    for one in compiled.collectives:
        assert (one.operations, one.in_loops) == (1, 0)
        assert 4 * numbers <= one.nbytes < 8 * numbers + 1000
    text = "\n".join(map(str, ahead_of_time.table(compiled).columns[1].cells))
    assert "fits" in text


@pytest.mark.slow
def test_states_of_clients_and_agents_are_divided(libtpu):
    names = "v5e:1x1", "v5e:2x2"
    one, several = (compile_for(simulated(scaffold(lr=0.1)), name) for name in names)
    assert several.memory.arguments < one.memory.arguments
    assert several.products.flops == pytest.approx(one.products.flops / 4)
    how = {"weights": topology.metropolis(topology.ring(8)), "batch_size": 8}
    agents = decentralize(dsgd(lr=0.1), TASK, DIGITS, PARTS, **how)
    assert compile_for(agents, "v5e:2x2").collectives
    with pytest.raises(ValueError, match="multiples of 2 such as 2x2, 4x4"):
        compile_for(agents, "v5e:3x3")
    assert np.isfinite(several.seconds)


@pytest.mark.slow
def test_the_lock_of_another_process_is_set_aside(libtpu):
    code = "from fedjax_muon.planning import ahead_of_time as compiler\n"
    code += "print(len(compiler.topology_devices('v5e:2x2')))"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("ALLOW_MULTIPLE_LIBTPU_LOAD", None)
    how = {"env": environment, "capture_output": True, "text": True}
    with LOCK.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        found = subprocess.run([sys.executable, "-c", code], **how)
    assert (found.stdout.strip(), found.returncode) == ("4", 0), found.stderr


@pytest.mark.slow
def test_what_does_not_fit_is_refused(libtpu):
    wide = classification(models.MLP(10, (8192, 8192)), DIGITS)
    parts = partition.iid(DIGITS.y_train, 64, key=jax.random.key(0))
    sizes = {"cohort_size": 64, "local_steps": 1, "batch_size": 2}
    large = federate(fedavg(lr=0.1), wide, DIGITS, parts, **sizes)
    with pytest.raises(
        ValueError, match=r"^this plan does not fit: .*; take plan mapped"
    ):
        compile_for(large, "v5e:1x1")


def test_one_chip_does_not_divide_examples(monkeypatch):
    one = lambda name: jax.devices()[:1]
    monkeypatch.setattr(ahead_of_time, "topology_devices", one)
    sizes = {"cohort_size": 4, "local_steps": 2, "batch_size": 4}
    how = {"devices": jax.devices()[:2], "split_examples": True}
    simulation = federate(fedavg(lr=0.1), TASK, DIGITS, PARTS, **sizes, **how)
    with pytest.raises(ValueError, match="v5e:1x1 is one chip, and split_examples"):
        compile_for(simulation, "v5e:1x1")
