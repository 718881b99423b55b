"""The transport over NVFlare: a job of real sites, and proxies that are none."""

import contextlib
import importlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from fedjax_muon import data
from fedjax_muon.deploy import in_process, serve
from tests.deploy.deployed_run import kill_processes
from tests.deploy.small_federation import assert_saved, refusal
from tests.support.packages import needs

needs("nvflare", "nvflare")

from nvflare.collab import CollabCallError
from nvflare.collab.api.exceptions import RunAborted

from fedjax_muon.deploy import nvflare

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "deploy.md"
FAULT = CollabCallError("site-2", "answer", "the disk is gone")


def proxy(name, answer):
    """In place of NVFlare's proxy of a site."""
    site = Mock(return_value=SimpleNamespace(answer=answer))
    site.name = name
    return site


def echo(request):
    return [np.frombuffer(b"answer to " + b"".join(request), np.uint8)]


@pytest.fixture(autouse=True)
def collab(monkeypatch):
    """What NVFlare tells the functions of a job that is not aborted."""
    told = Mock(site_name="site-3", publish=lambda function: function)
    told.context.is_aborted.return_value = False
    monkeypatch.setattr(nvflare, "collab", told)
    return told


def test_real_sites_have_the_bits_of_nodes_in_one_process(tmp_path, monkeypatch):
    """In the job of the page, here of a method with a prologue and client states."""
    page = PAGE.read_text().replace("fm.fedmuon(", "fm.fedmuon_correct(")
    (code,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    code = code.replace("/data", str(tmp_path)).replace("rounds=10", "rounds=2")
    (tmp_path / "three_sites.py").write_text(code)
    digits = data.load("digits")
    for client in range(3):
        own = {"x": digits.x_train[client::3], "y": digits.y_train[client::3]}
        np.savez(tmp_path / f"mine{client}.npz", **own)
    with tempfile.TemporaryDirectory() as short:  # paths of sockets are bounded
        here = os.environ | {"HOME": str(tmp_path), "TMPDIR": short}
        command = [sys.executable, "three_sites.py"]
        for _ in range(3):  # NVFlare's simulator may lose a site at the start
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, cwd=tmp_path, env=here, timeout=200, check=True)
                break
            kill_processes("HOME", str(tmp_path))
    kill_processes("HOME", str(tmp_path))
    assert len({path.parent for path in tmp_path.glob("states*/state_*")}) == 3
    monkeypatch.syspath_prepend(tmp_path)
    job = importlib.import_module("three_sites")
    monkeypatch.setattr(job, "Path", lambda place: None)  # states in memory
    nodes = {client: job.make_node(f"site-{client + 1}") for client in range(3)}
    ended = serve(job.shared(), in_process(nodes), jax.random.key(0), rounds=2)
    assert_saved(tmp_path / "parameters.npz", ended.params)


@pytest.mark.parametrize(
    ("second", "answer", "names", "said"),
    [
        ("site-2", echo, None, None),
        ("clinic", echo, {0: "site-1", 1: "clinic"}, None),
        ("site-3", echo, None, "NVFlare: no site site-2 in this job"),
        ("site-3", echo, {0: "site-1"}, "NVFlare: no site None in this job"),
        ("site-2", Mock(side_effect=FAULT), None, f"{FAULT}"),
        ("site-2", lambda request: "hi", None, "not a message in pieces"),
    ],
)
def test_clients_are_sites_and_others_refuse(monkeypatch, second, answer, names, said):
    monkeypatch.setattr(nvflare, "PIECE", 4)  # which divides long messages
    sizes = []
    first = proxy("site-1", lambda sent: sizes.extend(map(len, sent)) or echo(sent))
    send = nvflare.sites([first, proxy(second, answer)], names)
    found = dict(send({0: b"0123456789", 1: b"b"}, 7.0))
    first.assert_called_once_with(timeout=7.0)
    assert (found[0], sizes) == (b"answer to 0123456789", [4, 4, 2])
    assert said in refusal(found[1]) if said else found[1] == b"answer to b"


def test_answers_come_as_they_arrive_until_the_deadline():
    stuck, first = threading.Event(), threading.Event()
    late = lambda request: first.wait(10) and echo(request)
    hang = lambda request: stuck.wait(10) and echo(request)
    proxies = [proxy(f"site-{i}", f) for i, f in enumerate((late, hang, echo), 1)]
    begin, found = time.monotonic(), []
    for client, _ in nvflare.sites(proxies)(dict.fromkeys(range(3), b"a"), 1.0):
        found.append(client)
        first.set()
    assert found == [2, 0]
    assert 0.9 < time.monotonic() - begin < 5
    stuck.set()


@pytest.mark.parametrize(
    ("error", "ended"),
    [(RunAborted("end"), True), (FAULT, True), (ZeroDivisionError(), False)],
)
def test_the_end_of_the_job_ends_the_run(collab, error, ended):
    collab.context.is_aborted.return_value = ended
    send = nvflare.sites([proxy("site-1", Mock(side_effect=error))])
    with pytest.raises(RunAborted if ended else ZeroDivisionError):  # never hidden
        list(send({0: b"a"}, None))


def test_a_site_makes_its_node_once_and_does_not_answer_what_is_outdated():
    working, go_on = threading.Event(), threading.Event()
    work = lambda request: [working.set(), go_on.wait(9), b"answer to " + request][2]
    make_node = Mock(return_value=SimpleNamespace(answer=work))
    answer = nvflare.published(make_node)
    with ThreadPoolExecutor() as pool:
        asked = []
        for request in (b"1", b"2", b"3"):
            asked.append(pool.submit(answer, [np.frombuffer(request, np.uint8)]))
            assert working.wait(5)
            time.sleep(0.05)
        go_on.set()
    make_node.assert_called_once_with("site-3")
    assert b"".join(asked[0].result() + asked[2].result()) == b"answer to 1answer to 3"
    with pytest.raises(RuntimeError, match="has sent another request meanwhile"):
        asked[1].result()
