"""Nodes over TCP, of which some are killed."""

import dataclasses
import itertools
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from command import refused
from small_federation import asked

from fedjax_muon.deploy import Node, in_process, messages
from fedjax_muon.deploy.frames import (
    SIZE,
    RefusedError,
    introduce,
    receive_frame,
    send_frame,
)
from fedjax_muon.deploy.messages import Message, MessageError
from fedjax_muon.deploy.tcp import TcpServer, join
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import deploy, deploy_nodes
from fedjax_muon.runs.build import parts_of, simulation_of, start_key
from fedjax_muon.runs.config import Config, Run
from fedjax_muon.runs.pretrained import dataset_of

pytestmark = pytest.mark.slow
TOKEN = "a shared secret"


def serving(clients, **options):
    return TcpServer(("127.0.0.1", 0), clients, token=TOKEN, **options)


def start(address, client, reply, token=TOKEN, **options):
    """A node in a thread; returns what it ended with."""
    ended, begin = [], lambda greeting: reply

    def run():
        try:
            ended.append(join(address, client, begin, token=token, **options))
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended


def echo(request):
    return b"answer to " + request


def test_requests_are_answered_and_the_end_is_told():
    with serving(2) as server:
        nodes = [start(server.address, client, echo) for client in (0, 1)]
        assert server.wait(2, 5) == {0, 1}
        answers = [(0, b"answer to a"), (1, b"answer to b")]
        assert asked(server, c0=b"a", c1=b"b") == answers
        assert asked(server, c1=b"c") == [(1, b"answer to c")]
    for thread, _ in nodes:
        thread.join(5)
    assert [ended for _, ended in nodes] == [[1], [2]]


def test_a_node_without_a_connection_is_given_up_after_patience():
    with serving(2, patience=0.3) as server:
        start(server.address, 1, echo)
        server.wait(1, 5)
        begin = time.monotonic()
        assert asked(server, deadline=None, c0=b"a", c1=b"a") == [(1, b"answer to a")]
        assert 0.25 < time.monotonic() - begin < 3
        begin = time.monotonic()
        assert asked(server, deadline=None, c0=b"b", c1=b"b") == [(1, b"answer to b")]
        assert time.monotonic() - begin < 0.3  # it is waited for once


def test_a_late_answer_is_handed_on_and_is_not_taken_for_the_next():
    slow = threading.Event()

    def reply(request):
        if request == b"first":
            slow.wait(5)
        return echo(request)

    with serving(1) as server:
        start(server.address, 0, reply)
        server.wait(1, 5)
        assert asked(server, deadline=0.3, c0=b"first") == []
        slow.set()
        answers = [(0, b"answer to first"), (0, b"answer to next")]
        assert asked(server, c0=b"next") == answers


def test_a_node_connects_again_to_a_server_that_was_started_again():
    server = serving(1)
    address = server.address
    thread, ended = start(address, 0, echo)
    server.wait(1, 5)
    server._listener.close()  # as if its process had ended
    server._changed.acquire()
    for connection in server._connected.values():
        connection.shutdown(socket.SHUT_RDWR)
    server._changed.release()
    time.sleep(0.2)
    with TcpServer(address, 1, token=TOKEN) as again:
        assert asked(again, c0=b"a") == [(0, b"answer to a")]
    thread.join(5)
    assert ended == [1]


NEVER = f"""
import time
from fedjax_muon.deploy.tcp import join
never = lambda request: time.sleep(60)
join(("127.0.0.1", PORT), 0, lambda greeting: never, token={TOKEN!r})
"""


def test_a_killed_process_is_noticed_and_another_takes_its_place():
    with serving(1, patience=5) as server:
        program = NEVER.replace("PORT", str(server.address[1]))
        with subprocess.Popen([sys.executable, "-c", program]) as process:
            assert server.wait(1, 30) == {0}

            def replace():
                process.kill()
                process.wait()
                start(server.address, 0, echo)

            timer = threading.Timer(0.3, replace)
            timer.start()
            assert asked(server, deadline=10, c0=b"a") == [(0, b"answer to a")]


def test_a_node_is_refused_by_name():
    for client, token, message in (
        (0, "guessed", "another token"),
        (7, TOKEN, "clients 0 to 1, got 7"),
    ):
        with serving(2) as server:
            thread, ended = start(server.address, client, echo, token)
            thread.join(5)
            assert isinstance(ended[0], RefusedError)
            assert message in str(ended[0])
            assert server.connected() == set()
            assert message in server.refused[0]


@pytest.fixture
def pair():
    """Two ends of a connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_server_without_the_token_is_refused(pair):
    ours, theirs = pair
    send_frame(theirs, messages.write(Message({"challenge": "1"}, [])))
    send_frame(theirs, messages.write(Message({"proof": "2", "greeting": {}}, [])))
    with pytest.raises(RefusedError, match="another token"):
        introduce(ours, TOKEN, 0)


def test_frames_that_are_too_long_or_cut_are_refused(pair):
    ours, theirs = pair
    theirs.sendall(SIZE.pack(2**60))
    with pytest.raises(MessageError, match="more than 100"):
        receive_frame(ours, 100)  # before it is read
    theirs.sendall(SIZE.pack(10) + b"123")
    theirs.close()
    with pytest.raises(ConnectionError, match="closed"):
        receive_frame(ours, 100)


def test_noise_on_the_port_does_not_stop_the_server():
    with serving(1) as server, socket.create_connection(server.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        start(server.address, 0, echo)
        assert server.wait(1, 5) == {0}
        assert asked(server, c0=b"a") == [(0, b"answer to a")]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of localhost that signs itself, and its key."""
    place = tmp_path_factory.mktemp("tls")
    paths = place / "certificate.pem", place / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    command += f" -days 2 -subj /CN=localhost -keyout {paths[1]} -out {paths[0]}"
    words = [*command.split(), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(words, check=True, capture_output=True)
    return paths


def contexts(certificate):
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(*certificate)
    return server, ssl.create_default_context(cafile=certificate[0])


def test_tls(certificate):
    of_server, of_node = contexts(certificate)
    strict = ssl.create_default_context()  # does not know who signed it
    with serving(1, tls=of_server) as server:
        thread, ended = start(server.address, 0, echo, tls=strict)
        thread.join(5)
        assert isinstance(ended[0], ssl.SSLCertVerificationError)
        assert server.connected() == set()
        start(server.address, 0, echo, tls=of_node)
        assert server.wait(1, 5) == {0}
        assert asked(server, c0=b"a") == [(0, b"answer to a")]


def test_nodes_without_a_certificate_are_refused_where_one_is_needed(certificate):
    of_server, without = contexts(certificate)
    of_server.verify_mode = ssl.CERT_REQUIRED
    of_server.load_verify_locations(certificate[0])
    _, of_node = contexts(certificate)
    of_node.load_cert_chain(*certificate)
    with serving(1, tls=of_server) as server:
        start(server.address, 0, echo, tls=without, patience=1.0)
        assert server.wait(1, 1) == set()
        assert "peer did not return a certificate" in server.refused[0]
    with serving(1, tls=of_server) as server:
        start(server.address, 0, echo, tls=of_node, patience=1.0)
        assert server.wait(1, 5) == {0}
        assert asked(server, c0=b"a") == [(0, b"answer to a")]


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


def test_greetings_are_names_and_numbers_and_directories_have_options(data, tmp_path):
    *_, facts = data
    assert deploy.run_of_greeting(deploy.greeting_of(RUN, facts)) == (RUN, facts)
    with pytest.raises(ValueError, match="same version"):
        deploy.run_of_greeting({"job": "{}", "facts": {}})
    place = deploy.begin(tmp_path / "run", RUN, facts)
    assert deploy.begin(place, RUN, facts) == place
    with pytest.raises(ValueError, match="other options"):
        deploy.begin(place, dataclasses.replace(RUN, seed=1), facts)
