"""Two processes that train together, until one of them is killed."""

import socket
import time

import jax
import numpy as np
import pytest
from command import SMALL, refused, run, spawn, wait_for

from fedjax_muon import data
from fedjax_muon.engine import processes
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import build as building
from fedjax_muon.runs import directory
from fedjax_muon.runs.train import last_params

TOGETHER = [
    *("train", "--algorithm", "scaffold", "--model", "mlp", "--hidden", "8", *SMALL),
    *("--evaluate-every", "20"),
]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


@pytest.mark.slow
def test_two_processes_are_one_run_and_the_death_of_one_ends_the_other(tmp_path):
    place, coordinator = tmp_path / "both", f"localhost:{free_port()}"
    command = [*TOGETHER, "--rounds", 10**6, "--output", place]
    command += ["--coordinator", coordinator, "--num-processes", 2, "--process-id"]
    both = [spawn(*command, number) for number in range(2)]
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
    assert both[0].returncode == 1, output
    assert "another process has ended" in output
    assert f"fedjax-muon resume {place}" in output
    assert "Traceback" not in output

    # one process reads what two have written: of the six clients, three each
    last, alone = saved()[-1], tmp_path / "alone"
    run(*TOGETHER, "--rounds", last, "--output", alone)
    client_state, theirs = (metrics_csv.read(p / "metrics.csv") for p in (alone, place))
    assert client_state["round"].tolist() == list(range(0, last + 1, 20))
    for name in set(client_state) - {"seconds"}:
        known = theirs[name][: len(client_state[name])]
        np.testing.assert_allclose(known, client_state[name], 1e-3, 1e-4, err_msg=name)
    what = directory.read(place)
    dataset = data.load(what.config.dataset, what.config.data_dir)
    simulation = building.simulation_of(what, dataset)
    got = last_params(what, simulation, place)
    want = last_params(directory.read(alone), simulation, alone)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-3, 1e-3), got, want)


def test_one_process_is_the_first_and_agrees_with_itself():
    assert processes.is_first()
    assert processes.broadcast_from_first(0.25) == 0.25
    np.testing.assert_array_equal(processes.full_array(jax.numpy.arange(3)), [0, 1, 2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--devices", "9"], "at most the 8 that this host has (cpu), got 9"),
        (["--devices", "0"], "devices must be at least 1, got 0"),
        (["--split-examples"], "split_examples needs several devices"),
        (
            ["--num-processes", "2"],
            "coordinator, num_processes and process_id go together; got None, 2, None",
        ),
    ],
)
def test_a_launch_is_refused(tmp_path, capsys, options, message):
    said = refused(capsys, "train", *SMALL, "--output", tmp_path / "new", *options)
    assert message in said
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_devices_train_resume_and_compare(tmp_path):
    place = tmp_path / "two"
    sizes = ["--devices", "2", "--split-examples", "--hidden", "8", "--rounds", "4"]
    run("train", "--algorithm", "scaffold", *SMALL, *sizes, "--output", place)
    before = (place / "metrics.csv").read_text()
    run("resume", place)
    assert (place / "metrics.csv").read_text() == before
    alone = tmp_path / "one"
    sizes = sizes[3:]
    run("train", "--algorithm", "scaffold", *SMALL, *sizes, "--output", alone)
    client_state, theirs = (metrics_csv.read(p / "metrics.csv") for p in (alone, place))
    for name in set(client_state) - {"seconds"}:
        np.testing.assert_allclose(theirs[name], client_state[name], 1e-4, err_msg=name)
