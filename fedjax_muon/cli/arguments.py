"""The command line as frozen dataclasses, which tyro turns into options with help."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import docstring_parser
import tyro
from tyro.conf import Positional

from fedjax_muon.algorithms import minimax
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
# methods of agents that minimize; the others are for the AUC
MINIMIZING = (
    *("dsgd", "dsgd_muon", "gradient_tracking", "gradient_tracking_muon", "demuon"),
    *("suda", "suda_muon", "suda_muon_extra", "suda_muon_gt"),
)


@dataclasses.dataclass(frozen=True)
class OneAlgorithm:
    """What the commands of one algorithm have in common."""

    algorithm: str = ""
    """Name of the algorithm (`fedjax-muon list` shows all), or your own as
    MODULE:FUNCTION."""
    hyper: Any = None  # options of the algorithm
    seed: int = 0
    """Seed of the partition, initial parameters, cohorts and batches."""
    config: Flat = CONFIG


@dataclasses.dataclass(frozen=True)
class Train(OneAlgorithm):
    """Train one algorithm."""

    output: Path | None = None
    """Run directory, new or empty. By default, a new one in runs/, named after the
    time."""
    log: Names = ()
    """Trackers that get the metrics in addition to metrics.csv: tensorboard, wandb,
    trackio."""
    compile_for: str | None = None
    """Compile one round for a TPU topology, such as v5e:4x4, and print its memory and
    communication instead of training. No TPU is needed."""
    tune: bool = False
    """Time all plans first and use the fastest. Always on for accelerators, unless you
    name a plan."""
    launch: FlatLaunch = ALONE


@dataclasses.dataclass(frozen=True)
class Compare:
    """Train several algorithms on several seeds; show a table and draw curves.

    Without arguments: three variants of FedMuon, FedAvg, FedAvg(Adam), SCAFFOLD and
    Local Muon on handwritten digits, divided among 16 clients by Dirichlet(0.1).
    With `--problem auc`: all minimax methods on breast cancer cells, one in ten of them
    malignant, divided among 8 clients. With private decentralized methods and, for
    example, `--epsilon 1 4`: the test AUC at each epsilon, and what each guarantee
    covers.
    """

    algorithms: Positional[tuple[str, ...]] = MAIN_JOB
    """Names of the algorithms (`fedjax-muon list` shows all). With --problem auc, all
    minimax methods by default."""
    seeds: Seeds = (0, 1, 2)
    """Seeds. Each one has its own partition, initial parameters, cohorts and
    batches."""
    lr: dict[str, float] = dataclasses.field(default_factory=dict)
    """Local learning rates by algorithm, as in `--lr fedavg 0.3 scaffold 0.1`. The
    other algorithms have rates tuned for the default data and model. With any other
    data or model, the best of four to eight rates is chosen first, by validation on
    two more seeds."""
    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Use the rates tuned for the default data and model, whatever the data and
    model."""
    lr_schedules: dict[str, Schedule] = dataclasses.field(default_factory=dict)
    """Learning rate schedules by algorithm, as in `--lr-schedules fedavg cosine`. They
    override --lr-schedule."""
    output: Path | None = None
    """Run directory, new or empty. By default, a new one in runs/, named after the
    time."""
    log: Names = ()
    """Trackers that get the metrics of each run in addition to metrics.csv:
    tensorboard, wandb, trackio."""
    config: Flat = CONFIG


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Train algorithms on grids of hyperparameters and seeds; report the best of each.

    Hyperparameters are chosen on validation examples and reported with their test
    accuracy. All cells of an algorithm's grid are one compiled program. STEM, FAFED and
    FedSGDA-M are not defined for partial participation, so they run with all clients.
    """

    algorithms: Names = ("all",)
    """Names of the algorithms (`fedjax-muon list` shows all), or all."""
    grid: tuple[str, ...] = ("paper",)
    """Each algorithm's published grid (paper); or values for all algorithms, as in
    `--grid lr=0.01,0.1 align=0.5`; or values for one of them, as in `--grid paper
    fedavg.lr=0.01,0.1`."""
    seeds: Seeds = (42, 43, 44, 45, 46)
    """Seeds. Each one has its own partition, initial parameters, cohorts and
    batches."""
    validation: float = 0.1
    """Share of the training examples that is held out for validation."""
    cells_at_once: int | None = None
    """Number of grid cells in one program. By default, as many as should fit in half of
    the memory."""
    part: str = "1/1"
    """Which part of the cells to train, as 3/8 in the third of eight jobs with one
    --output. When all are finished, `resume` makes the tables."""
    output: Path | None = None
    """Run directory, new or empty. By default, a new one in runs/, named after the
    time."""
    config: Flat = CONFIG


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfDirectory:
    """What commands have in common that compute with what a directory names."""

    algorithm: Names = ()
    """Your own algorithms of this directory, MODULE:FUNCTION, that you trust to be
    imported."""
    model: Names = ()
    """Your own model of this directory, MODULE:FUNCTION, that you trust to be
    imported."""
    partition: Names = ()
    """Your own partition of this directory, MODULE:FUNCTION, that you trust to be
    imported."""

    @property
    def named(self) -> tuple[str, ...]:
        """All code that may be imported."""
        return (*self.algorithm, *self.model, *self.partition)


@dataclasses.dataclass(frozen=True)
class Resume(OfDirectory):
    """Resume an interrupted run, comparison or sweep, or train it for more rounds."""

    directory: Positional[Path]
    """The run directory."""
    rounds: int | None = None
    """New total number of rounds of a run or a comparison, to train it further. By
    default, the number it was started with."""
    grid: tuple[str, ...] = ()
    """Larger grids of a sweep, as in `sweep`. Only new points are trained."""
    part: str = "1/1"
    """Which part of the cells of a sweep to train, as in `sweep`."""
    log: Names | None = None
    """Trackers of a run or a comparison, as in `train`. By default, the ones it was
    started with; none turns them off."""
    launch: FlatLaunch = ALONE


@dataclasses.dataclass(frozen=True)
class List:
    """Show every algorithm with its options, every dataset and every model.

    Of datasets it says what comes with the package, what is in the data directory, and
    where to get the others.
    """

    data_dir: Path | None = None
    """Directory with the files of datasets. By default, FEDJAX_MUON_DATA."""


@dataclasses.dataclass(frozen=True)
class Plot:
    """Plot several runs and comparisons in one figure, from their metrics.csv."""

    directories: Positional[tuple[Path, ...]]
    """Run directories."""
    output: Path = Path("curves.png")
    """File of the figure. Its suffix (png, pdf, svg) sets the format."""


@dataclasses.dataclass(frozen=True)
class Export(OfDirectory):
    """Write the parameters of a run to a file for other programs.

    Takes the newest checkpoint. The file also has the names of the model and of the
    classes, and the standardization of the inputs.
    """

    directory: Positional[Path]
    """Directory of a run, or of one run in a comparison."""
    path: Positional[Path]
    """File to write: FILE.safetensors."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Replace the file if it exists."""


@dataclasses.dataclass(frozen=True)
class Partition:
    """Divide a dataset among clients, and show which labels each one gets."""

    output: Path = Path("partition.png")
    """File of the figure. Its suffix (png, pdf, svg) sets the format."""
    seed: int = 0
    """Seed of the partition, as in `train`."""
    config: Flat = CONFIG


@dataclasses.dataclass(frozen=True)
class Prepare:
    """Download and convert a dataset from tensorflow-datasets, once.

    Needs TensorFlow (the extra `prepare`).
    """

    name: Positional[str]
    """Name of the dataset in the catalog of tensorflow-datasets."""
    data_dir: Path | None = None
    """Where to put the dataset. By default, the environment variable
    FEDJAX_MUON_DATA."""


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
    names = _named(arguments)
    agents = names & OF_AGENTS.keys()
    minimized = agents <= set(MINIMIZING)
    usual = "auc" if agents and not minimized else "classification"
    problem = value_in(arguments, "--problem", usual)
    if not agents or agents != names & METHODS.keys() or problem not in DEFAULTS:
        return problem
    return "agents" if problem == "auc" else "minimizing_agents"


def _named(arguments: Sequence[str]) -> set[str]:
    """The words that may name algorithms: values of --algorithm and --algorithms, and
    words that no option takes."""
    kinds = (Config, Train, Compare, Sweep)
    flags = {
        f"--{prefix}{field.name.replace('_', '-')}"
        for kind in kinds
        for field in dataclasses.fields(kind)
        for prefix in ("", "no-")
        if isinstance(field.default, bool)
    }
    named = {value_in(arguments, "--algorithm", "")}
    named |= set(value_in(arguments, "--algorithms", "").split(","))  # of sweep
    for before, word in zip(["", *arguments], arguments, strict=False):
        taken = before.startswith("--") and "=" not in before and before not in flags
        if not (taken or word.startswith("-")):
            named |= set(word.split(","))
    return named


def algorithm_in(arguments: list[str]) -> str:
    """The algorithm of train, which decides what other options there are."""
    problem = value_in(arguments, "--problem", "classification")
    usual = "fed_nsgda_m" if problem == "auc" else "fedmuon"
    return (
        value_in(arguments, "--algorithm", usual)
        if arguments[:1] == ["train"]
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
            f"Train one algorithm. These are the options of {method.label} "
            f"({method.paper}).\n\n"
            "To see the options of another algorithm, name it with --algorithm."
        )
    return dataclasses.make_dataclass(
        kind.__name__, fields, bases=(kind,), frozen=True, namespace={"__doc__": doc}
    )
