"""What `fedjax-muon train --compile-for` prints, instead of training."""

from rich.console import Console
from rich.table import Table

from fedjax_muon.engine.plans import Plan
from fedjax_muon.simulation.ahead_of_time import Compiled, compile_for
from fedjax_muon.simulation.simulation import Simulation


def show(simulation: Simulation, topology: str, plan: Plan | None) -> None:
    """Compiles a round for a topology, and prints what its compiler says.

    Args:
      topology: Chips, such as "v5e:4x4".
      plan: Execution plan; by default, that of accelerators.
    """
    try:
        compiled = compile_for(simulation, topology, plan=plan)
    except ImportError as error:
        raise ValueError(str(error)) from error
    Console().print(table(compiled))


def table(compiled: Compiled) -> Table:
    """Makes a table of a compiled round.

    Args:
      compiled: From `compile_for`.

    Returns:
      The table, for rich.
    """
    chips = f"{compiled.devices} chip{'s' * (compiled.devices > 1)}"
    title = f"a round on {compiled.topology}, {chips}"
    found = Table(title=title, show_header=False)
    memory, chip = compiled.memory, compiled.chip
    verdict = "fits" if compiled.fits else "does not fit"
    found.add_row(
        "memory of a chip",
        f"{_size(memory.total)} of {_size(chip.memory)}: {verdict}",
    )
    for name, value in memory._asdict().items():
        found.add_row(f"  {name}", _size(value))
    flops, nbytes = compiled.products
    found.add_row(
        "products on a chip",
        f"{flops:.3g} operations, {_size(nbytes)}: at least "
        f"{compiled.least_seconds:.2g} s",
    )
    for one in compiled.collectives:
        inner = f", {one.in_loops} in its loops" if one.in_loops else ""
        found.add_row(
            one.kind, f"{one.operations}, {_size(one.nbytes)} on a chip{inner}"
        )
    if not compiled.collectives:
        found.add_row("communication", "none")
    found.add_row("compilation", f"{compiled.seconds:.1f} s")
    return found


def _size(nbytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes / 1e3:.3g} kB"
