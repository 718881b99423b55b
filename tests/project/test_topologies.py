"""Benchmarks of accelerators: their cases."""

import jax
import pytest

from benchmarks import topology_cases
from fedjax_muon import algorithms, decentralized, minimax
from fedjax_muon.algorithms.registry import base_of

pytestmark = pytest.mark.slow

CASES = [case for group in topology_cases.GROUPS.values() for case in group()]


def test_methods_with_own_code_are_compiled_for_one_chip_and_for_many():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    for topology in topology_cases.CHIP, topology_cases.POD:
        mine = [case for case in CASES if case.group == "methods"]
        found = {case.algorithm for case in mine if case.topology == topology}
        registries = algorithms.ALL | minimax.ALL | decentralized.ALL
        with_code = {n for n, row in registries.items() if not base_of(row.function)}
        assert found == with_code | {"dm_hsgd"}


@pytest.mark.parametrize("algorithm", ["fedmuon_da", "dm_hsgd", "gradient_tracking"])
def test_a_case_has_the_shapes_of_its_data(algorithm):
    case = next(case for case in CASES if case.algorithm == algorithm)
    dataset = topology_cases.dataset_of(case.setting)
    simulation = topology_cases.prepare(case)
    shape = (28, 28, 1) if algorithm == "gradient_tracking" else (123,)
    assert dataset.x_train.shape[1:] == shape
    with_arrays = topology_cases.with_data(case, dataset)
    form = lambda one: jax.tree.map(lambda x: (x.shape, x.dtype), one.clients)
    assert form(simulation) == form(with_arrays)
    assert simulation.clients.max_size == with_arrays.clients.max_size
    assert isinstance(simulation.clients.x, jax.ShapeDtypeStruct)
