"""The command `report`."""

import warnings

from fedjax_muon.cli.arguments import Report
from fedjax_muon.runs.errors import refusing
from fedjax_muon.runs.report import save_report


def command(args: Report) -> None:
    """`fedjax-muon report`."""
    with refusing():
        missing = save_report(args.directories, args.output, overwrite=args.overwrite)
    for words in missing:
        warnings.warn(words, stacklevel=2)
    print(args.output)
