"""The command `export`."""

from fedjax_muon.cli.arguments import Export
from fedjax_muon.runs import launch
from fedjax_muon.runs.errors import refusing
from fedjax_muon.runs.export import export
from fedjax_muon.runs.load import load_run


def command(args: Export) -> None:
    """`fedjax-muon export`."""
    with refusing():
        launch.begin(launch.Launch(), load_run(args.directory).config.devices)
        run = export(args.directory, args.path, overwrite=args.overwrite)
    print(f"the parameters of round {run.state.round} are in {args.path}")
