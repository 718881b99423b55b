"""Runs a command."""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence

import fedjax_muon
from fedjax_muon.runs import errors


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command of the command line.

    It ends in 0, in 2 for bad input, in 1 for another fault, or in 130 if interrupted.
    """
    argv = (sys.argv[1:] if argv is None else argv) or ["--help"]
    with errors.guarded(), warnings.catch_warnings():
        warnings.showwarning = errors.show_warning
        _main(argv)


def _main(argv: Sequence[str]) -> None:
    if [*argv] == ["--version"]:
        print(f"fedjax-muon {fedjax_muon.__version__}")
        return
    # imported here, so that whatever they raise ends in one line too
    from fedjax_muon.shell import commands, flower_app, helping, load, others
    from fedjax_muon.shell.names import near
    from fedjax_muon.startup import cache_programs

    known: Mapping[str, Callable[[Sequence[str]], None]] = {
        **commands.COMMANDS,
        "resume": commands.resume,
        "plot": others.plot,
        "list": others.show,
        "partition": others.partition,
        "prepare": others.prepare,
        "export": load.export,
        "deploy": flower_app.deploy,
    }
    name, *rest = argv
    with errors.refusing():
        if name not in known and name not in ("-h", "--help"):
            advice = near(name, known) or f"there are {', '.join(known)}"
            raise ValueError(f"unknown command {name!r}; {advice}")
        if {"-h", "--help"} & {*argv}:
            print(helping.help_of(argv))
            return
    cache_programs()
    known[name](rest)


if __name__ == "__main__":
    main()
