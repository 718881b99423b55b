"""Records, nodes, messages and federations that a deployment refuses."""

import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.deploy import Node, in_process, messages, serve
from fedjax_muon.deploy.messages import Message
from tests.deploy.small_federation import KEY, X, described, nodes_of, simulation_of
from tests.support.error_lines import refused_with

AVERAGED, ARRIVALS = fm.fedavg(lr=0.3), fm.buffered(3, 2)
SHARED = described(AVERAGED)
PRIVATE = fm.privacy.ClientPrivacy(
    clip_norm=0.5, cohort=2, rounds=4, delta=1e-2, noise_multiplier=1.0
)
ROWS = [(0, 1, 0, 1.0), (0, 2, 0, 1.5), (1, 0, 0, 2.0), (1, 3, 1, 2.5)]
SCHEMA = {"flags": np.ones((1, 2), bool), "half": np.ones(3, "f2")}
PACKED = messages.pack(SCHEMA)


def replayed(*rows, then=()):
    """Rounds of a record that has these rows and, in a fourth column, 3 seconds."""

    def run():
        record = [*rows, *((*row, 3.0) for row in then)]
        cohort = fm.replayed(ARRIVALS, record)
        simulation = simulation_of(fm.fedavg(), cohort=cohort)
        fm.run(simulation, simulation.init(KEY), rounds=99)

    return run


def node(client=0, x=X[:3], y=(0, 1, 2)):
    return lambda: Node(SHARED, client, x, np.array(y, int))


def unpacked(*arrays):
    return lambda: messages.unpack(list(arrays), SCHEMA)


def ran(rounds):
    shared = described(AVERAGED, privacy=PRIVATE, cohort=None)
    return lambda: serve(shared, in_process(nodes_of(shared)), KEY, rounds=rounds)


of = lambda cohort: lambda: described(AVERAGED, cohort=cohort)
after = lambda *row: replayed(*ROWS, then=[row])
before = lambda *rows: replayed(*rows, *ROWS)
REFUSED = [
    # records of arrivals
    ("the record of arrivals has client 9, but there are 4", after(2, 9, 1)),
    ("clients and rounds are from 0", after(2, -1, 1)),
    ("client 1 arrives in round 2 from round 3", after(2, 1, 3)),
    ("later than max_staleness=20", after(22, 1, 1)),
    ("from round 0, while it has another job", after(2, 2, 0)),
    ("after a message of round 1; sort the rounds", after(0, 3, 0)),
    ("into a buffer of 2 that is full", after(1, 1, 1)),
    ("record of arrivals has 3 rounds, got 99; ask for fewer", after(2, 1, 1)),
    ("the record has no arrivals", replayed()),
    ("name clients without an answer to the prologue", before((-1, 1, 0, 0.5))),
    ("once each with a start of -1", before(*[(-1, 1, -1, 0.5)] * 2)),
    ("has client 4, but there are 4", before((-1, 4, -1, 0.5))),
    ("has 0; use the algorithm", before((-1, 1, -1, 0.5))),
    # federations
    ("give a replayed cohort to federate", of(fm.replayed(ARRIVALS, ROWS))),
    ("a cohort without a clock and dropout", of(fm.sampled(3, dropout=0.1))),
    ("a cohort without a clock and", of(fm.fedasync(2, fm.clocks.constant()))),
    ("the noise is for 4 rounds, got 0 completed", ran(5)),
    # nodes
    ("there are clients 0 to 3, got 9", node(client=9)),
    ("labels must be integers from 0 to 2", node(y=(0, 1, 5))),
    ("1 to 32 examples, got 0", node(x=np.zeros((0, 5)), y=())),
    ("3 examples and 2 labels", node(y=(0, 1))),
    # messages
    ("can't be sent", lambda: messages.write(Message({}, [np.array([{}])]))),
    ("array 1 of 2 must be float16 [3], got nothing", unpacked(PACKED[0])),
    ("must be nothing", unpacked(*PACKED, PACKED[0])),
    (
        "another schema: array 0 of 2 must be bool [1, 2]",
        unpacked(PACKED[0][:, :1], PACKED[1]),
    ),
    ("float64", unpacked(PACKED[0], PACKED[1].astype("f8"))),
]


@pytest.mark.parametrize(("said", "call"), REFUSED)
def test_a_deployment_refuses(said, call):
    refused_with(said, call)
