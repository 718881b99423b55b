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
from fedjax_muon.runs.identity import as_begun, claimed, code_of, identity
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


@pytest.fixture
def module(tmp_path):
    """Makes a module from its text, in a file of its own."""

    def make(text, name="mine"):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}" / f"{name}.py"
        path.parent.mkdir()
        path.write_text(text)
        made = types.ModuleType(name)
        exec(compile(text, str(path), "exec"), vars(made))
        made.__file__ = str(path)
        return made

    return make


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


def test_the_whole_file_of_a_function_is_known(module):
    """Also what the function does not read: a longer text is no other digest's."""
    before, same = module(TEMPLATE), module(TEMPLATE)
    for old, new in {"3 * x": "4 * x", "CACHE = {}": "CACHE = {1: 2}"}.items():
        after = module(TEMPLATE.replace(old, new, 1))
        for name, of in VALUES.items():
            assert code_of(of(before)) == code_of(of(same)) != code_of(of(after)), name
            assert "code of mine" in code_of(of(before))


OF_COHORTS = {"a clock of a cohort", "a rule for stale messages"}
PLAIN = {"a function", "a partial", "a loss"} | OF_COHORTS
CHANGES = {  # of a global name after the import, and the values that it changes
    "a number": ("SCALE", 3.0, PLAIN),
    "an array": ("TABLE", np.arange(4), PLAIN),
    "a cache": ("CACHE", {1: 2}, set()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_globals_hold_now_is_known(change, module):
    name, value, changed = CHANGES[change]
    before, after = module(TEMPLATE), module(TEMPLATE)
    setattr(after, name, value)
    found = {k for k, of in VALUES.items() if code_of(of(before)) != code_of(of(after))}
    assert found == changed


SETTINGS = {  # how a setting of 0.5 is kept, and how a function reads it
    "a dictionary": ('KEPT = {"part": 0.5}', 'KEPT["part"]'),
    "a list": ("KEPT = [[0.5], 1]", "KEPT[0][0]"),
    "a set": ("KEPT = {0.5, 1}", "min(KEPT)"),
    "a namespace": ("KEPT = types.SimpleNamespace(part=0.5)", "KEPT.part"),
    "options": ("KEPT = argparse.Namespace(part=0.5)", "KEPT.part"),
    "a dataclass": (
        "@dataclasses.dataclass\nclass Config:\n    part: float = 0.5\nKEPT = Config()",
        "KEPT.part",
    ),
    "a class": ("class Kept:\n    part = 0.5", "Kept.part"),
    "a base class": (
        "class Base:\n    part = 0.5\nclass Kept(Base):\n    pass",
        "Kept.part",
    ),
    "an object": (
        "class Config:\n    def __init__(self, x):\n        self.x = {'part': x}\n"
        "KEPT = Config(0.5)",
        "KEPT.x['part']",
    ),
    "an enumeration": (
        "class Rates(enum.Enum):\n    LOW = 0.5",
        "Rates.LOW.value",
    ),
    "slots": (
        "class Config:\n    __slots__ = 'part'\nKEPT = Config()\nKEPT.part = 0.5",
        "KEPT.part",
    ),
    "an object that is called": (
        "class Part:\n    def __init__(self, x):\n        self.x = x\n"
        "    def __call__(self):\n        return self.x\nKEPT = Part(0.5)",
        "KEPT()",
    ),
    "a closure": (
        "def make(part):\n    return lambda: part\nKEPT = make(0.5)",
        "KEPT()",
    ),
    "a list in a closure": (
        "def make(*part):\n    return lambda: part[0]\nKEPT = make([0.5])",
        "KEPT()[0]",
    ),
    "a decorator": (
        "def scaled(part):\n    def deco(f):\n        @functools.wraps(f)\n"
        "        def g():\n            return part * f()\n        return g\n"
        "    return deco\n@scaled(0.5)\ndef one():\n    return 1",
        "one()",
    ),
    "a jitted function": ("@jax.jit\ndef kept():\n    return 0.5", "kept()"),
    "a default": ("def kept(part=[0.5]):\n    return part[0]", "kept()"),
    "a function of a library": ("import math\nKEPT = math.fabs", "KEPT(0.5)"),
    "a table": (
        "class Table:\n    def __array__(self, dtype=None, copy=None):\n"
        "        return np.full(99, 0.5)\nKEPT = Table()",
        "np.asarray(KEPT)[0]",
    ),
}
HEAD = "import argparse, dataclasses, enum, functools, types\n"
HEAD += "import jax\nimport numpy as np\n"


@pytest.mark.parametrize("kept", SETTINGS)
def test_what_globals_and_closures_hold_is_known(kept, module):
    line, read = SETTINGS[kept]
    text = f"{HEAD}{line}\ndef rate(x):\n    return {read} * x\n"
    quarter = text.replace("math.fabs", "math.exp").replace("0.5", "0.25")
    found = [code_of(module(each).rate) for each in (text, text, quarter)]
    assert found[0] == found[1] != found[2]


def test_what_may_be_published_tells_nothing_of_arrays_or_held_values(module):
    text = (
        "import numpy as np\nimport fedjax_muon as fm\nSECRET = np.arange(3.0)\n"
        "HELD = [7.5, 1.0]\ndef rule(x):\n    return SECRET[0] + HELD[0] + x\n"
        "def made_of(inner):\n    @fm.recorded\n"
        "    def mine(lr: fm.Hyper = 0.1, table=None, rule=None):\n"
        "        return fm.fedavg(lr=lr + 0 * inner[0])\n    return mine\n"
        "def make():\n    inner = SECRET * 2\n    own = made_of(inner)\n"
        "    return own(0.25, np.arange(3.0), lambda x: rule(x) + inner[0])\n"
    )
    others = text.replace("arange(3.0)", "arange(1.0, 4.0)").replace("7.5", "8.5")
    problem = fm.problems.classification("digits", clients=2)
    for publishable in (True, False):
        words = [
            identity(module(each).make(), problem, 0, {}, publishable=publishable)
            for each in (text, others)
        ]
        assert (words[0] == words[1]) == publishable
        assert words[0]["method.lr"] == "0.25"
    plain = identity(module(text).make(), problem, 0, {}, publishable=True)
    assert plain["method.table"] == "float64[3]"
    assert plain["problem.clients"] == "2"


def test_code_that_differs_is_named(module, tmp_path):
    words = code_of(module(TEMPLATE).plain)
    claimed(tmp_path / "run", words)
    with pytest.raises(ValueError, match="another run: the code of mine differs"):
        claimed(tmp_path / "run", code_of(module(TEMPLATE + "# more\n").plain))


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


def test_functions_of_the_library_are_known_by_name(tmp_path):
    """Wherever they stand; presets were once made by rows that were in their words."""
    claimed(tmp_path, {"method.algorithm": "fedjax_muon.algorithms.registry.stem[row]"})
    known = lambda text: as_begun(tmp_path, {"method.algorithm": text, "seed": "0"})
    kept = {
        "method.algorithm": "fedjax_muon.algorithms.registry.stem[row]",
        "seed": "0",
    }
    assert known("fedjax_muon.algorithms.stem.stem[make]") == kept
    for other in ("fedjax_muon.algorithms.fafed.fafed[make]", "mine.stem[make]"):
        assert known(other)["method.algorithm"] == other
