"""The fastest plan of a run: measured once on a device, and remembered.

The record is a file of this user. A run's own config has the plan that was chosen, so
that a resumed run has the same one whatever the record says.
"""

import dataclasses
import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import platformdirs
from rich.console import Console

from fedjax_muon.core import atomic_files
from fedjax_muon.data import Dataset
from fedjax_muon.engine.processes import broadcast_from_first, is_first
from fedjax_muon.runs.build import CONVOLUTIONAL, task_of
from fedjax_muon.runs.config import Config
from fedjax_muon.simulation.federated import with_task
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.tuning import (
    Signature,
    candidates_of,
    signature_of,
    tune,
)

Seconds = Mapping[str, float]
Record = dict[str, dict[str, dict[str, float | None]]]  # program, device, plan
CHUNKED = "chunked with chunk_size "


def is_tuned(config: Config, asked: bool) -> bool:
    """Whether the plan of a run is measured.

    Args:
      config: Config of the run.
      asked: Whether the user asks for it; on accelerators nobody has to.
    """
    if config.plan == "default":
        return asked or jax.default_backend() != "cpu"
    if asked:
        raise ValueError(f"tune chooses the plan; leave out plan {config.plan}")
    return False


def forms_of(
    config: Config, simulation: Simulation, dataset: Dataset
) -> dict[str, tuple[Config, Simulation]]:
    """Lists the forms of a run's convolutions.

    Args:
      config: Config of the run.
      simulation: The run's simulation.
      dataset: Its data.

    Returns:
      Configs and simulations by name. A form that the user chose is the only one.
    """
    forms: dict[str, tuple[Config, Simulation]]
    forms = {config.convolution: (config, simulation)}
    if config.model in CONVOLUTIONAL and config.convolution == "direct":
        other = dataclasses.replace(config, convolution="patches")
        forms["patches"] = other, with_task(simulation, task_of(other, dataset))
    return forms


def fastest(
    forms: Mapping[str, tuple[Config, Simulation]],
) -> tuple[Config, Simulation]:
    """Chooses the fastest plan, by measurement or from the record.

    Args:
      forms: Configs of a run and their simulations by name, of which one is chosen too.

    Returns:
      The config with the plan's name, and the simulation with the plan.
    """
    simulations = {name: simulation for name, (_, simulation) in forms.items()}
    [first, *others] = simulations.values()
    candidates = simulations if others else first
    console, signature = Console(quiet=not is_first()), signature_of(first)
    record = read(record_path()) if is_first() else {}
    on_devices = record.get(signature.program, {})
    known = _shared(on_devices.get(signature.device, {}), candidates)
    if on_devices and signature.device not in on_devices:
        known_on = ", ".join(on_devices)
        console.print(f"plans were measured on {known_on}; now on {signature.device}")
    tuned = tune(candidates, measured=known)
    if known is None and is_first():
        _write(record_path(), record, signature, tuned.seconds)
    times = ", ".join(f"{n} {1e3 * s:.3g} ms" for n, s in tuned.seconds.items())
    console.print(f"fastest plan: {tuned.plan} (a round by plan: {times})")
    form, _, plan = tuned.plan.rpartition(", ")
    chosen, _ = forms[form or next(iter(forms))]
    name, _, rest = plan.partition(" ")
    changes: dict[str, Any] = {"plan": name}
    if rest:
        changes["chunk_size"] = int(plan.removeprefix(CHUNKED))
    return dataclasses.replace(chosen, **changes), tuned.simulation


def record_path() -> Path:
    """Returns the file of the record, which need not exist."""
    return platformdirs.user_cache_path("fedjax_muon") / "plans.json"


def read(path: Path) -> Record:
    """Reads a record; one that is damaged counts as empty, with a warning."""
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text())
        for devices in record.values():
            for seconds in devices.values():
                for value in seconds.values():
                    if value is not None and not value > 0:
                        raise ValueError(f"{value} seconds")
    except (OSError, ValueError, AttributeError, TypeError) as error:
        warnings.warn(f"plans are measured again: {path}: {error}", stacklevel=2)
        return {}
    return record


def _shared(
    seconds: Mapping[str, float | None],
    simulations: Simulation | Mapping[str, Simulation],
) -> Seconds | None:
    """The first process's seconds of all plans, in all processes; None if unknown."""
    found = {}
    for name, _ in candidates_of(simulations):
        value = seconds.get(name, math.nan)
        found[name] = broadcast_from_first(math.inf if value is None else value)
    return None if any(map(math.isnan, found.values())) else found


def _write(path: Path, record: Record, signature: Signature, seconds: Seconds) -> None:
    finite = {n: None if math.isinf(s) else s for n, s in seconds.items()}
    record.setdefault(signature.program, {})[signature.device] = finite
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, json.dumps(record, indent=1))
    except OSError as error:  # the plan is known; only the next run measures again
        warnings.warn(f"the measured plans are not kept: {error}", stacklevel=2)
