"""The command line as frozen dataclasses, which tyro turns into options with help."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import docstring_parser
import tyro
from tyro.conf import Positional

from fedjax_muon import minimax
from fedjax_muon.algorithms.registry import Method
from fedjax_muon.runs.config import (
    DEFAULTS,
    METHODS,
    OF_AGENTS,
    Config,
    Schedule,
    hyper_parameters,
    method_of,
)
from fedjax_muon.runs.launch import Launch
from fedjax_muon.runs.lists import Names, Seeds

Value = TypeVar("Value")
MAIN_JOB = (
    "fedavg",
    "fedavg_adam",
    "scaffold",
    "local_muon",
    "fedmuon",
    "fedmuon_align",
    "fedmuon_correct",
)
Flat = Annotated[Config, tyro.conf.arg(name="")]
CONFIG = DEFAULTS["classification"]
ALONE = Launch()
FlatLaunch = Annotated[Launch, tyro.conf.arg(name="")]
ConfigFile = Annotated[
    Path | None,
    tyro.conf.arg(
        name="config",
        help="File of options in YAML, JSON or TOML, or the directory of a run to "
        "repeat; arguments come before it.",
    ),
]
# methods of agents that minimize; the others are for the AUC
MINIMIZING = ("dsgd", "dsgd_muon", "gradient_tracking", "gradient_tracking_muon")


@dataclasses.dataclass(frozen=True)
class OneAlgorithm:
    """What the commands of one algorithm have in common."""

    config_file: ConfigFile = None
    algorithm: str = ""
    """Name of the algorithm; `fedjax-muon list` shows all. Your own one is
    MODULE:FUNCTION."""
    hyper: Any = None  # options of the algorithm
    seed: int = 0
    """Seed of partition, initial parameters, cohorts and batches."""
    config: Flat = CONFIG


@dataclasses.dataclass(frozen=True)
class Train(OneAlgorithm):
    """Train one algorithm."""

    output: Path | None = None
    """Run directory, new or empty; by default one in runs/, named after the time."""
    log: Names = ()
    """Where metrics go besides metrics.csv: json, tensorboard, wandb, trackio,
    mlflow."""
    compile_for: str | None = None
    """Compile a round for TPUs, such as v5e:4x4, which need not exist, and print its
    memory and communication instead of training."""
    tune: bool = False
    """Measure all plans first, and take the fastest; always on accelerators, unless a
    plan is given."""
    launch: FlatLaunch = ALONE


@dataclasses.dataclass(frozen=True)
class Deploy(OneAlgorithm):
    """Train on real clients, as a Flower app with the options of `train`.

    Writes the app to a directory, which `flwr run` executes. With --local N, the app
    runs at once on N SuperNodes of this machine, whose clients have the examples of
    `train`.
    """

    directory: Positional[Path] = Path("flower-app")
    """The app's directory: new, empty, or that of the same options, to go on."""
    local: int | None = None
    """Number of SuperNodes, in processes of this machine."""
    deadline: float = 600.0
    """Seconds to wait for answers; the rest are left out."""
    patience: float = 60.0
    """Seconds that a client without a SuperNode is waited for."""
    largest_client: int | None = None
    """Most examples of a client; by default, of the clients of `train`."""


@dataclasses.dataclass(frozen=True)
class Compare:
    """Train several algorithms on several seeds; a table, curves, and a directory.

    Without arguments: the three FedMuons beside FedAvg, FedAvg(Adam), SCAFFOLD and
    Local Muon on handwritten digits, divided over 16 clients by Dirichlet(0.1). With
    `--problem auc`: all minimax methods on breast cancer cells, of which one in ten is
    malignant, divided over 8 clients. With private methods of agents and `--epsilon
    1 4`: the test AUC at each epsilon, and what is promised to whom.
    """

    algorithms: Positional[tuple[str, ...]] = MAIN_JOB
    """Names of the algorithms; `fedjax-muon list` shows all. All minimax methods with
    --problem auc."""
    seeds: Seeds = (0, 1, 2)
    """Each seed has its own partition, initial parameters, cohorts and batches."""
    lr: dict[str, float] = dataclasses.field(default_factory=dict)
    """Local learning rates, as `--lr fedavg 0.3 scaffold 0.1`. The others were tuned
    for the default data and model; for other ones, the best of four is chosen first,
    by validation on one more seed."""
    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Take the rates of the default data and model for other ones too."""
    lr_schedules: dict[str, Schedule] = dataclasses.field(default_factory=dict)
    """Their schedules, as `--lr-schedules fedavg cosine`, which take precedence over
    the schedule of all."""
    output: Path | None = None
    """Run directory, new or empty; by default one in runs/, named after the time."""
    log: Names = ()
    """Where metrics go besides metrics.csv: json, tensorboard, wandb, trackio, mlflow;
    each run has its own."""
    config_file: ConfigFile = None
    config: Flat = CONFIG


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Train algorithms on grids of hyper-parameters and seeds; report each one's best.

    The hyper-parameters of an algorithm that are best on validation examples are
    reported with their test accuracy. All cells of an algorithm's grid are one compiled
    program. STEM, FAFED and FedSGDA-M, which are not defined for some of the clients,
    run with all of them.
    """

    algorithms: Names = ("all",)
    """Names of the algorithms, or all; `fedjax-muon list` shows all."""
    grid: tuple[str, ...] = ("paper",)
    """Each algorithm's published grid (paper), values for all, as
    `--grid lr=0.01,0.1 align=0.5`, or for one, as `--grid paper fedavg.lr=0.01,0.1`."""
    seeds: Seeds = (42, 43, 44, 45, 46)
    """Each seed has its own partition, initial parameters, cohorts and batches."""
    validation: float = 0.1
    """Share of the training examples that no client has."""
    cells_at_once: int | None = None
    """Cells of a grid in one program; by default what should fit in half the memory,
    and one with an executor."""
    executor: str | None = None
    """Where groups of cells run: processes:N, dask:ADDRESS, slurm or
    slurm:OPTION=VALUE,...; by default in this process."""
    output: Path | None = None
    """Run directory, new or empty; by default one in runs/, named after the time."""
    config_file: ConfigFile = None
    config: Flat = CONFIG


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfDirectory:
    """What commands have in common that compute with what a directory names."""

    algorithm: Names = ()
    """Own algorithms of the directory, MODULE:FUNCTION, that you trust."""
    model: Names = ()
    """Own model of the directory, MODULE:FUNCTION, that you trust."""
    partition: Names = ()
    """Own partition of the directory, MODULE:FUNCTION, that you trust."""

    @property
    def named(self) -> tuple[str, ...]:
        """All code that may be imported."""
        return (*self.algorithm, *self.model, *self.partition)


@dataclasses.dataclass(frozen=True)
class Resume(OfDirectory):
    """Continue what was interrupted, in its directory; or for more rounds."""

    directory: Positional[Path]
    """The run directory."""
    rounds: int | None = None
    """Rounds of a run or a comparison in all, more than it has done; by default as
    many as it was made for."""
    executor: str | None = None
    """Where groups of cells of a sweep run, as for sweep."""
    log: Names | None = None
    """Trackers of a run or a comparison, as for train; by default those that it had;
    none leaves them out."""
    launch: FlatLaunch = ALONE


@dataclasses.dataclass(frozen=True)
class List:
    """Show every algorithm with its options, every dataset and every model."""


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw runs and comparisons together, from their metrics.csv alone."""

    directories: Positional[tuple[Path, ...]]
    """Run directories."""
    output: Path = Path("curves.png")
    """The figure's file; its suffix (png, pdf, svg) is its format."""


@dataclasses.dataclass(frozen=True)
class Export(OfDirectory):
    """Write the parameters of a run into a file for other programs.

    They are those of the newest checkpoint, with the names of the model and the
    classes, and the standardization of inputs.
    """

    directory: Positional[Path]
    """Directory of a run, or of one run in a comparison."""
    path: Positional[Path]
    """FILE.safetensors or FILE.msgpack (of Flax)."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace existing parameters."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Write an interactive report of runs, one HTML file that needs no network."""

    directories: Positional[tuple[Path, ...]]
    """Directories of runs, comparisons and sweeps."""
    output: Path = Path("report.html")
    """The file."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace an existing file."""


@dataclasses.dataclass(frozen=True)
class Partition:
    """Divide a dataset over clients, and show who gets which labels."""

    output: Path = Path("partition.png")
    """The figure's file; its suffix (png, pdf, svg) is its format."""
    seed: int = 0
    """Seed of the partition, as in train."""
    config: Flat = CONFIG


@dataclasses.dataclass(frozen=True)
class Noise(OfDirectory):
    """Measure the tail of the gradient noise at the end of a run, by Hill's estimator.

    Draws the distribution of the norms of what batches' gradients are off by. Below
    a tail index of 2 their variance is infinite, as normalised and clipped methods
    allow.
    """

    directory: Positional[Path]
    """Directory of a run, or of one run in a comparison."""
    batches: int = 256
    """How many of every client."""
    tail: float = 0.05
    """Share of all norms, the largest, that count as the tail."""
    seed: int = 0
    """Seed of the batches."""
    output: Path = Path("noise.png")
    """The figure's file; its suffix (png, pdf, svg) is its format."""


@dataclasses.dataclass(frozen=True)
class Data:
    """Show which datasets are there, where they are read from, how to get the others.

    With a name, one of them in detail: its files, whether they are as published, and
    what is read from them.
    """

    name: Positional[str] = ""
    """Name of a dataset, as for train; without one, all are shown."""
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show all, as without a name."""
    data_dir: Path | None = None
    """Where files are; by default the environment variable FEDJAX_MUON_DATA."""


@dataclasses.dataclass(frozen=True)
class Prepare:
    """Download a set of tensorflow-datasets and convert it, once.

    Needs TensorFlow, the extra `prepare`.
    """

    name: Positional[str]
    """Name of the set, as in tensorflow-datasets' catalogue."""
    data_dir: Path | None = None
    """Where to put it; by default the environment variable FEDJAX_MUON_DATA."""


def value_in(arguments: Sequence[str], option: str, default: Value) -> str | Value:
    """What follows an option, before the arguments are parsed."""
    for i, word in enumerate(arguments):
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
        if word == option and i + 1 < len(arguments):
            return arguments[i + 1]
    return default


def job_in(arguments: Sequence[str]) -> str:
    """The job whose values are the defaults of the other options: that of --problem, or
    of the methods that are named, if all are of agents."""
    names = {part for word in arguments for part in re.split("[,=]", word)}
    agents = names & OF_AGENTS.keys()
    minimized = agents <= set(MINIMIZING)
    usual = "auc" if agents and not minimized else "classification"
    problem = value_in(arguments, "--problem", usual)
    if not agents or agents != names & METHODS.keys() or problem not in DEFAULTS:
        return problem
    return "agents" if problem == "auc" else "minimizing_agents"


def algorithm_in(arguments: list[str]) -> str:
    """The algorithm of train or deploy, which decides what other options there are."""
    problem = value_in(arguments, "--problem", "classification")
    usual = "fed_nsgda_m" if problem == "auc" else "fedmuon_align"
    return (
        value_in(arguments, "--algorithm", usual)
        if arguments[:1] in (["train"], ["deploy"])
        else usual
    )


def defaults(kind: type, job: str) -> dict[str, Any]:
    """The default instance of a command, if a job has its own."""
    if job not in DEFAULTS or "config" not in getattr(kind, "__dataclass_fields__", ()):
        return {}
    changes: dict[str, Any] = {"config": DEFAULTS[job]}
    if kind is Compare and job == "auc":
        changes["algorithms"] = tuple(minimax.ALL)
    return {"default": kind(**changes)}


# ------------------------------------------------- commands that train one algorithm
def _help(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring of a function says of its arguments."""
    text = docstring_parser.parse(inspect.getdoc(function) or "")
    return {p.arg_name: p.description or "" for p in text.params}


def method_options(method: Method) -> type:
    """The plain options of a method as a dataclass, with its docstring's help."""
    help_of: dict[str, str] = {}
    # an argument that many methods share is described at the first one alone
    for each in (method, *METHODS.values()):
        bases = reversed(each.preset.functions) if each.preset else ()
        for function in (each.function, *bases):
            help_of = _help(function) | help_of
    fields: list[Any] = []
    for name, default in hyper_parameters(method).items():
        kind: Any = Annotated[type(default), tyro.conf.arg(help=help_of.get(name, ""))]
        fields.append((name, kind, dataclasses.field(default=default)))
    return dataclasses.make_dataclass("Options", fields, frozen=True)


def of_algorithm(kind: type[OneAlgorithm], name: str) -> type:
    """A command for one algorithm, whose own options it has under `--algorithm.`."""
    method = method_of(name)
    options: Any = method_options(method)
    nested: Any = Annotated[options, tyro.conf.arg(name="algorithm")]
    fields: list[Any] = [
        ("algorithm", str, dataclasses.field(default=name)),
        ("hyper", nested, dataclasses.field(default_factory=options)),
    ]
    doc = kind.__doc__
    if kind is Train:
        doc = (
            f"Train one algorithm, here {method.label} ({method.paper}).\n\n"
            "Name another one with --algorithm to see its options."
        )
    return dataclasses.make_dataclass(
        kind.__name__, fields, bases=(kind,), frozen=True, namespace={"__doc__": doc}
    )
