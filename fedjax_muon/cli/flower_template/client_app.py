"""A client: it trains on its own examples, which never leave it."""

from pathlib import Path

from fedjax_muon.cli import flower_app
from fedjax_muon.deploy.flower import client_app
from fedjax_muon.startup import cache_programs


def make_node(context):
    place = Path(__file__).parent
    return flower_app.node_of(context.node_config, context.run_config, place)


app = client_app(make_node)
cache_programs()  # Flower may start a process for every message
