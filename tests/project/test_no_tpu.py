"""Where libtpu is installed without a TPU, it is silent."""

import os
import subprocess
import sys

import pytest
from packages import needs

from fedjax_muon import no_tpu


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(no_tpu.importlib.util, "find_spec", lambda name: name)
    for name in no_tpu.NO_TPU:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("chip", ["accel0", "vfio/0"])
def test_where_a_tpu_is_nothing_is_set(chip, installed, tmp_path):
    (tmp_path / chip).parent.mkdir(exist_ok=True)
    (tmp_path / chip).touch()
    no_tpu.quiet_libtpu(tmp_path)
    assert not no_tpu.NO_TPU.keys() & os.environ.keys()


def test_without_a_tpu_what_is_set_already_stays(installed, tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "mine")
    no_tpu.quiet_libtpu(tmp_path)
    expected = no_tpu.NO_TPU | {"TPU_WORKER_HOSTNAMES": "mine"}
    assert {name: os.environ[name] for name in no_tpu.NO_TPU} == expected


@pytest.mark.slow
def test_looking_for_devices_prints_nothing():
    needs("libtpu", "tpu-aot")
    given = {k: v for k, v in os.environ.items() if k not in no_tpu.NO_TPU}
    given.pop("JAX_PLATFORMS", None)
    code = "import fedjax_muon, jax; jax.devices()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=given, capture_output=True, text=True)
    assert done.stderr == ""
