"""The vectors are those that `make` writes, and the library conforms to all of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from conformance import check, make
from conformance.adapters.fedjax_muon import IMPLEMENTATIONS
from conformance.variants import alone, variant

VECTORS = Path(make.FOLDER)
NAMES = sorted(path.stem for path in VECTORS.glob("*.json"))
ROUNDED = {"muon_rank": 2e-5}  # tiny matrices feel the 1e-7 that guards the division
FAMILIES = make.families()


def spec(name):
    return json.loads((VECTORS / f"{name}.json").read_text())


def assert_same(made, kept):
    """The same up to rounding: float32 of sketches, float64 of all else."""
    assert type(made) is type(kept)
    if isinstance(made, dict) and "dtype" in made:
        assert made["dtype"] == kept["dtype"]
        atol = 1e-12 if made["dtype"] == "<f8" else 1e-5
        same = np.testing.assert_allclose
        same(check.arrays(made), check.arrays(kept), rtol=0, atol=atol)
    elif isinstance(made, dict):
        assert made.keys() == kept.keys()
        for key in made:
            assert_same(made[key], kept[key])
    elif isinstance(made, list):
        assert len(made) == len(kept)
        for a, b in zip(made, kept, strict=True):
            assert_same(a, b)
    else:
        assert made == kept


def as_json(value):
    return json.loads(json.dumps(value))


def test_every_file_is_made_and_no_other_is_there():
    assert [*make.specs()] == [*dict.fromkeys(make.specs())]
    assert {*make.specs()} == {*NAMES}
    sizes = [(VECTORS / f"{name}.json").stat().st_size for name in NAMES]
    assert max(sizes) < 150e3
    assert sum(sizes) < 8e6


@pytest.mark.parametrize("name", FAMILIES)
def test_references_and_single_departures_are_those_of_the_oracles(name):
    """Thus every departure still has its place in its oracle."""
    family, kept = FAMILIES[name](), spec(name)
    assert_same(as_json(make.head(family)), {k: kept[k] for k in make.head(family)})
    want = check.arrays(kept["reference"])
    np.testing.assert_allclose(variant(family, {}), want, rtol=0, atol=1e-12)
    axes, sketches = kept["axes"], check.arrays(kept["sketches"])
    for choice in alone(family):
        ((axis, word),) = choice.items()
        row = [axes[axis].index(word) if a == axis else 0 for a in axes]
        made = check.sketch(variant(family, choice), family.problem.shapes)
        found = sketches[:, kept["variants"].index(row)]
        np.testing.assert_allclose(made, found, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_variants_are_made_again(name):
    assert_same(as_json(make.specs()[name]()), spec(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_library_conforms(name):
    report = check.judge(spec(name), IMPLEMENTATIONS[name])
    assert report["conforms"], report
    assert report["error"] < ROUNDED.get(name, 1e-6)
