"""Imports flow one way. The order below is the architecture; only this enforces it."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "fedjax_muon"
LAYERS = (
    {"versions", "startup", "files"},
    {"core"},
    {"linalg", "data", "models", "tracking", "citing"},
    {"transforms", "tasks", "privacy"},
    {"wrappers"},
    {"algorithms", "engine"},
    {"terminal"},
    {"simulation"},
    {"decentralized"},
    {"problems"},
    {"deploy", "ahead_of_time"},
    {"runs"},
    {"cli"},
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
TOP = {"__init__", "__main__"}
TABLES = ("__init__", "minimax")  # files of many algorithms
# these know the interface of an algorithm, never one by name
GENERIC = ("core", "wrappers", "privacy", "engine", "simulation", "deploy")
FORBIDDEN = {"utils", "util", "helpers", "helper", "misc", "common"}
FILES = sorted(ROOT.rglob("*.py"))


def imported(source: str):
    """The dotted names that a module imports, relative imports as they stand."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def parts(source: str) -> set[str]:
    """The top-level parts of the library that a module imports."""
    names = (name.split(".") for name in imported(source))
    below = {name[1] for name in names if name[0] == "fedjax_muon" and len(name) > 1}
    return (below & (RANK.keys() | {path.stem for path in ROOT.iterdir()})) - TOP


def part(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def problems(path: Path, source: str) -> list[str]:
    """What is wrong with the imports of a file at `path`."""
    here = part(path)
    found = []
    for there in sorted(parts(source) - {here}):
        if there not in RANK:
            found.append(f"{there} has no layer")
        elif here not in TOP and RANK[there] >= RANK[here]:
            found.append(f"{here} imports {there}, which is not below it")
        if here in GENERIC and there == "algorithms":
            found.append(f"{here} must not know an algorithm")
    inside = here == "algorithms" and path.stem not in (
        "__init__",
        "methods",
        "minimax",
    )
    if inside and "algorithms" in parts(source):
        found.append("an algorithm imports another")
    for name in imported(source):
        if name.split(".")[0] in {"experiments", "benchmarks", "tests", "notebooks"}:
            found.append(f"the library imports {name}")
        if name.startswith("."):
            found.append(f"a relative import of {name}")
    return found


def test_every_part_has_a_layer():
    assert {part(path) for path in FILES} - TOP <= RANK.keys()


def test_imports_flow_downwards():
    found = {str(p.relative_to(ROOT)): problems(p, p.read_text()) for p in FILES}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_only_tests_of_experiments_import_them():
    tests = Path(__file__).parents[1]
    others = {*tests.rglob("*.py")} - {*tests.glob("experiments/*.py")}
    found = {path: list(imported(path.read_text())) for path in others}
    roots = {path: {name.split(".")[0] for name in found[path]} for path in others}
    assert [path for path in others if "experiments" in roots[path]] == []
    # the portable ones are run with the wheel alone
    portable = [path for path in others if "mark." + "portable" in path.read_text()]
    assert [path for path in portable if "benchmarks" in roots[path]] == []


def test_benchmarks_and_experiments_do_not_import_each_other():
    for here, there in (("benchmarks", "experiments"), ("experiments", "benchmarks")):
        files = list((ROOT.parent / here).rglob("*.py"))
        assert len(files) > 10
        found = {path: imported(path.read_text()) for path in files}
        roots = {path: {name.split(".")[0] for name in found[path]} for path in files}
        assert [path for path in files if there in roots[path]] == []


def test_files_are_small_and_named_by_what_they_hold():
    size = {path: len(path.read_text().splitlines()) for path in FILES}
    assert [path for path in FILES if size[path] > 600] == []
    assert [p for p in FILES if {p.stem, p.parent.name} & FORBIDDEN] == []
