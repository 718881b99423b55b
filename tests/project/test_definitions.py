"""One name has one owner, and functions are typed where mypy does not ask for it."""

import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2] / "fedjax_muon"
# Files of methods, each with its own State and Message. Their inner functions stand for
# equations without types, see [tool.mypy] in pyproject.toml.
METHODS = [*ROOT.glob("algorithms/*.py"), *ROOT.glob("wrappers/*.py")]
AGENTS = ("dsgd", "estimators", "private", "suda", "tracking")
METHODS += [ROOT / "decentralized" / f"{name}.py" for name in AGENTS]
# Classes of one name, and how many there are. This list may only shrink.
DOUBLE = {
    "Block": 2,
    "Call": 2,
    "Network": 2,
    "Progress": 2,
    "Source": 2,
    "State": 4,
    "Step": 2,
    "Table": 2,
    "_Rows": 2,
}


def classes(source: str, method: bool) -> list[str]:
    """The names of the classes of a file; those of a method may have named tuples."""
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef)]
    own = [n for n in nodes if method and "NamedTuple" in map(ast.unparse, n.bases)]
    return [node.name for node in nodes if node not in own]


def double(names: Iterable[str]) -> dict[str, int]:
    return {name: n for name, n in Counter(names).items() if n > 1}


def untyped(source: str) -> list[str]:
    """The functions and methods of a file that lack types, but for inner functions."""
    body = ast.parse(source).body
    body += [n for c in body if isinstance(c, ast.ClassDef) for n in c.body]
    found = []
    for node in body:
        if isinstance(node, ast.FunctionDef):
            a = node.args
            given = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
            bare = [x for x in given if x and not (x.annotation or x.arg == "self")]
            if bare or (node.returns is None and node.name != "__init__"):
                found.append(node.name)
    return found


def test_a_class_has_a_name_of_its_own():
    files = sorted(ROOT.rglob("*.py"))
    found = double(n for f in files for n in classes(f.read_text(), f in METHODS))
    more = {name: n for name, n in found.items() if n > DOUBLE.get(name, 1)}
    assert more == {}, "another class has this name; rename the new one"
    assert found == DOUBLE, "fewer classes share a name; shorten DOUBLE to these"
    step = "class Step(NamedTuple): ..."
    assert double(classes(step, False) * 2) == {"Step": 2}
    assert classes(step, True) == []


def test_functions_of_methods_are_typed_outside():
    found = {file.name: untyped(file.read_text()) for file in METHODS}
    assert {name: bare for name, bare in found.items() if bare} == {}
    assert untyped("def f(x: int, *more): ...") == ["f"]
    assert untyped("class A:\n  def f(self) -> int:\n    def g(x): ...") == []
