"""Rounds that are compiled for TPUs, where the compiler of TPUs is installed."""

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from fedjax_muon import ahead_of_time, data, models, partition
from fedjax_muon.ahead_of_time import compile_for
from fedjax_muon.algorithms import fedavg, fedmuon, scaffold
from fedjax_muon.decentralized import dsgd, topology
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.simulation.federated import federate
from fedjax_muon.tasks import classification
from tests.support.packages import needs

DIGITS = data.load("digits")
PARTS = partition.iid(DIGITS.y_train, 8, key=jax.random.key(0))
TASK = classification(models.MLP(10, (16,)), DIGITS)
COLLECTIVE = re.compile(r" (all-|reduce-scatter|collective-)[a-z-]*\(")
LOCK = Path("/tmp/libtpu_lockfile")  # of every process that loads the compiler


@pytest.fixture
def libtpu():
    needs("libtpu", "tpu-aot")


def simulated(algorithm, **given):
    sizes = {"cohort": 4, "local_steps": 3, "batch_size": 8}
    return federate(algorithm, TASK, DIGITS, PARTS, **sizes, **given)


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"^compiling for TPUs needs libtpu, .*pip"):
        compile_for(simulated(fedavg(lr=0.1)), "v5e:2x2")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v5e:1x1", "v6e:4x4"])
def test_one_reduction_ends_an_exchange(name, libtpu):
    compiled = compile_for(simulated(fedmuon(lr=0.1)), name)
    assert "fits" in ahead_of_time.report(compiled, name)
    lines = list(filter(COLLECTIVE.search, compiled.as_text().splitlines()))
    assert len(lines) == (name != "v5e:1x1")
    # the first loop is over rounds, a second one is local training
    assert all(line.count("while/body") == 1 for line in lines)
    assert all(" all-reduce(" in line for line in lines)


@pytest.mark.slow
def test_states_of_clients_and_agents_are_divided(libtpu):
    names = "v5e:1x1", "v5e:2x2"
    one, several = (
        compile_for(simulated(scaffold(lr=0.1)), name).memory_analysis()
        for name in names
    )
    assert several.argument_size_in_bytes < one.argument_size_in_bytes
    how = {"weights": topology.metropolis(topology.ring(8)), "batch_size": 8}
    agents = decentralize(dsgd(lr=0.1), TASK, DIGITS, PARTS, **how)
    assert COLLECTIVE.search(compile_for(agents, "v5e:2x2").as_text())
    with pytest.raises(ValueError, match="multiples of 2"):
        compile_for(agents, "v5e:3x3")


@pytest.mark.slow
def test_the_lock_of_another_process_is_set_aside(libtpu):
    code = "from fedjax_muon import ahead_of_time as compiler\n"
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
    sizes = {"cohort": 64, "local_steps": 1, "batch_size": 2}
    large = federate(fedavg(lr=0.1), wide, DIGITS, parts, **sizes)
    with pytest.raises(
        ValueError, match=r"^this plan does not fit: .*; take plan mapped"
    ):
        compile_for(large, "v5e:1x1")


def test_one_chip_does_not_divide_examples(monkeypatch):
    one = lambda name: jax.devices()[:1]
    monkeypatch.setattr(ahead_of_time, "topology_devices", one)
    sizes = {"cohort": 4, "local_steps": 2, "batch_size": 4}
    how = {"devices": jax.devices()[:2], "split_examples": True}
    simulation = federate(fedavg(lr=0.1), TASK, DIGITS, PARTS, **sizes, **how)
    with pytest.raises(ValueError, match="v5e:1x1 is one chip, but split_examples"):
        compile_for(simulation, "v5e:1x1")
