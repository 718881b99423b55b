"""The page of presets is current, and every number has a source."""

import dataclasses

import pytest

from experiments.papers import presets
from fedjax_muon import algorithms

pytestmark = pytest.mark.slow

ALL = [method for methods in presets.REGISTRIES.values() for method in methods.values()]


def test_the_page_is_current():
    assert presets.PAGE.read_text() == presets.page(), (
        "run python -m experiments.papers.presets"
    )


@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_every_number_has_a_source(method):
    origin = presets.sources()[method.name]
    for name in presets.options(method):
        assert len(origin[name]) > 3, name
    cells = presets.row(method, origin)
    assert f"| {' | '.join(cells)} |" in presets.PAGE.read_text()


def test_sources_are_of_presets():
    assert list(presets.sources()) == [method.name for method in ALL]


def test_a_number_without_a_source_is_an_error():
    method, origin = algorithms.ALL["fedprox"], presets.sources()["fedprox"]
    with pytest.raises(ValueError, match=r"fedprox: presets.toml lacks \['mu'\]"):
        presets.row(method, {k: v for k, v in origin.items() if k != "mu"})
    with pytest.raises(ValueError, match=r"has \['rho'\] too many"):
        presets.row(method, origin | {"rho": "nowhere"})
    without = dataclasses.replace(method, grid={})
    with pytest.raises(ValueError, match=r"has \[\] too many"):
        presets.row(without, {})
