"""A server and nodes in processes of their own, one of which is killed."""

import dataclasses
import itertools
import os
import signal
import threading

import numpy as np
import pytest
from command import refused

from fedjax_muon.deploy import Node, in_process
from fedjax_muon.deploy.tcp import TcpServer
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import deploy, deploy_nodes
from fedjax_muon.runs.build import parts_of, simulation_of, start_key
from fedjax_muon.runs.config import Config, Run
from fedjax_muon.runs.pretrained import dataset_of

pytestmark = pytest.mark.slow

SIZES = {"num_clients": 3, "cohort_size": 3, "local_steps": 2, "batch_size": 8}
CONFIG = Config(**SIZES, hidden=(8,), rounds=4, evaluate_every=1, plan="mapped")
RUN = Run("fedmuon", {"lr": 0.02}, 0, CONFIG)
KILLED, BEFORE = 1, 3  # the client, and the calls of `send` that it answers


@pytest.fixture(scope="module")
def data():
    dataset = dataset_of(CONFIG)
    parts = parts_of(CONFIG, dataset, RUN.seed)
    return dataset, parts, deploy.facts_of(dataset, max(map(len, parts)))


def killing(send, process):
    """A transport that kills a node in the middle of its fourth request."""
    calls = itertools.count()

    def sent(requests, deadline):
        if next(calls) == BEFORE:
            os.kill(process.pid, signal.SIGSTOP)  # it does not answer meanwhile
            threading.Timer(0.3, os.kill, (process.pid, signal.SIGKILL)).start()
        yield from send(requests, deadline)

    return sent


def without_killed(nodes):
    """The same in one process."""
    send, calls = in_process(nodes), itertools.count()

    def sent(requests, deadline):
        gone = KILLED if next(calls) >= BEFORE else None
        asked = {client: r for client, r in requests.items() if client != gone}
        yield from send(asked, deadline)

    return sent


def test_killed_processes_are_drop_outs_and_the_rest_goes_on(data, tmp_path):
    dataset, parts, facts = data
    greeting, token = deploy.greeting_of(RUN, facts), deploy_nodes.new_token()
    directories = [tmp_path / name for name in ("processes", "alone")]
    for place in directories:
        assert deploy.begin(place, RUN, facts) == place
    places = deploy_nodes.save_examples(directories[0], dataset, parts)
    options = {"token": token, "greeting": greeting, "patience": 1.0}
    server = TcpServer(("127.0.0.1", 0), 3, **options)
    with deploy_nodes.processes(places, server.address, token) as running, server:
        deploy_nodes.wait_for_all(running, places, server)
        send = killing(server.send, running[KILLED])
        deploy.train(RUN, facts, dataset, send, directories[0], deadline=60)
    assert [process.returncode for process in running] == [0, -signal.SIGKILL, 0]
    for client, place in enumerate(places):
        found = {path.name for path in place.iterdir()}
        assert found <= {"examples.npz", "examples_states", "node.log"}
        with np.load(place / "examples.npz") as archive:
            wanted = np.asarray(dataset.x_train)[parts[client]]
            np.testing.assert_array_equal(archive["x"], wanted)

    shared = deploy.federation_of(RUN, facts)
    own = [(dataset.x_train[part], dataset.y_train[part]) for part in parts]
    nodes = {i: Node(shared, i, *examples) for i, examples in enumerate(own)}
    deploy.train(RUN, facts, dataset, without_killed(nodes), directories[1])
    there, here = (metrics_csv.read(d / "metrics.csv") for d in directories)
    for name in ("round", "missing", "test_accuracy", "test_loss"):
        np.testing.assert_array_equal(there[name], here[name])
    # exchanges: the prologue, then one in every round
    assert there["missing"].tolist() == [0, 0, 0, 1, 1]
    assert (directories[0] / "missing.csv").read_text().splitlines()[1:] == [
        f"{round},1,{KILLED},no answer" for round in (2, 3)
    ]
    assert_simulated(dataset, there, rounds=2)


def assert_simulated(dataset, found, rounds):
    """Before the kill, the numbers are those of `train`."""
    simulation = simulation_of(RUN, dataset)
    state = simulation.init(start_key(RUN.seed))
    for round in range(rounds + 1):
        if round:
            state, _ = simulation.train_round(state)
        scores = simulation.evaluate(state)
        for name in ("test_accuracy", "test_loss"):
            assert float(scores[name]) == found[name][round]


def test_arguments_that_do_not_go_together_are_refused(capsys, data, tmp_path):
    one = "one of --local N, --serve HOST:PORT and --join HOST:PORT, got none"
    for arguments, message in (
        ([], one),
        (["--local", "2", "--serve", "localhost:1"], "got local and serve"),
        (["--local", "2", "--dropout", "0.1"], "no dropout"),
        (["--local", "2", "--plan", "vmapped"], "plan mapped; got vmapped"),
        (["--join", "localhost:1"], "--data and its --client"),
        (["--serve", "nowhere"], "HOST:PORT, got 'nowhere'"),
        (["--serve", "localhost:7400"], "FEDJAX_MUON_TOKEN"),
    ):
        assert message in refused(capsys, "deploy", *arguments)
    place = deploy.begin(tmp_path / "run", RUN, data[-1])
    assert "is of `deploy`" in refused(capsys, "resume", place)


def test_examples_of_another_shape_are_refused(data, tmp_path):
    *_, facts = data
    np.savez(tmp_path / "mine.npz", x=np.zeros((3, 5), "f4"), y=np.zeros(3, "i4"))
    with pytest.raises(ValueError, match=r"float32 of shape \[n, 8, 8, 1\]"):
        deploy_nodes.load_examples(tmp_path / "mine.npz", facts)
    np.savez(tmp_path / "mine.npz", x=np.array([{}]), y=np.zeros(1, "i4"))
    with pytest.raises(ValueError, match="must be a NumPy archive with x and y"):
        deploy_nodes.load_examples(tmp_path / "mine.npz", facts)


def test_a_greeting_is_names_and_numbers_and_a_directory_has_its_options(
    data, tmp_path
):
    *_, facts = data
    assert deploy.run_of_greeting(deploy.greeting_of(RUN, facts)) == (RUN, facts)
    with pytest.raises(ValueError, match="same version"):
        deploy.run_of_greeting({"job": "{}", "facts": {}})
    place = deploy.begin(tmp_path / "run", RUN, facts)
    assert deploy.begin(place, RUN, facts) == place
    with pytest.raises(ValueError, match="other options"):
        deploy.begin(place, dataclasses.replace(RUN, seed=1), facts)
