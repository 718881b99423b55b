"""The commands `report` and `export`."""

import warnings

from fedjax_muon.cli.arguments import Export, Report
from fedjax_muon.runs import directory, launch
from fedjax_muon.runs.errors import refusing


def report(args: Report) -> None:
    """`fedjax-muon report`."""
    from fedjax_muon.runs.report import save_report

    with refusing():
        missing = save_report(args.directories, args.output, overwrite=args.overwrite)
    for words in missing:
        warnings.warn(words, stacklevel=2)
    print(args.output)


def export(args: Export) -> None:
    """`fedjax-muon export`."""
    from fedjax_muon.runs import export as exports
    from fedjax_muon.runs.load import load_run

    with refusing():
        run = load_run(args.directory)
        directory.check_own_code(args.directory, run.run, args.named)
        launch.begin(launch.Launch(), run.config.devices)
        run = exports.export(args.directory, args.path, overwrite=args.overwrite)
    print(f"the parameters of round {run.state.round} are in {args.path}")
