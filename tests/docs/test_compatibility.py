"""The table of what goes together is what happens: every pair is tried for a round."""

import itertools
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.data import Dataset
from fedjax_muon.deploy import Node, federation, in_process, serve
from fedjax_muon.wrappers.compression import compress
from tests.deploy.small_federation import adding

pytestmark = pytest.mark.slow

PAGE = Path("docs/compatibility.md")
CLIENTS, CLASSES = 40, 3
RNG = np.random.default_rng(0)
X = RNG.standard_normal((8 * CLIENTS, 5)).astype(np.float32)
Y = (np.arange(8 * CLIENTS) % CLASSES).astype(np.int32)
DATA = Dataset(X, Y, X[:6], Y[:6], tuple("abc"))
PARTS = np.split(np.arange(8 * CLIENTS), CLIENTS)
TASK = fm.tasks.classification(fm.models.MLP(CLASSES, (4,)), DATA)
PRIVATE = fm.privacy.ClientPrivacy(
    clip_norm=1.0, cohort=4, rounds=3, delta=0.01, noise_multiplier=1.0
)
WRAPPERS = {  # from the inside
    "personalization": lambda method: fm.keep_own(method, ["head"]),
    "compression": lambda method: compress(method, fm.quantize(8)),
    "robust aggregation": lambda method: fm.robust(method, fm.aggregators.median()),
    "secure sums": fm.secure_sums,
}
SETTINGS = {
    "asynchronous rounds": {"cohort": fm.buffered(4, 2)},
    "privacy of clients": {"privacy": PRIVATE},
    "several devices": {"devices": jax.devices()[:2]},
}
FEATURES = (*WRAPPERS, *SETTINGS, "real clients")


def tried(*features):
    """Runs a round; raises `ValueError` for what does not go together."""
    method = fm.fedavg(0.1)
    for name, wrap in WRAPPERS.items():
        method = wrap(method) if name in features else method
    how = {"cohort": 4, "local_steps": 1, "batch_size": 4}
    for name, settings in SETTINGS.items():
        how |= settings if name in features else {}
    if "privacy of clients" in features and "asynchronous rounds" not in features:
        del how["cohort"]
    if "real clients" not in features:
        simulation = fm.federate(method, TASK, DATA, PARTS, **how)
        simulation.train_round(simulation.init(jax.random.key(0)))
        return
    if "devices" in how:
        raise ValueError("every real client has devices of its own")
    sizes = {"num_clients": CLIENTS, "max_client_size": 8, "classes": CLASSES}
    shared = federation(method, TASK, **sizes, **how)
    nodes = {i: Node(shared, i, X[part], Y[part]) for i, part in enumerate(PARTS)}
    send = adding(nodes) if "secure sums" in features else in_process(nodes)
    serve(shared, send, jax.random.key(0), rounds=1)


def table():
    """The cells of the page, by their two features."""
    lines = PAGE.read_text().split("\n\n| | ")[1].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head, _, *body = rows
    assert tuple(head[:-1] if not head[-1] else head) == FEATURES
    assert tuple(row[0] for row in body) == FEATURES
    return {
        (row[0], name): cell
        for row in body
        for name, cell in zip(FEATURES, row[1:], strict=True)
    }


PAIRS = [*itertools.combinations(FEATURES, 2)]


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_the_page_says_what_goes_together(pair):
    cells = table()
    assert cells[pair] == cells[pair[::-1]]
    if cells[pair] == "yes":
        tried(*pair)
    else:
        with pytest.raises(ValueError, match=r"\w"):
            tried(*pair)
