"""The commands, and how one of them is run."""

import difflib
import importlib
import shutil
import sys
import textwrap
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import fedjax_muon
from fedjax_muon.cli import errors

USAGE = """\
usage: fedjax-muon COMMAND METHODS... [--option value]

  fedjax-muon train fedmuon --lr 0.03 --alpha 0.5
  fedjax-muon compare fedavg:lr=0.3 fedmuon:lr=0.03 --seeds 0,1,2
  fedjax-muon sweep fedavg fedmuon --lr 0.01,0.03,0.1
  fedjax-muon train my_code:fedfoo --problem my_code:hospital --ward 3
"""


class Command(NamedTuple):
    """A function that runs a command, and what it does."""

    module: str  # imported when the command runs: help needs none of them
    function: str
    about: str


COMMANDS = {
    "train": Command(
        "commands",
        "train",
        "Train one method. Options: fedjax-muon train METHOD --help",
    ),
    "compare": Command(
        "commands",
        "compare",
        "Train several methods on several seeds; show a table and draw curves.",
    ),
    "sweep": Command(
        "commands",
        "sweep",
        "Train methods on grids, such as --lr 0.01,0.03; report the best of each.",
    ),
    "resume": Command(
        "commands",
        "resume",
        "Continue what a command began: resume DIRECTORY [--rounds N] [--trust "
        "MODULE,...]. Further options replace those that it was started with.",
    ),
    "plot": Command(
        "others", "plot", "Draw curves: plot DIRECTORIES... [--output curves.png]"
    ),
    "list": Command(
        "others",
        "show",
        "Show every method, every dataset and other names. [--data-dir DIR]",
    ),
    "partition": Command(
        "others",
        "partition",
        "Show the labels of each client: partition [--alpha 0.5] [--seed 0] [--output "
        "partition.png], and the options of a problem.",
    ),
    "prepare": Command(
        "others",
        "prepare",
        "Download and convert a dataset of tensorflow-datasets: prepare NAME "
        "[--data-dir DIR]. Needs TensorFlow (the extra prepare).",
    ),
    "export": Command(
        "load",
        "export",
        "Write the parameters of a run: export DIRECTORY FILE.safetensors "
        "[--overwrite] [--trust MODULE,...]",
    ),
    "deploy": Command(
        "flower_app",
        "deploy",
        "Write a Flower app for real clients: deploy DIRECTORY METHOD, with the "
        "options of train.",
    ),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command of the command line.

    It ends in 0, in 2 for bad input, in 1 for another fault, or in 130 if interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    with errors.guarded(), warnings.catch_warnings():
        warnings.showwarning = errors.show_warning
        _main(words)


def _main(words: list[str]) -> None:
    if words == ["--version"]:
        print(f"fedjax-muon {fedjax_muon.__version__}")
        return
    is_help = bool({"-h", "--help"} & {*words})
    name, *rest = [word for word in words if word not in ("-h", "--help")] or [""]
    if not name:
        print(overview())
        return
    with errors.refusing():
        if name not in COMMANDS:
            near = difflib.get_close_matches(name, COMMANDS, 1, 0.5)
            known = f"there are {', '.join(COMMANDS)}"
            advice = f"did you mean {near[0]}?" if near else known
            raise ValueError(f"unknown command {name!r}; {advice}")
        if is_help:
            helping = importlib.import_module("fedjax_muon.cli.helping")
            print(f"fedjax-muon {name}: {COMMANDS[name].about}")
            print(helping.options_of(name, rest), end="")
            return
    from fedjax_muon.startup import cache_programs

    cache_programs()
    module, function, _ = COMMANDS[name]
    getattr(importlib.import_module(f"fedjax_muon.cli.{module}"), function)(rest)


def overview() -> str:
    """What there is, for those who ask for nothing."""
    width = min(100, max(60, shutil.get_terminal_size().columns))
    lines = [USAGE]
    for name, command in COMMANDS.items():
        indent = " " * 13
        text = textwrap.fill(
            command.about, width, initial_indent=indent, subsequent_indent=indent
        )
        lines.append(f"  {name:10}{text[12:]}")
    return "\n".join([*lines, "", "--version prints the version."])


if __name__ == "__main__":
    main()
