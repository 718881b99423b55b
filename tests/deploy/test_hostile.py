"""Nodes and servers withstand whatever the other side sends."""

import numpy as np

from fedjax_muon.algorithms import fedmuon_correct
from fedjax_muon.deploy import in_process, messages
from fedjax_muon.deploy.messages import LONGEST, Message
from tests.deploy.small_federation import described, nodes_of, served

TEXT = "\x1b[31mred\r\n\x00" + 5000 * "x"
NUMBERS = [-1, -2, 0, 1, 3, 2**31 - 1, 2**31, -(2**40), 2**63, 0.5, float("nan"), 1e300]
VALUES = [*NUMBERS, True, None, "", TEXT, [TEXT] * 3, {TEXT: TEXT}, [[[]]], {}, {3: 3}]
SHAPES = [(), (0,), (0, 2**40), (1,) * 30, (7,), (2, 3)]
DTYPES = ["f8", "f2", "i4", "?", "S9", "U5", "c8", "M8[s]"]


def changed(message, rng):
    """A message in which one thing is another."""
    about, arrays = dict(message.about), list(message.arrays)
    pick = lambda of: of[int(rng.integers(len(of)))]
    kind = rng.integers(8)
    if kind < 4:
        about[pick([*about, "refused", TEXT])] = pick(VALUES)
    elif kind == 4:
        about.pop(pick([*about]))
    elif arrays and kind == 5:
        place = int(rng.integers(len(arrays)))
        arrays[place] = np.zeros(pick(SHAPES), pick(DTYPES))
    elif arrays and kind == 6:
        place = int(rng.integers(len(arrays)))
        arrays[place] = np.full_like(arrays[place], pick([0, 1, 255]))
    data = bytearray(messages.write(Message(about, arrays)))
    if kind == 7:
        cut = int(rng.integers(len(data)))
        data[cut : cut + int(rng.integers(9))] = rng.bytes(int(rng.integers(9)))
    return bytes(data)


def is_plain(text):
    return text.isprintable() and len(text) <= LONGEST


ALGORITHM = fedmuon_correct(lr=0.1)  # with client states and a prologue


def test_a_node_answers_any_request():
    shared, rng, good = described(ALGORITHM), np.random.default_rng(0), []
    nodes = nodes_of(shared)

    def send(requests, deadline):
        good.extend(requests.items())
        return in_process(nodes)(requests, deadline)

    served(shared, send, rounds=2)
    reasons = set()
    for _ in range(300):
        client, request = good[int(rng.integers(len(good)))]
        answer = messages.read(
            nodes[client].answer(changed(messages.read(request), rng))
        )
        if "refused" in answer.about:
            reasons.add(answer.about["refused"])
        assert len(nodes[client]._states.kept) <= 3
    assert all(map(is_plain, reasons))
    assert len(reasons) > 40
    assert any("must lie between 0 and 2147483647, got" in reason for reason in reasons)


def test_a_server_goes_on_whatever_it_is_sent():
    shared, rng, rounds, seen = described(ALGORITHM), np.random.default_rng(1), 80, []
    nodes = in_process(nodes_of(shared))

    def send(requests, deadline):
        for client, answer in nodes(requests, deadline):
            seen.append(client)
            yield client, changed(messages.read(answer), rng)

    ended, missing = served(shared, send, rounds=rounds)
    assert ended.state.round == rounds
    assert 100 < len(missing) < len(seen) < 4 + 3 * rounds + 1
    assert len({lost[:3] for lost in missing}) == len(missing)
    assert all(is_plain(lost.reason) for lost in missing)
    assert any("a list" in lost.reason for lost in missing)
