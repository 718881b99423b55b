"""What has one owner: rows of metrics, searches, problems, promises."""

import ast
import dataclasses
from pathlib import Path

import fedjax_muon as fm

ROOT = Path(__file__).parents[2]
TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
    for folder in ("fedjax_muon", "experiments")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def classes(name: str) -> list[str]:
    """The files that define a class of a name."""
    found = []
    for path, tree in TREES.items():
        kinds = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        found += [path for kind in kinds if kind.name == name]
    return found


def keys(name: str) -> list[str]:
    """The files that make a dictionary with a key."""
    found = []
    for path, tree in TREES.items():
        made = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
        names = [
            key.value for d in made for key in d.keys if isinstance(key, ast.Constant)
        ]
        found += [path] * names.count(name)
    return found


def test_one_builder_of_rows():
    assert keys("bytes_down") == ["fedjax_muon/simulation/meter.py"]
    assert keys("virtual_seconds") == ["fedjax_muon/simulation/meter.py"]


def test_one_search():
    """Steps of a rate by factors of 3."""
    steps = [
        path
        for path, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.Assign)
        and getattr(node.targets[0], "id", "") == "FACTOR"
    ]
    assert steps == ["fedjax_muon/runs/search.py"]


def test_one_problem():
    """Of the library; papers and studies from before it have three of their own."""
    others = ["papers/dpmixsgd_jobs", "studies/natural_problems", "studies/tuned"]
    expected = [f"experiments/{name}.py" for name in others]
    assert classes("Problem") == ["fedjax_muon/problems/problem.py", *expected]


def test_one_promise_for_clients_and_one_for_examples():
    fields = {"epsilon", "delta", "clip_norm"}
    promises = [
        f"{path}:{node.name}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and fields <= {getattr(getattr(x, "target", None), "id", "") for x in node.body}
    ]
    assert promises == [
        "fedjax_muon/decentralized/private_methods.py:ExamplePrivacy",
        "fedjax_muon/privacy/client_privacy.py:ClientPrivacy",
    ]
    shared = {"epsilon", "delta", "clip_norm", "rounds"}
    for kind in (fm.privacy.ClientPrivacy, fm.decentralized.ExamplePrivacy):
        assert shared <= {field.name for field in dataclasses.fields(kind)}
