"""Whether a simulation fits into memory, asked before its first round is compiled."""

import warnings
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax

from fedjax_muon.core import tree
from fedjax_muon.engine.plans import chunked, mapped
from fedjax_muon.engine.sharding import Devices
from fedjax_muon.simulation.federated import with_plan
from fedjax_muon.simulation.machine import memory_bytes
from fedjax_muon.simulation.memory import UnknownMemoryError, peak_bytes
from fedjax_muon.simulation.rounds import init_state
from fedjax_muon.simulation.simulation import Simulation

# XLA was measured to need 0.8 to 1.5 times what `peak_bytes` finds for the work.
ALLOWANCE = 1.1


class Memory(NamedTuple):
    """Bytes on each device."""

    state: int  # the server's, and the device's part of the clients'
    # with what the task holds, such as frozen weights, and the hyper-parameters
    examples: int
    work: int  # beside these, at the worst moment of a round or an evaluation

    @property
    def total(self) -> int:
        return sum(self)


def memory_of(simulation: Simulation) -> Memory:
    """What a simulation will need: exact but for the work, which is estimated.

    Its programs are traced, which they need not be again; nothing is compiled, and the
    state is not made. Raises `UnknownMemoryError` if it can't be estimated.
    """
    setup, programs = simulation.setup, simulation.programs
    inputs, clients = simulation.inputs, simulation.clients
    task, max_client_size = setup.task, simulation.max_client_size
    state = jax.eval_shape(partial(init_state, setup), jax.random.key(0))
    client_states = tree.nbytes(state.training.client_states)
    held = (
        tree.nbytes(state) - client_states + client_states // max(1, len(setup.devices))
    )
    own = [False] * len(jax.tree.leaves(inputs)) + [True] * len(jax.tree.leaves(state))
    begin = programs.begin.trace(inputs, state, clients, max_client_size).jaxpr
    rounds = programs.rounds.trace(inputs, state, clients, 1, max_client_size).jaxpr
    score = programs.score.trace(task, state.params, clients, simulation.test).jaxpr
    trained = max(peak_bytes(begin, own), peak_bytes(rounds, own)) - held
    work = max(trained, peak_bytes(score))
    arrays = jax.tree.leaves((inputs, clients, simulation.test))
    each = {id(x): x.addressable_data(0).nbytes for x in arrays}
    examples = sum(each.values())
    return Memory(held, examples, round(ALLOWANCE * work))


def limit_of(devices: Devices = ()) -> int:
    """Bytes that each of these devices has, of those that this process can use; by
    default of JAX's first. Devices of a CPU share its memory. Raises
    `UnknownMemoryError` if an accelerator doesn't say how much it has."""
    here = jax.process_index()
    own = [device for device in devices if device.process_index == here]
    own = own or jax.local_devices()[:1]
    return min(_limit(device, len(own)) for device in own)


def _limit(device: jax.Device, sharing: int) -> int:
    if device.platform == "cpu":
        return memory_bytes() // sharing
    try:
        return device.memory_stats()["bytes_limit"]
    except (jax.errors.JaxRuntimeError, KeyError, TypeError) as error:
        raise UnknownMemoryError(
            f"{device.device_kind} does not say how much memory it has"
        ) from error


def check_memory(simulation: Simulation) -> None:
    """Checks that a simulation fits into the memory of its devices.

    Warns, and checks nothing, where that is not known.

    Raises:
      ValueError: If it needs more than there is; says which plan would fit, if one
        does.
    """
    devices = simulation.setup.devices
    try:
        need, limit = memory_of(simulation), limit_of(devices)
        if need.total <= limit:
            return
        advice = _advice(simulation, limit)
    except UnknownMemoryError as error:
        warnings.warn(f"memory not checked: {error}", stacklevel=2)
        return
    each = " on each device" if len(devices) > 1 else ""
    raise ValueError(
        f"this plan needs about {_size(need.total)} of memory{each}, of "
        f"{_size(limit)}; {advice}"
    )


def _advice(simulation: Simulation, limit: int) -> str:
    for name, other in _others(simulation):
        need = memory_of(other)
        if need.total <= limit:
            return f"{name} needs about {_size(need.total)}"
    # `need` is that of one client at a time
    setup = simulation.setup
    large = max(need._fields, key=need._asdict().__getitem__)
    known = f"even mapped needs {_size(need.total)}, of which {_size(max(need))} are "
    if large == "examples":
        splits = setup.split_examples
        remedy = "more devices" if splits else "more devices and split_examples"
        return f"{known}examples: take fewer, or {remedy}"
    if large == "state":
        return f"{known}the state: take more devices, fewer clients or a smaller model"
    return f"{known}for the work: take smaller batches or a smaller model"


def _others(simulation: Simulation) -> Iterator[tuple[str, Simulation]]:
    """Plans that need less and less memory."""
    setup = simulation.setup
    size = -(-setup.cohort_size // max(1, len(setup.devices))) // 2
    while size > 1:
        yield f"chunked with chunk_size {size}", with_plan(simulation, chunked(size))
        size //= 2
    yield "mapped", with_plan(simulation, mapped)


def _size(count: int) -> str:
    unit, name = (1e9, "GB") if count >= 1e9 else (1e6, "MB")
    return f"{count / unit:.3g} {name}"
