"""Presets: rows of a registry whose functions are generated."""

import inspect

import optax
import pytest
from oracles.cases import PARTIAL, X
from traces import farthest, path

from fedjax_muon import algorithms, decentralized, minimax
from fedjax_muon.algorithms.registry import FromOptions, Source, preset
from fedjax_muon.core import Algorithm, Hyper, Number, numbers_of

METHODS = {**algorithms.ALL, **minimax.ALL, **decentralized.ALL}


def _rule(momentum: Number, lr: Number) -> optax.GradientTransformation:
    return optax.chain(optax.trace(momentum), optax.scale(lr))


ROW = preset(
    "own",
    "Own",
    "a paper",
    Source.TEXT,
    base=algorithms.fedavg,
    sentence="Two rates.",
    options={"server_lr": 0.5, "momentum": 0.9, "lr": 2.0},
    changes={"rule": FromOptions(_rule), "lr": 0.05},
)


TEXT = """Own: Two rates.

The same as `fm.fedavg(rule=rule(momentum, lr), lr=0.05)`.

Source: a paper. Checked against the paper's text.

Args:
  server_lr: Server learning rate: 1 is plain averaging; 0.001 to 0.1 if
    `server_rule` normalizes the step.
  lr: Local learning rate: 0.01 to 1 for SGD, 0.001 to 0.01 if `rule` is Adam, and
    0.01 to 0.1 if it is Muon.

See also: `fedavg`."""


def test_a_preset_is_its_base_with_other_arguments():
    """An option of a function that makes an argument hides that of the base."""
    found = path(ROW.function(0.7, lr=3.0), X, PARTIAL)
    rule = _rule(0.9, 3.0)
    want = path(algorithms.fedavg(lr=0.05, server_lr=0.7, rule=rule), X, PARTIAL)
    assert farthest(found, want) == 0
    assert numbers_of(ROW.function()) == {"server_lr": 0.5, "momentum": 0.9, "lr": 2.0}


def test_the_function_of_a_preset_says_what_it_takes():
    assert (ROW.name, ROW.function.__name__) == ("own", "own")
    shown = inspect.signature(ROW.function)
    kinds = {name: p.annotation for name, p in shown.parameters.items()}
    assert kinds == {"server_lr": Hyper, "momentum": Number, "lr": Number}
    assert shown.return_annotation is Algorithm
    assert inspect.getdoc(ROW.function) == TEXT
    said = r"^own got an unexpected keyword argument 'rule'; it takes server_lr, mom"
    with pytest.raises(TypeError, match=said):
        ROW.function(rule=optax.identity())


def test_every_preset_fixes_arguments_of_its_base():
    for name, method in METHODS.items():
        if method.preset is not None:
            known = inspect.signature(method.preset.base).parameters.keys()
            given = method.preset.arguments(method.preset.options).keys()
            assert given <= known, name
            assert method.preset.base in {m.function for m in METHODS.values()}, name
