"""The transport over NVFlare: with proxies that are none, and with real processes."""

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import psutil
import pytest
from packages import needs
from small_federation import (
    CLIENTS,
    KEY,
    PARTS,
    X,
    Y,
    assert_same,
    assert_saved,
    described,
    nodes_of,
    refusal,
    served,
    simulated,
)

from fedjax_muon import data
from fedjax_muon.algorithms import ALL, fedmuon_correct
from fedjax_muon.deploy import messages
from fedjax_muon.simulation.arrivals import buffered, replayed

needs("nvflare", "nvflare")

from nvflare.collab import CollabCallError
from nvflare.collab.api.context import set_call_context
from nvflare.collab.api.decorators import get_object_publish_interface
from nvflare.collab.api.exceptions import RunAborted

from fedjax_muon.deploy.nvflare import published, sites

pytestmark = pytest.mark.slow

ALGORITHM = fedmuon_correct(lr=0.1)  # with client states and a prologue
JOB = Path(__file__).with_name("nvflare_job.py")
LOST = "Communication error with client"
PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "deploy.md"


class Proxy:
    """In place of NVFlare's proxy of a site."""

    def __init__(self, name, answer):
        self.name, self.answer, self.timeouts = name, answer, []

    def __call__(self, *, timeout):
        self.timeouts.append(timeout)
        return self


def pieces(data):
    return [np.frombuffer(data, np.uint8)]


def echo(request):
    return pieces(b"answer to " + b"".join(request))


def failing(request):
    raise CollabCallError("site-2", "answer", "the disk is gone")


@contextlib.contextmanager
def at(name, **values):
    """What NVFlare tells the functions of a job, as long as they run."""
    set_call_context(SimpleNamespace(app=SimpleNamespace(name=name), **values))
    yield
    set_call_context(None)


@pytest.fixture(autouse=True)
def aborted():
    """Tests are the main function of a job, which is aborted when this is set."""
    event = threading.Event()
    with at("server", is_aborted=event.is_set):
        yield event


def test_clients_are_sites_by_number_or_by_name():
    proxies = [Proxy(name, echo) for name in ("site-1", "site-3", "hospital")]
    send = sites(proxies)
    a, b = b"answer to a", b"answer to b"
    assert dict(send({0: b"a", 2: b"b"}, 7.0)) == {0: a, 2: b}
    assert [proxy.timeouts for proxy in proxies] == [[7.0], [7.0], []]
    named = sites(proxies, {0: "hospital", 1: "site-1"})
    assert dict(named({0: b"a", 1: b"b"}, None)) == {0: a, 1: b}
    assert proxies[2].timeouts == [None]


def test_a_site_that_is_not_in_the_job_or_fails_does_not_stop_the_others():
    one = [Proxy("site-1", echo)]
    both = [*one, Proxy("site-2", failing)]
    for proxies, names, said in (
        (one, None, "NVFlare: no site site-2 in this job"),
        (one, {0: "site-1"}, "NVFlare: no site None in this job"),
        (one, {0: "site-1", 1: "clinic"}, "NVFlare: no site clinic in this job"),
        (both, None, "call to site-2.answer failed: the disk is gone"),
    ):
        found = dict(sites(proxies, names)({0: b"a", 1: b"b"}, 5.0))
        assert found.pop(0) == b"answer to a"
        assert said in refusal(found[1])


def test_long_messages_are_divided(monkeypatch):
    monkeypatch.setattr("fedjax_muon.deploy.nvflare.PIECE", 4)
    seen = []

    def call(request):
        seen.append([len(piece) for piece in request])
        return echo(request)

    proxy = Proxy("site-1", None)
    proxy.published_too = call
    send = sites([proxy], function="published_too")
    assert list(send({0: b"0123456789"}, 5.0)) == [(0, b"answer to 0123456789")]
    assert seen == [[4, 4, 2]]


@pytest.mark.parametrize(
    "error", [RunAborted("end"), CollabCallError("site-1", "answer", TimeoutError())]
)
def test_the_end_of_the_job_ends_the_run(aborted, error):
    def abort(request):
        aborted.set()
        raise error

    with pytest.raises(RunAborted):
        list(sites([Proxy("site-1", abort)])({0: b"a"}, None))
    wrong = Proxy("site-1", lambda request: 1 / 0)  # other errors are not hidden
    aborted.clear()
    with pytest.raises(ZeroDivisionError):
        list(sites([wrong])({0: b"a"}, None))


def test_answers_come_as_they_arrive_until_the_deadline():
    stuck, first = threading.Event(), threading.Event()
    late = lambda request: first.wait(10) and echo(request)
    hang = lambda request: stuck.wait(10) and echo(request)
    proxies = [Proxy(f"site-{i}", f) for i, f in enumerate((late, hang, echo), 1)]
    begin, found = time.monotonic(), []
    for client, _ in sites(proxies)(dict.fromkeys(range(3), b"a"), 1.0):
        found.append(client)
        first.set()
    assert found == [2, 0]
    assert 0.9 < time.monotonic() - begin < 5
    stuck.set()


def proxies_of(nodes, change=lambda client, answer: answer):
    """Sites as NVFlare would reach them."""

    def answers(client):
        answer = published(lambda site: nodes[int(site.removeprefix("site-")) - 1])

        def call(request):
            with at(f"site-{client + 1}"):
                return pieces(change(client, b"".join(answer(request))))

        return call

    return [Proxy(f"site-{client + 1}", answers(client)) for client in nodes]


def test_a_federation_of_sites_is_the_simulated_one():
    shared = described(ALGORITHM)
    send = sites(proxies_of(nodes_of(shared)))
    ended, missing = served(shared, send, rounds=2, deadline=60)
    assert not missing
    assert_same(simulated(ALGORITHM, 2), ended)


def test_failures_and_answers_of_others_are_left_out_with_the_reason():
    shared = described(ALGORITHM)

    def change(client, answer):
        if client == 1:
            raise CollabCallError("site-2", "answer", "the disk is gone")
        if client == 3:
            message = messages.read(answer)
            about = {**message.about, "client": 2}
            return messages.write(message._replace(about=about))
        return answer

    send = sites(proxies_of(nodes_of(shared), change))
    ended, missing = served(shared, send, rounds=3, deadline=60)
    assert ended.state.round == 3
    assert {lost.client for lost in missing} == {1, 3}
    said = {1: "the disk is gone", 3: "an answer of client 2"}
    assert all(said[lost.client] in lost.reason for lost in missing)


def test_a_site_makes_its_node_once_and_does_not_answer_what_is_outdated():
    made, working, go_on = [], threading.Event(), threading.Event()

    class Slow:
        def answer(self, request):
            working.set()
            go_on.wait(10)
            return b"answer to " + request

    def make_node(site):
        made.append(site)
        return Slow()

    answer, results = published(make_node), {}

    def ask(request):
        with at("site-3"):
            try:
                results[request] = b"".join(answer(pieces(request)))
            except RuntimeError as error:
                results[request] = str(error)

    threads = [threading.Thread(target=ask, args=(r,)) for r in (b"1", b"2", b"3")]
    for thread in threads:
        thread.start()
        assert working.wait(5)
        time.sleep(0.05)
    go_on.set()
    for thread in threads:
        thread.join(5)
    assert made == ["site-3"]
    late = "the server has sent another request meanwhile"
    assert results == {b"1": b"answer to 1", b"2": late, b"3": b"answer to 3"}


def test_the_job_of_the_page_trains(tmp_path, monkeypatch):
    section = PAGE.read_text().split("## NVFlare")[1]
    (code,) = re.findall(r"^```py\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    (tmp_path / "three_sites.py").write_text(code.replace("/data", str(tmp_path)))
    monkeypatch.syspath_prepend(tmp_path)
    job = importlib.import_module("three_sites")
    assert get_object_publish_interface(job).keys() == {"answer"}
    digits = data.load("digits")
    for client, part in enumerate(np.array_split(np.arange(len(digits.y_train)), 3)):
        own = {"x": digits.x_train[part], "y": digits.y_train[part]}
        np.savez(tmp_path / f"mine{client}.npz", **own)

    def site(name):
        answer = published(job.make_node)  # every site imports the module for itself

        def call(request):
            with at(name):
                return answer(request)

        return Proxy(name, call)

    proxies = [site(f"site-{i}") for i in (1, 2, 3)]
    with at("server", is_aborted=lambda: False, clients=proxies):
        job.train()
    task = job.shared().setup.task
    with np.load(tmp_path / "parameters.npz") as archive:
        params = [archive[name] for name in archive]
    params = jax.tree.unflatten(jax.tree.structure(task.init(KEY)), params)
    scores = task.evaluate(params, digits.x_test, digits.y_test)
    assert scores["correct"].mean() > 0.7


def test_without_nvflare_the_command_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "fedjax_muon.deploy.nvflare")
    monkeypatch.setitem(sys.modules, "nvflare", None)
    said = "a site of NVFlare needs nvflare, which is not installed; run: "
    said += 'pip install "nvflare<2.10,>=2.9"'
    with pytest.raises(ImportError, match=f"^{re.escape(said)}$"):
        importlib.import_module("fedjax_muon.deploy.nvflare")


def kill_all(place):
    """Kills the processes that have a directory in their command."""
    while True:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if any(str(place) in word for word in process.cmdline()):
                    process.kill()
                    found.append(process)
        if not found:
            return
        psutil.wait_procs(found, 5)


def run_job(place, command, seconds=300):
    """Runs a job; whatever happens, none of its many processes is left.

    NVFlare's simulator may lose a site at the start. It looks for a free port by
    listening on it, and a process that it forks meanwhile accepts the connection to the
    site. Such a job is started again.
    """
    log, status = place / "log", None
    for _ in range(3):
        with (
            log.open("w") as output,
            tempfile.TemporaryDirectory() as short,  # paths of sockets are bounded
            subprocess.Popen(
                command,
                cwd=place,
                env={**os.environ, "HOME": str(place), "TMPDIR": short},
                stdout=output,
                stderr=output,
            ) as process,
        ):
            end = time.monotonic() + seconds
            try:
                while status is None and time.monotonic() < end:
                    if LOST in log.read_text():
                        break
                    time.sleep(0.5)
                    status = process.poll()
            finally:
                kill_all(place)
        if LOST not in log.read_text():
            break
    assert status == 0, log.read_text()[-5000:]


def test_real_sites_have_the_numbers_of_the_simulation(tmp_path):
    (tmp_path / JOB.name).write_text(JOB.read_text())
    places = [tmp_path / "sites" / f"site-{i + 1}" for i in range(CLIENTS)]
    for place, part in zip(places, PARTS, strict=True):
        place.mkdir(parents=True)
        np.savez(place / "examples.npz", x=X[part], y=Y[part])
    run_job(tmp_path, [sys.executable, str(tmp_path / JOB.name), str(tmp_path)])

    said = json.loads((tmp_path / "server.json").read_text())
    methods = [name for name, missing in said["missing"].items() if not missing]
    assert methods == ["fedmuon_correct", "fedmuon", "scaffold"]
    arrivals = replayed(buffered(3, 2), said["arrived"])
    for name in methods:
        late = {"cohort_size": None, "arrivals": arrivals} if name == "scaffold" else {}
        expected = simulated(ALL[name].function(), rounds=2, **late).training.server
        assert_saved(tmp_path / f"{name}.npz", expected)
    ((client, reason),) = said["missing"]["failing"]
    assert client == 1
    assert "FileNotFoundError: the disk is gone" in reason

    processes = {int((place / "process").read_text()) for place in places}
    assert len(processes - {said["process"], os.getpid()}) == CLIENTS
    for place in places:
        files = {path.name for path in place.iterdir()}
        assert files - {"fedavg"} == {"examples.npz", "process", *methods}
    states = {path.parent.name for path in places[0].glob("*/state_*")}
    assert states == {"fedmuon_correct", "scaffold"}
