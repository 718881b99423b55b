"""Every minimax method against its NumPy transcription, after every round.

Five unequal clients of which three take part (all where a method is defined so), four
local steps, five rounds; every setting of x differs from that of y.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_muon.algorithms import fedmuon
from fedjax_muon.algorithms.minimax import ALL
from fedjax_muon.core import after_first, tree
from fedjax_muon.core.pair import Pair, on_y
from fedjax_muon.linalg import newton_schulz as kernel
from tests.oracles.saddle_cases import FULL, FULL_ONLY, ORACLES, PARTIAL, START, flat
from tests.support.saddle import OBJECTIVE
from tests.support.traces import path

# what the oracles' settings are called here, as pairs; momentum is 1 - b or 1 - a
NAMES = {"lr_x": "lr", "server_lr_x": "server_lr", "rho": "pull", "beta": "follow"}
NAMES |= {"b_x": "momentum", "a_x": "momentum"}
GUIDED = ("fed_nsgda_m", "fedmuon_da", "fedsgda_clip")
POINT = Pair(START["x"], START["y"])


def hyper(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The oracle's settings as those of the library's method."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if key in NAMES:
            other = key.removesuffix("_x") + "_y"
            pair = Pair(value, settings[other]) if other in settings else value
            found[NAMES[key]] = pair
    if "momentum" in found:
        found["momentum"] = tree.map(lambda fresh: 1 - fresh, found["momentum"])
    if name in GUIDED:
        found["momentum"] = after_first(found["momentum"])
    if name == "fedmuon_da":
        found["polar"] = kernel.polar
    if name == "fess_gda":
        found = {"pull": 1.0, "follow": 0.5} | found
    return found


def as_history(points: list[Pair]):
    return flat([{"x": p.x, "y": p.y} for p in points])


def farthest(a, b) -> float:
    assert len(a) == len(b) > 0
    return max(
        float(np.max(np.abs(u[k] - v[k])))
        for u, v in zip(a, b, strict=True)
        for k in u.keys() | v.keys()
    )


def both_paths(name, settings, dtype, **changes):
    trace = FULL if name in FULL_ONLY else PARTIAL
    expected = flat(ORACLES[name][0](START, trace, **settings))
    algorithm = ALL[name].function(**hyper(name, settings) | changes)
    found = path(algorithm, POINT, trace, objective=OBJECTIVE, dtype=dtype)
    return as_history(found), expected


def test_every_method_has_an_oracle():
    assert ORACLES.keys() == ALL.keys()


SINGLE = [
    pytest.param(name, "float32", 1e-5, marks=pytest.mark.slow)
    for name in ("fedmuon_da", "fedsgda_m")
]


@pytest.mark.parametrize(
    ("name", "dtype", "bound"), [*((name, "float64", 1e-10) for name in ALL), *SINGLE]
)
def test_methods_equal_their_transcriptions(name, dtype, bound):
    settings = ORACLES[name][1]
    found, expected = both_paths(name, settings, jnp.dtype(dtype))
    assert farthest(found, expected) <= bound
    start = flat([START])[0]
    for key in start:
        moves = [np.max(np.abs(point[key] - start[key])) for point in expected]
        assert max(moves) > 5e-3, key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local_sgda", "fess_gda", "fed_nsgda_m"])
def test_schedules_may_differ_too(name):
    settings = dict(ORACLES[name][1])
    settings["lr_x"] = lambda r: 0.05 / (1 + r)
    settings["lr_y"] = lambda r: 0.15 / (2 + r)
    found, expected = both_paths(name, settings, jnp.dtype("float64"))
    assert farthest(found, expected) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDED)
def test_presets_as_they_are(name):
    """One value for both variables, the published clip and Newton-Schulz."""
    settings = {"lr_x": 0.03, "lr_y": 0.03, "b_x": 0.1, "b_y": 0.1}
    bound = 1e-10
    if name == "fedmuon_da":  # its polar factor is five Newton-Schulz steps
        settings |= {"lr_x": 0.003, "lr_y": 0.003}
        bound = 0.003 * 20 * 0.35  # singular values end within 0.35 of 1
    expected = flat(ORACLES[name][0](START, PARTIAL, **settings))
    algorithm = ALL[name].function(lr=settings["lr_x"])
    found = path(algorithm, POINT, PARTIAL, objective=OBJECTIVE)
    assert farthest(as_history(found), expected) <= bound


@pytest.mark.slow
def test_vectors_may_keep_their_lengths():
    """The form of fedmuon_da without normalized vectors."""
    settings = ORACLES["fedmuon_da"][1] | {"vector": lambda leaf: leaf}
    run = partial(both_paths, "fedmuon_da", settings, jnp.dtype("float64"))
    found, expected = run(normalize_vectors=False)
    assert farthest(found, expected) <= 1e-10
    bounded, _ = run()
    assert farthest(bounded, expected) > 1e-2


@pytest.mark.slow
def test_fess_gda_projects_y_after_every_move():
    box = lambda array: np.clip(array, -0.12, 0.12)
    settings = ORACLES["fess_gda"][1] | {"rho": 0.7, "beta": 0.4}
    start = {"x": START["x"], "y": {k: box(v) for k, v in START["y"].items()}}
    inside = lambda y: {k: box(v) for k, v in y.items()}
    oracle = ORACLES["fess_gda"][0](start, PARTIAL, **settings, project=inside)
    project = on_y(lambda array: jnp.clip(array, -0.12, 0.12))
    objective = OBJECTIVE._replace(project=project)
    algorithm = ALL["fess_gda"].function(**hyper("fess_gda", settings))
    point = Pair(start["x"], start["y"])
    found = path(algorithm, point, PARTIAL, objective=objective)
    assert farthest(as_history(found), flat(oracle)) <= 1e-10
    assert any(np.max(np.abs(p.y["v"])) == pytest.approx(0.12) for p in found)


@pytest.mark.slow
def test_local_sgdam_may_start_from_each_clients_own_gradient():
    settings = ORACLES["local_sgdam"][1]
    expected = ORACLES["local_sgdam"][0](START, PARTIAL, **settings, own_start=True)
    given = hyper("local_sgdam", settings)
    algorithm = fedmuon(**given, rule=optax.identity(), synced=False)
    found = path(algorithm, POINT, PARTIAL, objective=OBJECTIVE)
    assert farthest(as_history(found), flat(expected)) <= 1e-10
