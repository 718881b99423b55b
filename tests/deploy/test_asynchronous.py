"""Deployed asynchronous rounds, in virtual time, have the bits of simulated ones."""

import dataclasses
import threading

import pytest
from cases import slow_but
from deployed_run import RUN, assert_simulated, data_of, nodes_from
from small_federation import KEY, assert_same, described, nodes_of, simulation_of

import fedjax_muon as fm
from fedjax_muon.deploy import in_process, messages, serve
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import flower_app

SECONDS = (1.0, 1.3, 2.1, 7.7)  # of clients
ARRIVALS = fm.buffered(3, 2)


class Nodes:
    """A transport whose nodes answer in the order of a virtual clock."""

    def __init__(self, nodes, change=lambda client, answer: answer, number=3):
        self.nodes, self.change, self.number = nodes, change, number
        self.now, self.ends, self.event = 0.0, {}, threading.Condition()

    def send(self, requests, deadline):
        for client, request in requests.items():
            answer = self.nodes[client].answer(request)
            if len(requests) == 1:  # not the prologue
                self.wait(client)
                answer = self.change(client, answer)
            yield from [(client, answer)] if answer else []

    def wait(self, client):
        """Waits until enough clients are at work, for the one that ends first."""
        is_next = lambda: (
            len(self.ends) >= self.number
            and min(self.ends, key=self.ends.get) == client
        )
        with self.event:
            self.ends[client] = self.now + SECONDS[client]
            self.event.notify_all()
            assert self.event.wait_for(is_next, 60)
            self.now = self.ends.pop(client)


def shared_of(algorithm, arrivals=ARRIVALS, **changes):
    return described(algorithm, cohort_size=None, arrivals=arrivals, **changes)


def serving(shared, send, rounds=8, **given):
    """The end of a run, the arrivals, and the missing answers."""
    arrived, missing = [], []

    def record(progress, lost):
        arrived.extend(progress.arrived)
        missing.extend(lost)

    ended = serve(shared, send, KEY, rounds=rounds, on_round=record, **given)
    return ended, arrived, missing


def assert_replayed(algorithm, arrivals, arrived, ended, **given):
    if arrived is not None:
        arrivals = fm.replayed(arrivals, arrived)
    simulation = simulation_of(algorithm, cohort_size=None, arrivals=arrivals, **given)
    state = simulation.init(KEY)
    assert_same(simulation.train_rounds(state, ended.state.round)[0], ended)


FADAS = fm.buffered(3, 2, damping=fm.staleness.inverse(1))
CASES = {
    "FedAvg": (lambda: fm.fedavg(lr=0.3), ARRIVALS),
    "FedAsync": (lambda: fm.fedavg(lr=0.3), fm.fedasync(3)),
    "FADAS": (lambda: fm.fedadam(lr=0.3), FADAS),
    "scaffold": (lambda: fm.scaffold(lr=0.3), ARRIVALS),  # states of clients
    "fedmuon": (lambda: fm.fedmuon(lr=0.1), ARRIVALS),  # a prologue
    "local_muon": (lambda: fm.local_muon(lr=0.1), ARRIVALS),
    "compressed": (lambda: fm.compress(fm.fedavg(lr=0.3), fm.top_k(0.5)), ARRIVALS),
}


@pytest.mark.parametrize("name", slow_but(("FedAsync", "fedmuon"), CASES))
def test_a_run_has_the_bits_of_the_simulation_with_its_arrivals(name):
    make, arrivals = CASES[name]
    shared = shared_of(make(), arrivals)
    ended, arrived, missing = serving(shared, Nodes(nodes_of(shared)).send)
    assert not missing
    assert max(row.round - row.start for row in arrived) > 1
    assert_replayed(make(), arrivals, arrived, ended)
    assert_replayed(make(), arrivals, None, ended, clock=fm.clocks.measured(SECONDS))


def test_lost_late_and_unusable_answers_are_left_out_and_their_clients_start_again():
    first = {0: [None], 1: [b"GET /"]}  # in place of answers
    change = lambda client, answer: first[client].pop() if first.get(client) else answer
    algorithm, arrivals = fm.scaffold(lr=0.3), fm.buffered(2, 1, max_staleness=2)
    shared = shared_of(algorithm, arrivals)
    nodes = Nodes(nodes_of(shared), change, 2)
    ended, arrived, missing = serving(shared, nodes.send, 16)
    assert {lost.client: lost.reason.split(" (")[0] for lost in missing} == {
        0: "no answer",
        1: "these bytes are not a message of fedjax_muon",
        3: "later than max_staleness=2",
    }
    assert {row.client for row in arrived} >= {0, 1, 2}
    assert_replayed(algorithm, arrivals, arrived, ended)


def test_a_round_ends_when_no_client_is_left_and_a_killed_server_resumes(tmp_path):
    """Only client 2 answers, and not in round 1; the server is killed after round 2."""
    shared = shared_of(fm.scaffold(lr=0.3))
    nodes = in_process({2: nodes_of(shared)[2]})

    def send(requests, deadline):
        silent = any(messages.read(r).about["round"] == 1 for r in requests.values())
        return [] if silent else nodes(requests, deadline)

    _, arrived, missing = serving(shared, send, 2, directory=tmp_path)
    ended, more, _ = serving(shared, send, 4, directory=tmp_path)
    assert [row[:3] for row in arrived + more] == [(n, 2, n) for n in (0, 2, 3)]
    assert len(missing) == 3 + 4
    assert_replayed(fm.scaffold(lr=0.3), ARRIVALS, arrived + more, ended)


ROWS = [(0, 1, 0, 1.0), (0, 2, 0, 1.5), (1, 0, 0, 2.0), (1, 3, 1, 2.5)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((2, 9, 1), "the record of arrivals has client 9, but there are 4"),
        ((2, -1, 1), "clients and rounds are from 0"),
        ((2, 1, 3), "client 1 arrives in round 2 from round 3; .* start is past"),
        ((22, 1, 1), "client 1 arrives in round 22 .* later than max_staleness=20"),
        ((2, 2, 0), "client 2 .* from round 0, while it has another job"),
        ((0, 3, 0), "after a message of round 1; sort the rounds"),
        ((1, 1, 1), "into a buffer of 2 that is full"),
    ],
)
def test_records_are_checked(row, said):
    with pytest.raises(ValueError, match=said):
        assert_replayed(fm.fedavg(), ARRIVALS, [*ROWS, (*row, 3.0)], None)


def test_other_uses_of_records_are_refused(tmp_path):
    path, replayed = tmp_path / "arrivals.csv", fm.replayed(ARRIVALS, ROWS)
    path.write_text("round,client\n0,1")
    simulation = simulation_of(fm.fedavg(), cohort_size=None, arrivals=replayed)
    for refused, said in (
        (lambda: fm.replayed(ARRIVALS, path), "expected a CSV file with the columns"),
        (lambda: fm.replayed(ARRIVALS, []), "the record has no arrivals"),
        (lambda: simulation.timing(KEY).check(3), "has 2 rounds, got 3; ask for fewer"),
        (
            lambda: shared_of(fm.fedavg(), replayed),
            "give replayed arrivals to federate",
        ),
        (lambda: shared_of(fm.ef21_muon()), "leave out arrivals"),
    ):
        with pytest.raises(ValueError, match=said):
            refused()


@pytest.mark.slow
def test_the_app_records_arrivals_that_train_replays(tmp_path):
    late = dataclasses.replace(RUN.config, buffer=2, concurrency=3)
    run = dataclasses.replace(RUN, config=late)
    dataset, parts, facts = data_of(run)
    flower_app.write_app(tmp_path, run, facts, deadline=5.0, patience=2.0)
    nodes = nodes_from(tmp_path, flower_app.save_examples(tmp_path, dataset, parts))
    flower_app.train_with(run, facts, dataset, in_process(nodes), tmp_path)
    late = dataclasses.replace(late, replay=str(tmp_path / flower_app.ARRIVALS))
    run = dataclasses.replace(run, config=late)
    assert_simulated(run, metrics_csv.read(tmp_path / "metrics.csv"), rounds=4)
