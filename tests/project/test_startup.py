"""libtpu is silent without a TPU, and compiled programs are found again."""

import os
import subprocess
import sys

import jax
import pytest

import fedjax_muon as fm
from fedjax_muon import startup
from tests.support.packages import needs


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(startup.importlib.util, "find_spec", lambda name: name)
    for name in startup.NO_TPU:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("chip", ["accel0", "vfio/0"])
def test_where_a_tpu_is_nothing_is_set(chip, installed, tmp_path):
    (tmp_path / chip).parent.mkdir(exist_ok=True)
    (tmp_path / chip).touch()
    startup.quiet_libtpu(tmp_path)
    assert not startup.NO_TPU.keys() & os.environ.keys()


def test_without_a_tpu_what_is_set_already_stays(installed, tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "mine")
    startup.quiet_libtpu(tmp_path)
    expected = startup.NO_TPU | {"TPU_WORKER_HOSTNAMES": "mine"}
    assert {name: os.environ[name] for name in startup.NO_TPU} == expected


@pytest.mark.slow
def test_looking_for_devices_prints_nothing():
    needs("libtpu", "tpu-aot")
    given = {k: v for k, v in os.environ.items() if k not in startup.NO_TPU}
    given.pop("JAX_PLATFORMS", None)
    code = "import fedjax_muon, jax; jax.devices()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=given, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize("path", ["tasks.lora.merged", "data.tokenizers.from_file"])
def test_modules_are_there_after_a_fresh_import(path):
    code = f"import fedjax_muon as fm; fm.{path}"
    subprocess.run([sys.executable, "-c", code], check=True)


# -------------------------------------------------------------- programs kept on disk

NAME = "jax_compilation_cache_dir"
LEAST = "jax_persistent_cache_min_compile_time_secs"


@pytest.fixture(autouse=True)
def without_a_cache():
    before = {name: getattr(jax.config, name) for name in (NAME, LEAST)}
    jax.config.update(NAME, None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_programs_are_kept_in_the_first_place_that_is_said(tmp_path):
    for name in ("first", "second"):
        fm.cache_programs(tmp_path / name)
        assert getattr(jax.config, NAME) == str(tmp_path / "first")
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_small_programs_are_kept_too_unless_the_user_says_otherwise(tmp_path):
    code = (
        "import jax, pathlib, sys, fedjax_muon as fm;"
        "fm.cache_programs(pathlib.Path(sys.argv[1]));"
        "jax.jit(lambda x: x + 1)(1.0)"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    for name, value, kept in (("default", None, True), ("given", "1.5", False)):
        given = {} if value is None else {LEAST.upper(): value}
        command = [sys.executable, "-c", code, tmp_path / name]
        subprocess.run(command, env=environment | given, check=True)
        assert (
            any("lambda" in path.name for path in (tmp_path / name).iterdir()) is kept
        )


def test_without_a_place_there_is_a_warning_and_no_cache(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="compiled programs are not kept"):
        fm.cache_programs(tmp_path / "file" / "programs")
    assert getattr(jax.config, NAME) is None


AGAIN = """
import pathlib, sys, jax, optax
import numpy as np
import fedjax_muon as fm

place = pathlib.Path(sys.argv[1])
fm.cache_programs(place)
power = 1.0
x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
data = fm.data.Dataset(x, np.arange(40) % 2, x[:8], np.arange(8) % 2, ("a", "b"))
parts = np.split(np.arange(40), [5, 20])


def trained():
    rule = optax.chain(optax.trace(0.9), optax.scale(0.5))
    method = fm.fedavg(lr=optax.linear_schedule(0.3, 0.0, 10), rule=rule)
    task = fm.tasks.classification(fm.models.MLP(2, ()), data)
    sizes = {"cohort": 3, "local_steps": 2, "batch_size": 4}
    weighting = lambda sizes: sizes**power
    made = fm.federate(method, task, data, parts, weighting=weighting, **sizes)
    state, _ = made.train_rounds(made.init(jax.random.key(0)), 2)
    float(made.evaluate(state)["test_loss"])
    kernel = np.asarray(state.params["head"]["kernel"])
    return kernel.tobytes(), len(list(place.glob("*-cache")))


first, again = trained(), trained()
assert first == again and first[1] > 5, (first[1], again[1])
power = 2.0
other = trained()
assert other[0] != first[0] and other[1] > first[1]
"""


@pytest.mark.slow
def test_what_is_made_again_is_compiled_once_and_a_changed_global_anew(tmp_path):
    """Rules, schedules and lambdas of the second simulation are other objects."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    command = [sys.executable, "-c", AGAIN, tmp_path / "programs"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
