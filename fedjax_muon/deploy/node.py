"""A node: one client that has its own examples, and answers the server's requests.

A node holds the states of its client that the server may still ask for. A request names
the state to begin with, by the turn that made it: that of the last answer that the
server received. An answer that was lost therefore changes nothing, and a server that
returns to its checkpoint finds the states of that time.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_muon import files
from fedjax_muon.core import Round, tree
from fedjax_muon.deploy import messages
from fedjax_muon.deploy.federation import Federation, description, differences
from fedjax_muon.deploy.messages import Message, MessageError
from fedjax_muon.simulation.batching import Clients, Partition
from fedjax_muon.simulation.rounds import objective_and_sampler

INITIAL = -1  # turn of the state before the first answer


class Node:
    """One client of a deployed federation, whose examples and state never leave it.

    It keeps states of one run. The first request of another run drops them.

    Args:
      client: Id of the client, 0 to N - 1.
      x: Examples [n, ...].
      y: Labels [n], integers from 0.
      directory: Where its states are kept, so that the client resumes after its process
        has ended; by default, in memory.
    """

    def __init__(
        self,
        shared: Federation,
        client: int,
        x: np.ndarray,
        y: np.ndarray,
        directory: Path | None = None,
    ) -> None:
        _check(shared, client, x, y)
        self.shared, self.client, self.examples = shared, client, len(y)
        self._description = description(shared)
        self._clients = _clients(shared, client, x, y)
        self._states = States(shared, directory)
        self._programs: dict[int, Callable[..., Any]] = {}
        self._known: dict[int, dict[str, Any]] = {}  # shapes of requests
        self._sums_secretly = shared.sums_secretly

    def summand(self, request: bytes) -> np.ndarray:
        """Runs the client for one exchange, and returns its message for a secure sum.

        Returns:
          int64 [D], all entries in order.

        Raises:
          MessageError: If the node can't do what it is asked.
        """
        if not self._sums_secretly:
            raise MessageError("this algorithm has no secure sums")
        sent, finite = self._run(messages.read(request))
        if not finite:
            raise MessageError("not finite, or an entry is too large")
        entries = [np.ravel(x) for x in jax.tree.leaves(sent.values)]
        return np.concatenate(entries).astype(np.int64)

    def answer(self, request: bytes) -> bytes:
        """Runs the client for one exchange, or answers why it can't."""
        about: dict[str, Any] = {"client": self.client}
        try:
            if self._sums_secretly:
                raise MessageError("messages of secure_sums are sent only as a sum")
            asked = messages.read(request)
            for name in ("run", "turn"):
                about[name] = asked.about.get(name)
            sent, finite = self._run(asked)
        except MessageError as error:
            return messages.refusal(self.client, str(error))
        about |= {"examples": self.examples, "finite": finite}
        return messages.write(Message(about, messages.pack(sent)))

    def _run(self, asked: Message) -> tuple[Any, bool]:
        values = _values(asked)
        other = differences(self._description, values["federation"])
        if other:
            raise MessageError(f"the server has another federation: {other}")
        if values["client"] != self.client:
            raise MessageError(f"this is client {self.client}, not {values['client']}")
        number, run = values["exchange"], values["run"]
        shapes = self._shapes(number)
        if values["base"] == INITIAL:
            shapes["params"] = jax.eval_shape(
                self.shared.setup.task.init, jax.random.key(0)
            )
        request = messages.unpack(asked.arrays, shapes)
        before = self._states.at(run, values["base"], request.pop("params", None))
        sent, after, finite = self._program(number)(
            jnp.int32(self.client),
            self._clients,
            request,
            before,
            jnp.int32(values["round"]),
        )
        if finite:
            self._states.keep(run, values["turn"], after, values["oldest"])
        return sent, bool(finite)

    def _shapes(self, number: int) -> dict[str, Any]:
        """Shapes of what a request holds."""
        if not 0 <= number < len(self.shared.exchanges):
            raise MessageError(f"there is no exchange {number}")
        if number not in self._known:
            self._known[number] = request_shapes(self.shared, number)
        return dict(self._known[number])

    def _program(self, number: int) -> Callable[..., Any]:
        if number not in self._programs:
            self._programs[number] = client_program(self.shared, number)
        return self._programs[number]


def request_shapes(shared: Federation, number: int) -> dict[str, Any]:
    """Shapes of a request of an exchange: of the broadcast, the client's two keys, and
    the number of clients that take part."""
    setup = shared.setup
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(lambda k: setup.algorithm.init(setup.task.init(k)), key)
    present = jax.ShapeDtypeStruct((), jnp.float32)
    broadcast = jax.eval_shape(
        lambda state, key, present: shared.exchanges[number].broadcast(
            state, round_of(shared, number, jnp.int32(0), key, present)
        ),
        state,
        key,
        present,
    )
    return {"broadcast": broadcast, "keys": (key, key), "present": present}


def round_of(
    shared: Federation, number: int, index: jax.Array, key: jax.Array, present: Any
) -> Round:
    """What a round tells its clients, or the server; the key is theirs."""
    setup = shared.setup
    fraction = present / setup.num_clients
    return Round(index, key, shared.steps(number), present, fraction)


def client_program(
    shared: Federation, number: int
) -> Callable[..., tuple[Any, Any, jax.Array]]:
    """Compiles the local training of a client in an exchange.

    Returns:
      `train(client, clients, request, state, index) -> (message, state, whether both
      are finite)`; the request is that of `request_shapes`.
    """

    @jax.jit
    def train(
        inputs: Any,
        client: jax.Array,
        clients: Clients,
        request: dict[str, Any],
        state: Any,
        index: jax.Array,
        once: jax.Array,
    ) -> tuple[Any, Any, jax.Array]:
        ours = shared.with_inputs(inputs)
        exchange = ours.exchanges[number]
        objective, draw = objective_and_sampler(
            ours.setup, clients, prologue=number < ours.first
        )
        member_key, draw_key = request["keys"]
        batches = draw(client, draw_key)
        round = round_of(ours, number, index, member_key, request["present"])
        round = round._replace(client=client)

        def run() -> tuple[Any, Any, jax.Array]:
            sent, after = exchange.client(
                objective, request["broadcast"], state, batches, round
            )
            return sent, after, tree.all_finite((exchange.decode(sent), after))

        # A loop as in the plan `mapped`, since XLA may round its body differently. The
        # count is an argument, because loops of constant length 1 are dissolved.
        zeros = tree.zeros_like(jax.eval_shape(run))
        return jax.lax.fori_loop(0, once, lambda _, last: run(), zeros)

    return functools.partial(train, shared.inputs, once=jnp.int32(1))


class States:
    """States of a client by the turns that made them, in memory or in a directory."""

    def __init__(self, shared: Federation, directory: Path | None) -> None:
        self.algorithm, self.directory = shared.setup.algorithm, directory
        params = jax.eval_shape(shared.setup.task.init, jax.random.key(0))
        self.like = jax.eval_shape(self.algorithm.init_client, params)
        self.run = ""
        self.kept: dict[int, Any] = {}
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            self._load(directory)

    def at(self, run: str, turn: int, params: Any) -> Any:
        """Returns the state that a turn has made, or the initial one."""
        if turn == INITIAL:
            if run != self.run:
                self.run, self.kept = run, {}
            return self.algorithm.init_client(params)
        if not jax.tree.leaves(self.like):
            return jax.tree.map(lambda leaf: leaf, self.like)
        if run != self.run or turn not in self.kept:
            raise MessageError(
                f"this node does not have the state of turn {turn}; start it with the "
                "directory that holds its states, or start a new run"
            )
        return self.kept[turn]

    def keep(self, run: str, turn: int, state: Any, oldest: int) -> None:
        """Keeps a new state, and forgets those before the oldest that may be needed."""
        if not jax.tree.leaves(self.like):
            return
        self.run = run
        self.kept = {t: s for t, s in self.kept.items() if oldest <= t < turn}
        self.kept[turn] = state
        if self.directory is None:
            return
        about = {"run": run, "turn": turn}
        text = messages.write(Message(about, messages.pack(state)))
        files.write(self.directory / f"state_{turn}", text)
        for path in self.directory.glob("state_*"):
            if path.name not in {f"state_{t}" for t in self.kept}:
                path.unlink()

    def _load(self, directory: Path) -> None:
        stored = [messages.read(p.read_bytes()) for p in directory.glob("state_*")]
        for message in sorted(stored, key=lambda message: message.about["turn"]):
            self.run = message.about["run"]
            state = messages.unpack(message.arrays, self.like)
            self.kept[message.about["turn"]] = state


VALUES = {"run": str, "client": int, "round": int, "exchange": int, "turn": int}
VALUES |= {"base": int, "oldest": int, "federation": dict}
BOUND = np.iinfo(np.int32).max


def _values(asked: Message) -> dict[str, Any]:
    for name, kind in VALUES.items():
        if type(asked.about.get(name)) is not kind:
            raise MessageError(f"the request has no {name}")
        least = INITIAL if name in ("base", "oldest") else 0
        if kind is int and not least <= asked.about[name] <= BOUND:
            raise MessageError(
                f"{name} must lie between {least} and {BOUND}, got {asked.about[name]}"
            )
    return dict(asked.about)


def _check(shared: Federation, client: int, x: np.ndarray, y: np.ndarray) -> None:
    if not 0 <= client < shared.setup.num_clients:
        raise ValueError(
            f"there are clients 0 to {shared.setup.num_clients - 1}, got {client}"
        )
    if not 0 < len(y) <= shared.max_client_size:
        raise ValueError(
            f"a client has 1 to {shared.max_client_size} examples, got {len(y)}; the "
            "bound is max_client_size"
        )
    if len(x) != len(y):
        raise ValueError(f"there are {len(x)} examples and {len(y)} labels")
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= shared.classes:
        raise ValueError(
            f"labels must be integers from 0 to {shared.classes - 1}, got {y.dtype} "
            f"from {y.min()} to {y.max()}"
        )


def _clients(shared: Federation, client: int, x: np.ndarray, y: np.ndarray) -> Clients:
    """The examples, where those of the other clients are none."""
    number = shared.setup.num_clients
    size = np.zeros(number, np.int32)
    size[client] = len(y)
    shares = np.zeros((number, shared.classes), np.float32)
    shares[client] = np.bincount(y, minlength=shared.classes) / len(y)
    partition = Partition(
        order=jnp.arange(len(y), dtype=jnp.int32),
        start=jnp.zeros(number, jnp.int32),
        size=jnp.asarray(size),
        shares=jnp.asarray(shares),
        max_size=shared.max_client_size,
    )
    return Clients(jnp.asarray(x), jnp.asarray(y), partition)
