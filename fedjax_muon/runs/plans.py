"""The fastest plan of a run, which its config keeps: a resumed run has the same one."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from fedjax_muon.data import Dataset
from fedjax_muon.engine.processes import is_first
from fedjax_muon.runs.build import CONVOLUTIONAL, simulation_of
from fedjax_muon.runs.config import Config, Run
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.tuning import tune
from fedjax_muon.terminal import plain_console

CHUNKED = "chunked with chunk_size "


def is_tuned(config: Config, asked: bool) -> bool:
    """Whether the plan of a run is measured; on accelerators nobody has to ask."""
    if config.plan == "default":
        return asked or jax.default_backend() != "cpu"
    if asked:
        raise ValueError(f"tune chooses the plan; leave out plan {config.plan}")
    return False


def forms_of(
    run: Run, simulation: Simulation, dataset: Dataset
) -> dict[str, tuple[Config, Simulation]]:
    """Configs and simulations of the forms of a run's convolutions, by name.

    A form that the user chose is the only one.
    """
    config, forms = run.config, dict[str, tuple[Config, Simulation]]()
    forms = {config.convolution: (config, simulation)}
    if config.model in CONVOLUTIONAL and config.convolution == "direct":
        other = dataclasses.replace(config, convolution="patches")
        if not config.split_examples:  # they are on the devices already
            held: Any = simulation.data
            dataset = dataset._replace(x_train=held.x, x_test=held.test[0])
        again = dataclasses.replace(run, config=other)
        forms["patches"] = other, simulation_of(again, dataset)
    return forms


def fastest(
    forms: Mapping[str, tuple[Config, Simulation]],
) -> tuple[Config, Simulation]:
    """Chooses the fastest plan and form by measurement."""
    simulations = {name: simulation for name, (_, simulation) in forms.items()}
    [first, *others] = simulations.values()
    tuned = tune(simulations if others else first)
    times = ", ".join(f"{n} {1e3 * s:.3g} ms" for n, s in tuned.seconds.items())
    console = plain_console(quiet=not is_first())
    console.print(f"fastest plan: {tuned.plan} (a round by plan: {times})")
    form, _, plan = tuned.plan.rpartition(", ")
    chosen, _ = forms[form or next(iter(forms))]
    name, _, rest = plan.partition(" ")
    changes: dict[str, Any] = {"plan": name}
    if rest:
        changes["chunk_size"] = int(plan.removeprefix(CHUNKED))
    return dataclasses.replace(chosen, **changes), tuned.simulation
