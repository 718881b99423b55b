"""Deployed private clients: secret noise, and servers that are killed at any time."""

import dataclasses
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_muon as fm
from fedjax_muon.algorithms import fedavg, fedmuon
from fedjax_muon.core import message_shapes, tree
from fedjax_muon.deploy import in_process, messages, rounds, serve, server
from fedjax_muon.deploy.messages import Message
from fedjax_muon.deploy.node import request_shapes
from fedjax_muon.privacy import ClientPrivacy
from tests.deploy.small_federation import (
    CLIENTS,
    KEY,
    TASK,
    described,
    nodes_of,
)
from tests.support.cases import slow_but

PRIVACY = ClientPrivacy(
    clip_norm=0.5,
    cohort=2,
    rounds=4,
    delta=1e-2,
    noise_multiplier=1.0,
    insecure_fixed_noise=True,
)
SECRET = dataclasses.replace(PRIVACY, insecure_fixed_noise=False)


def shared_of(algorithm, privacy, cohort=None):
    return described(algorithm, privacy=privacy, cohort=cohort)


def started(shared, rounds=3, key=KEY, **given):
    return serve(shared, in_process(nodes_of(shared)), key, rounds=rounds, **given)


@pytest.mark.slow
def test_private_and_quantized_messages_have_the_bits_of_the_simulation():
    """In a process of its own, without the settings of this suite: with them, XLA
    rounds a decoding differently where it is compiled together with local training.
    """
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    how = {"cwd": Path(__file__).parents[2], "env": environment}
    command = [sys.executable, "-m", "tests.deploy.decoded_messages"]
    said = subprocess.run(command, **how, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    cases = dict(line.split(maxsplit=1) for line in said.stdout.splitlines())
    # difference, missing answers
    assert cases == dict.fromkeys(("quantized", "adaptive"), "0.0 0")


def test_a_private_server_that_restarts_has_fresh_noise(tmp_path):
    """From a copied checkpoint, two broadcasts differ by more than a late client."""
    shared = shared_of(fedavg(lr=0.3), dataclasses.replace(SECRET, cohort=4))
    nodes = in_process(nodes_of(shared))
    late = lambda requests, deadline: nodes(
        {client: r for client, r in requests.items() if client}, deadline
    )
    lives = []
    first = started(shared, 1, directory=tmp_path / "first")
    for send in (nodes, late):
        place = shutil.copytree(tmp_path / "first", tmp_path / f"copy{len(lives)}")
        lives.append(serve(shared, send, KEY, rounds=2, directory=place))
    assert lives[0].run == lives[1].run == first.run
    moved = jax.tree.map(lambda a, b: 4 * (a - b), *(life.params for life in lives))
    # without fresh noise it would be the message, of a norm of at most the clip
    assert optax.tree.norm(moved) > 2 * PRIVACY.clip_norm
    other = started(shared, 1)  # a run has the noise of no other
    assert not np.array_equal(*(jax.tree.leaves(p.params)[-1] for p in (first, other)))


def test_a_private_server_saves_every_round_for_its_owner_alone(tmp_path):
    shared = shared_of(fedavg(lr=0.3), SECRET)
    with pytest.raises(ValueError, match="saves every exchange"):
        started(shared, 1, directory=tmp_path, checkpoint_seconds=60.0)
    started(shared, 1, directory=tmp_path / "server")
    readable = [p for p in tmp_path.glob("server/**/*") if p.stat().st_mode & 0o077]
    assert not readable
    assert not (tmp_path / "server").stat().st_mode & 0o077


@pytest.mark.filterwarnings("ignore:messages have params")
@pytest.mark.slow
def test_nodes_are_not_told_how_many_take_part():
    shared, told = shared_of(fedmuon(lr=0.1), SECRET), set()
    nodes = in_process(nodes_of(shared))

    def send(requests, deadline):
        for request in requests.values():
            asked = messages.read(request)
            shapes = request_shapes(shared, asked.about["exchange"])
            if asked.about["base"] < 0:
                shapes["params"] = jax.eval_shape(TASK.init, KEY)
            values = messages.unpack(asked.arrays, shapes)
            told.add((asked.about["exchange"], float(values["present"])))
        return nodes(requests, deadline)

    serve(shared, send, KEY, rounds=4)
    assert told == {(0, CLIENTS), (1, PRIVACY.cohort)}


@pytest.mark.slow
def test_a_client_that_does_not_answer_counts_as_zero():
    """The mean is still a sum over the expected number of clients."""
    shared = shared_of(fedavg(lr=0.3), dataclasses.replace(PRIVACY, cohort=4))
    nodes = in_process(nodes_of(shared))
    silent = lambda requests, deadline: nodes(
        {client: r for client, r in requests.items() if client}, deadline
    )

    def zero(requests, deadline):
        for client, answer in nodes(requests, deadline):
            about, arrays = messages.read(answer)
            none = messages.write(Message(about, [np.zeros_like(a) for a in arrays]))
            yield client, answer if client else none

    here = serve(shared, silent, KEY, rounds=1)
    there = serve(shared, zero, KEY, rounds=1)
    for a, b in zip(*(jax.tree.leaves(p.params) for p in (here, there)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_any_schedule_can_be_described():
    schedule = optax.exponential_decay(0.1, 10, 0.5)  # refers to an unset variable
    shared = shared_of(fedavg(lr=schedule), SECRET)
    (same,) = {str(node._description) for node in nodes_of(shared).values()}
    assert "exponential_decay" in same


# ------------------------------------------------------------------------------- kills
class Two(NamedTuple):
    """Server state of an algorithm with two exchanges."""

    params: Any
    direction: Any


def two_exchanges():
    """A prologue and rounds of two exchanges; clients count the second ones."""

    def gradient(objective, broadcast, state, batches, round):
        batch = jax.tree.map(lambda x: x[0], batches)
        grad = objective.grad(broadcast.params, batch, round.key)
        return fm.ParamsMessage(grad), state

    def sign(objective, broadcast, state, batches, round):
        step = tree.map(lambda d: jnp.sign(d) * (1 + state), broadcast.direction)
        return fm.ParamsMessage(step), state + 1

    pair = (
        fm.Exchange(
            fm.broadcast_state,
            gradient,
            lambda state, mean, round: state._replace(direction=mean.params),
        ),
        fm.Exchange(
            fm.broadcast_state,
            sign,
            lambda state, mean, round: state._replace(
                params=tree.add_scaled(state.params, -0.1, mean.params)
            ),
        ),
    )
    init = lambda params: Two(params, tree.zeros_like(params))
    return fm.Algorithm(init, lambda params: jnp.float32(0), pair, prologue=pair)


class KilledError(Exception):
    pass


class Life:
    """A life of a server, which ends at a number of its moments."""

    def __init__(self, last=None):
        self.last, self.moments = last, 0

    def moment(self):
        self.moments += 1
        if self.moments == self.last:
            raise KilledError

    def around(self, function):
        """The life may end before and after a call."""

        def called(*args, **kwargs):
            self.moment()
            result = function(*args, **kwargs)
            self.moment()
            return result

        return called


@pytest.fixture
def shared_by_lives(monkeypatch):
    """Makes a federation whose servers share their programs."""

    def make(privacy, cohort):
        changes = {"clip_norm": {"params": 0.5}, "cohort": cohort}
        shared = shared_of(two_exchanges(), dataclasses.replace(privacy, **changes))
        for name in ("_broadcast_program", "_update_program"):
            made = functools.cache(functools.partial(vars(rounds)[name], shared))
            program = lambda shared, number, made=made: made(number)
            monkeypatch.setattr(rounds, name, program)
        return shared

    return make


def zeros_from(shared, requests):
    """Answers of clients that have nothing to say."""
    params = jax.eval_shape(TASK.init, KEY)
    shapes = message_shapes(shared.setup.algorithm, params)
    for client, request in requests.items():
        asked = messages.read(request).about
        about = {name: asked[name] for name in ("client", "run", "turn")}
        about |= {"examples": 1, "finite": True}
        arrays = messages.pack(tree.zeros_like(shapes[asked["exchange"]]))
        yield client, messages.write(Message(about, arrays))


@pytest.mark.parametrize("every", slow_but(1, [5, 1]))
def test_a_noisy_sum_leaves_in_one_version_whenever_the_server_is_killed(
    tmp_path, monkeypatch, shared_by_lives, every
):
    shared = shared_by_lives(SECRET, CLIENTS)
    seen, leaves = {}, 2 * len(jax.tree.leaves(TASK.init(KEY)))

    def note(name, tree):
        value = b"".join(array.tobytes() for array in messages.pack(tree))
        seen.setdefault(name, set()).add(value)

    def lived(life, place):
        def send(requests, deadline):
            for request in requests.values():
                asked = messages.read(request)
                about = asked.about
                note((about["round"], about["exchange"]), asked.arrays[:leaves])
            life.moment()
            yield from zeros_from(shared, requests)
            life.moment()

        def on_round(progress, missing):
            note(progress.state.round, progress.state.training.server)
            life.moment()

        monkeypatch.setattr(server, "_save", life.around(save))
        monkeypatch.setattr(server.files, "write", life.around(write))
        return serve(shared, send, KEY, rounds=1, directory=place, on_round=on_round)

    save, write = server._save, server.files.write
    whole = Life()
    lived(whole, tmp_path / "whole")
    assert len(seen) == 2 + 2 + 2  # of the prologue, of a round, of `on_round`
    for last in range(1, whole.moments + 1, every):
        seen.clear()
        place = tmp_path / str(last)
        with pytest.raises(KilledError):
            lived(Life(last), place)
        lived(Life(), place)
        assert len(seen) == 6
        assert {len(values) for values in seen.values()} == {1}, last


def test_a_killed_server_goes_on_in_the_middle_of_a_round(tmp_path, shared_by_lives):
    """With fixed noise, it ends with the bits of one that was not killed."""
    shared = shared_by_lives(PRIVACY, 3)
    nodes, asked = in_process(nodes_of(shared, tmp_path)), []

    def send(requests, deadline):
        (at,) = {messages.read(request).about["turn"] for request in requests.values()}
        asked.append((at, sorted(requests)))
        if at in dying:
            dying.remove(at)
            raise KilledError
        silent = at % 2  # client 0 in the first exchanges, and so in the second ones
        return nodes({i: r for i, r in requests.items() if i != silent}, deadline)

    dying, run = {1, 3, 4, 5}, functools.partial(serve, shared, send, KEY, rounds=2)
    while dying:
        with pytest.raises(KilledError):
            run(directory=tmp_path / "server")
    ended = run(directory=tmp_path / "server")
    interrupted = asked.copy()
    asked.clear()
    again = run()
    for a, b in zip(*map(jax.tree.leaves, (ended.state, again.state)), strict=True):
        np.testing.assert_array_equal(messages.key_data(a), messages.key_data(b))
    assert [at for at, _ in asked] == [0, 1, 2, 3, 4, 5]
    assert any(len(who) < 3 for _, who in asked)
    repeated = [at for at in asked for _ in range(1 + (at[0] in (1, 3, 4, 5)))]
    assert interrupted == repeated


def test_an_older_checkpoint_is_refused_and_so_is_a_second_server(tmp_path):
    shared, place = shared_of(fedavg(lr=0.3), SECRET), tmp_path / "server"
    run = functools.partial(started, shared, directory=place)
    beside = lambda progress, missing: progress.state.round == 1 and run(1)
    with pytest.raises(ValueError, match="another server is using"):
        run(2, on_round=beside)
    kept = sorted(place.glob("[0-9]*"))
    assert [path.name for path in kept] == ["0", "1"]
    shutil.copytree(place, tmp_path / "copy")
    for path in kept[::-1]:
        shutil.rmtree(path)
        with pytest.raises(ValueError, match=r"checkpoint 1 of .* is gone"):
            run(2)
    (place / "newest").unlink()  # and 0 is all that is left
    shutil.copytree(tmp_path / "copy" / "0", place / "0")
    with pytest.raises(ValueError, match=r"the file newest of .* is gone; an older"):
        run(2)
    shutil.copytree(tmp_path / "copy", place, dirs_exist_ok=True)
    assert run(2).state.round == 2
    assert "checkpoints are never put back" in shared.guarantee.statement()
