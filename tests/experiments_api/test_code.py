"""Digests of the code of users' functions, by which runs are known."""

import functools
import types
from functools import partial

import flax.linen as nn
import jax
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon import tasks
from fedjax_muon.core.recipe import in_words
from fedjax_muon.experiments.identity import code_of
from fedjax_muon.tasks import as_partial

TEMPLATE = """
import numpy as np
import flax.linen as nn
import jax
from fedjax_muon.core import recorded
from fedjax_muon import fedavg

SCALE = 2.0
TABLE = np.arange(3)
CACHE = {}

def helper(x):
    return 3 * x

def plain(x):
    return helper(x) * SCALE + TABLE[0]

def maker(x):
    def inner(y):
        return x + y
    return inner

def with_default(x, factor=4):
    return x * factor

class Net(nn.Module):
    width: int = 2
    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.width)(x) + 5

@recorded
def fedfoo(lr=0.1):
    return fedavg(lr=lr + 0.0)
"""


def module(text):
    made = types.ModuleType("mine")
    exec(compile(text, "/home/user/mine.py", "exec"), vars(made))
    made.__file__ = "/home/user/mine.py"
    return made


VALUES = {
    "a function": lambda m: m.plain,
    "a clock of a cohort": lambda m: fm.timed(8, m.plain),
    "a rule for stale messages": lambda m: fm.buffered(9, 3, staleness=m.plain),
    "a partial": lambda m: {"divide": [functools.partial(m.plain, 1)]},
    "a closure": lambda m: m.maker(1),
    "a default": lambda m: m.with_default,
    "a model": lambda m: m.Net(),
    "an algorithm": lambda m: m.fedfoo(),
    "one inside": lambda m: fm.compress(m.fedfoo(), fm.top_k(0.1)),
    "a loss": lambda m: tasks.from_logits(m.helper, as_partial(m.plain)),
    "an attribute": lambda m: reads(m),
}


def reads(mine):
    text = "def read(x):\n    return mine.helper(x)"
    found = {"mine": mine, "__name__": "other"}
    exec(compile(text, "/home/user/other.py", "exec"), found)
    return found["read"]


OF_COHORTS = {"a clock of a cohort", "a rule for stale messages"}
PLAIN = {"a function", "a partial", "a loss"} | OF_COHORTS
EDITS = {  # what is edited: the old text, the new one, and the values that change
    "a helper": (
        "3 * x",
        "4 * x",
        PLAIN | {"an attribute"},
    ),
    "a number": ("SCALE = 2.0", "SCALE = 3.0", PLAIN),
    "an array": ("arange(3)", "arange(4)", PLAIN),
    "an inner function": ("x + y", "x - y", {"a closure"}),
    "a default": ("factor=4", "factor=5", {"a default"}),
    "a layer": (" + 5", " + 6", {"a model"}),
    "a method": ("lr + 0.0", "lr + 1.0", {"an algorithm", "one inside"}),
    "a cache": ("CACHE = {}", "CACHE = {1: 2}", set()),
    "its place": ("SCALE", "\n\nSCALE", set()),
}


@pytest.mark.parametrize("edit", EDITS)
def test_code_that_decides_numbers_is_known(edit):
    old, new, changed = EDITS[edit]
    before, after = module(TEMPLATE), module(TEMPLATE.replace(old, new, 1))
    found = {
        name for name, of in VALUES.items() if code_of(of(before)) != code_of(of(after))
    }
    assert found == changed
    assert all(code_of(of(before)) for of in VALUES.values())


def test_installed_code_is_not_the_users():
    values = [
        fm.fedavg(),
        np.mean,
        nn.Dense(3),
        len,
        functools.partial(np.mean, axis=0),
    ]
    assert code_of(values) == {}


def test_tasks_are_known_by_the_fields_of_their_models():
    words = lambda width: in_words(
        tasks.classification(fm.models.MLP(2, (width,)), (3,))
    )
    assert words(4) == words(4) != words(5)
    assert "features=(4)" in words(4)
    loss = lambda scale: in_words(as_partial(functools.partial(np.multiply, scale)))
    assert loss(2) != loss(3)


def test_cohorts_differ_in_words_by_their_functions_numbers():
    slow = partial(fm.clocks.lognormal, key=jax.random.key(0))
    every = [fm.timed(8, slow(sigma)) for sigma in (1.0, 2.0)]
    every += [fm.buffered(9, 3, slow(sigma)) for sigma in (1.0, 2.0)]
    rules = map(fm.staleness.polynomial, (0.5, 1.0))
    every += [fm.buffered(9, 3, staleness=rule) for rule in rules]
    every += [
        fm.sampled(8),
        fm.sampled(8, dropout=0.1),
        fm.poisson(8),
        fm.poisson(8, 9),
    ]
    assert len({in_words(cohort) for cohort in every}) == len(every)
