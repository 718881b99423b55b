"""Deployed asynchronous rounds, in virtual time, have the bits of simulated ones."""

import dataclasses
import threading

import jax
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.deploy import in_process, messages
from fedjax_muon.runs import metrics_csv
from tests.deploy import small_federation as small
from tests.support.cases import slow_but

SECONDS = (1.0, 1.3, 2.1, 7.7)  # of clients
ARRIVALS = fm.buffered(3, 2)


class Nodes:
    """A transport whose nodes answer in the order of a virtual clock."""

    def __init__(self, shared, change=lambda client, answer: answer, silent=()):
        self.number = shared.setup.cohort.concurrency
        self.nodes, self.change = small.nodes_of(shared), change
        self.silent = silent  # in the prologue
        self.now, self.ends, self.event = 0.0, {}, threading.Condition()

    def __call__(self, requests, deadline):
        for client, request in requests.items():
            answer = self.nodes[client].answer(request)
            if len(requests) == 1:  # not the prologue
                self.wait(client)
                answer = self.change(client, answer)
            elif client in self.silent:
                continue
            yield from [(client, answer)] if answer else []

    def wait(self, client):
        """Waits until enough clients are at work, for the one that ends first."""
        first = lambda: min(self.ends, key=self.ends.get) == client
        with self.event:
            self.ends[client] = self.now + SECONDS[client]
            self.event.notify_all()
            is_next = lambda: len(self.ends) >= self.number and first()
            assert self.event.wait_for(is_next, 60)
            self.now = self.ends.pop(client)
            self.event.notify_all()  # enough others may be at work already


def shared_of(algorithm, arrivals=ARRIVALS):
    return small.described(algorithm, cohort=arrivals)


def assert_simulated_with(arrivals, algorithm, ended):
    state = small.simulated(algorithm, ended.state.round, cohort=arrivals)
    if jax.__version_info__ >= (0, 11):
        small.assert_same(state, ended)
    for a, b in small.server_leaves(state, ended):  # XLA fused otherwise before
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-7)


FADAS = fm.buffered(3, 2, damping=fm.staleness.inverse(1))
CASES = (
    ("fedavg", fm.fedasync(3)),
    ("fedadam", FADAS),
    ("scaffold", ARRIVALS),  # states of clients
    ("fedmuon", ARRIVALS),  # a prologue
    ("local_muon", ARRIVALS),
)


@pytest.mark.portable
@pytest.mark.parametrize(("name", "arrivals"), slow_but(1, CASES))
def test_a_run_has_the_bits_of_the_simulation_with_its_arrivals(name, arrivals):
    algorithm, arrived = fm.algorithms.ALL[name].function(), []
    shared = shared_of(algorithm, arrivals)
    ended, missing = small.served(shared, Nodes(shared), 8, arrived)
    assert not missing
    assert max(row.round - row.start for row in arrived) > 1
    assert_simulated_with(fm.replayed(arrivals, arrived), algorithm, ended)
    in_time = dataclasses.replace(arrivals, clock=fm.clocks.measured(SECONDS))
    assert_simulated_with(in_time, algorithm, ended)


def test_lost_late_and_unusable_answers_are_left_out_and_their_clients_start_again():
    first = {0: None, 1: b"GET /", 2: np.inf}  # in place of answers

    def change(client, answer):
        about, arrays = messages.read(answer)
        other = first.pop(client, answer)
        infinite = messages.Message(about, [x + np.inf for x in arrays])
        return messages.write(infinite) if other == np.inf else other

    algorithm, arrivals = fm.scaffold(lr=0.3), fm.buffered(2, 1, max_staleness=2)
    shared, arrived = shared_of(algorithm, arrivals), []
    ended, missing = small.served(shared, Nodes(shared, change), 16, arrived)
    assert {(lost.client, lost.reason.split(" (")[0]) for lost in missing} >= {
        (0, "no answer"),
        (1, "these bytes are not a message of fedjax_muon"),
        (2, "not finite"),
        (3, "later than max_staleness=2"),
    }
    assert {row.client for row in arrived} >= {0, 1, 2}
    assert_simulated_with(fm.replayed(arrivals, arrived), algorithm, ended)


@pytest.mark.parametrize("silent", [(2,), (0, 1, 2, 3)])
def test_missing_answers_to_the_prologue_are_replayed(tmp_path, silent):
    algorithm, path, every = fm.fedmuon(), tmp_path / "arrivals.csv", []
    shared = shared_of(algorithm)
    ended, missing = small.served(shared, Nodes(shared, silent=silent), 2, every)
    assert [lost[:3] for lost in missing] == [(-1, 0, client) for client in silent]
    for row in every:
        metrics_csv.append(path, row._asdict())
    assert_simulated_with(fm.replayed(ARRIVALS, path), algorithm, ended)
    other = fm.replayed(ARRIVALS, [row for row in every if row.round >= 0])
    state = small.simulated(algorithm, 2, cohort=other)
    pairs = small.server_leaves(state, ended)
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in pairs)


def test_a_round_ends_when_no_client_is_left_and_a_killed_server_resumes(tmp_path):
    """Only client 2 answers, and not in round 1; the server is killed after round 2."""
    algorithm, arrived = fm.scaffold(lr=0.3), []
    shared = shared_of(algorithm)
    nodes = in_process({2: small.nodes_of(shared)[2]})

    def send(requests, deadline):
        silent = any(messages.read(r).about["round"] == 1 for r in requests.values())
        return [] if silent else nodes(requests, deadline)

    _, missing = small.served(shared, send, 2, arrived, directory=tmp_path)
    ended, _ = small.served(shared, send, 4, arrived, directory=tmp_path)
    assert [row[:3] for row in arrived] == [(n, 2, n) for n in (0, 2, 3)]
    assert len(missing) == 3 + 4
    assert_simulated_with(fm.replayed(ARRIVALS, arrived), algorithm, ended)


def test_a_record_in_another_file_is_refused(tmp_path):
    path = tmp_path / "arrivals.csv"
    path.write_text("round,client\n0,1")
    with pytest.raises(ValueError, match="columns round, client, start, seconds"):
        fm.replayed(ARRIVALS, path)
