"""Presets: functions that call another method, which their docstrings name."""

import inspect
import operator

import pytest

import fedjax_muon as fm
from fedjax_muon.algorithms.registry import base_of

METHODS = {**fm.algorithms.ALL, **fm.minimax.ALL, **fm.decentralized.ALL}


def test_a_preset_calls_the_method_that_its_docstring_names():
    functions = {method.function for method in METHODS.values()}
    presets = [function for function in functions if base_of(function)]
    assert len(presets) == 42
    for preset in presets:
        base = preset
        while base_of(base):  # a preset of a preset calls the method of both
            base = operator.attrgetter(base_of(base))(fm)
            assert base in functions
        assert f"return {base.__name__}(" in inspect.getsource(preset), preset


def test_an_argument_that_a_preset_fixes_is_refused_in_one_line():
    said = r"^fedavg_adam got an unexpected keyword argument 'rule'; it takes lr$"
    with pytest.raises(TypeError, match=said):
        fm.fedavg_adam(rule=None)
