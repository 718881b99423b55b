"""Deployed asynchronous rounds, in virtual time, have the bits of simulated ones."""

import threading

import pytest
from cases import slow_but
from small_federation import KEY, assert_same, described, nodes_of, simulation_of

import fedjax_muon as fm
from fedjax_muon import clocks
from fedjax_muon.deploy import in_process, messages, serve

SECONDS = (1.0, 1.3, 2.1, 7.7)  # of clients
ARRIVALS = fm.buffered(3, 2)
ROUNDS = 8
UNCHANGED = lambda client, start, answer: answer


class Nodes:
    """A transport whose nodes answer in the order of a virtual clock.

    Args:
      change: Maps a client, the round of its start and its answer to another one, or
        to None for none.
    """

    def __init__(self, shared, change):
        self.shared, self.change, self.nodes = shared, change, nodes_of(shared)
        self.restart()

    def restart(self):
        self.now, self.ends, self.event = 0.0, {}, threading.Condition()

    def send(self, requests, deadline):
        for client, request in requests.items():
            about = messages.read(request).about
            answer = self.nodes[client].answer(request)
            if about["exchange"] >= self.shared.first:
                self.wait(client, self.event)
                answer = self.change(client, about["round"], answer)
            if answer is not None:
                yield client, answer

    def wait(self, client, event):
        """Waits until as many clients as there should be are at work, for the first."""
        ready = lambda: (
            len(self.ends) >= self.shared.setup.arrivals.concurrency
            and min(self.ends, key=self.ends.get) == client
        )
        with event:
            self.ends[client] = self.now + SECONDS[client]
            event.notify_all()
            assert event.wait_for(ready, 60)
            self.now = self.ends.pop(client)


def serving(shared, send, rounds=ROUNDS, watch=lambda progress: None, **given):
    """The end of a run, the arrivals, and who was missing for which reason."""
    arrived, missing = [], []

    def record(progress, lost):
        arrived.extend(progress.arrived)
        missing.extend((lost.round, lost.client, lost.reason) for lost in lost)
        watch(progress)

    given |= {"rounds": rounds, "on_round": record}
    return serve(shared, send, KEY, **given), arrived, missing


def deployed(algorithm, arrivals=ARRIVALS, rounds=ROUNDS, change=UNCHANGED):
    shared = described(algorithm, cohort_size=None, arrivals=arrivals)
    return serving(shared, Nodes(shared, change).send, rounds)


def simulated(algorithm, arrivals, rounds=ROUNDS, **given):
    how = {"cohort_size": None, "arrivals": arrivals, **given}
    simulation = simulation_of(algorithm, **how)
    return simulation.train_rounds(simulation.init(KEY), rounds)[0]


CASES = {
    "FedAvg": (lambda: fm.fedavg(lr=0.3), ARRIVALS),
    "FedAsync": (lambda: fm.fedavg(lr=0.3), fm.fedasync(3)),
    "FADAS": (
        lambda: fm.fedadam(lr=0.3),
        fm.buffered(3, 2, damping=fm.staleness.inverse(1)),
    ),
    "scaffold": (lambda: fm.scaffold(lr=0.3), ARRIVALS),  # states of clients
    "fedmuon": (lambda: fm.fedmuon(lr=0.1), ARRIVALS),  # a prologue
    "local_muon": (lambda: fm.local_muon(lr=0.1), ARRIVALS),
    "compressed": (lambda: fm.compress(fm.fedavg(lr=0.3), fm.top_k(0.5)), ARRIVALS),
}


@pytest.mark.parametrize("name", slow_but(("FedAsync", "scaffold"), CASES))
def test_a_run_has_the_bits_of_the_simulation_with_its_arrivals(name):
    make, arrivals = CASES[name]
    ended, arrived, missing = deployed(make(), arrivals)
    assert not missing
    assert max(row.round - row.start for row in arrived) > 1
    assert_same(simulated(make(), fm.replayed(arrivals, arrived)), ended)
    clock = clocks.measured(SECONDS)
    assert_same(simulated(make(), arrivals, clock=clock), ended)


def test_lost_late_and_unusable_answers_are_left_out_and_their_clients_start_again():
    answers = {0: [None], 1: [b"GET /"]}  # in place of the first ones
    change = lambda client, start, answer: (
        answers[client].pop() if answers.get(client) else answer
    )
    algorithm, arrivals = fm.scaffold(lr=0.3), fm.buffered(2, 1, max_staleness=2)
    ended, arrived, missing = deployed(algorithm, arrivals, rounds=16, change=change)
    reasons = {client: reason.split(" (")[0] for _, client, reason in missing}
    assert reasons == {
        0: "no answer",
        1: "these bytes are not a message of fedjax_muon",
        3: "later than max_staleness=2",
    }
    assert {row.client for row in arrived} >= {0, 1, 2}
    assert_same(simulated(algorithm, fm.replayed(arrivals, arrived), 16), ended)


def test_a_round_ends_when_no_client_is_left():
    """Only client 2 answers, and not in round 1."""
    shared = described(fm.scaffold(lr=0.3), cohort_size=None, arrivals=ARRIVALS)
    send = in_process({2: nodes_of(shared)[2]})
    silent = lambda requests, deadline: (
        []
        if any(messages.read(r).about["round"] == 1 for r in requests.values())
        else send(requests, deadline)
    )
    ended, arrived, missing = serving(shared, silent, rounds=4)
    assert [row[:3] for row in arrived] == [(n, 2, n) for n in (0, 2, 3)]
    assert len(missing) == 3 * 3 + 4
    replayed = fm.replayed(ARRIVALS, arrived)
    assert_same(simulated(fm.scaffold(lr=0.3), replayed, 4), ended)
