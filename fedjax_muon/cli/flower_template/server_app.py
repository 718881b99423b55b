"""The server: it runs the rounds, and writes metrics.csv."""

from pathlib import Path

from flwr.serverapp import ServerApp

from fedjax_muon.cli import flower_app
from fedjax_muon.startup import cache_programs

app = ServerApp()
cache_programs()


@app.main()
def main(grid, context):
    flower_app.train(grid, context.run_config, Path(__file__).parent)
