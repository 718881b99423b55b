"""The page of public packages: its rows, notes and reproductions agree."""

import ast
import importlib
import json
import re
import sys

import optax
import pytest

import fedjax_muon as fm
from conformance import judge
from conformance.adapters import rules
from conformance.adapters.entry import Entry, Package, found
from conformance.adapters.fedjax_muon import rounds
from fedjax_muon import transforms
from tests.support.packages import needs

ROWS = json.loads(judge.ROWS.read_text())
ADAPTERS = sorted((judge.ROWS.parent / "adapters").glob("*.py"))
FINDINGS = judge.ROWS.parent / "findings"
NOTES = [entry.note for package in judge.PACKAGES for entry in package.entries]


def test_the_page_is_that_of_the_rows():
    assert judge.PAGE.read_text() == judge.page_of(ROWS)


def test_every_entry_has_its_row_of_the_release_that_its_note_is_about():
    assert [judge.key(row) for row in ROWS] == [*judge.keys()]
    read = {package.name: package.read for package in judge.PACKAGES}
    assert {row["package"]: row["version"] for row in ROWS} == read
    assert len(read) > 30
    for row in ROWS:  # what departs without a note, departs in options alone
        said = row["verdict"]
        if said.startswith(("DIFFERS", "FAILS")):
            assert judge.keys()[judge.key(row)].note, row


def test_missing_packages_leave_their_rows(tmp_path, monkeypatch, capsys):
    def none(name, package=None):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", none)
    monkeypatch.setenv("CLONES", str(tmp_path))
    assert not any(map(found, judge.PACKAGES))
    rows, page = tmp_path / "public.json", tmp_path / "page.md"
    rows.write_text(judge.ROWS.read_text())
    judge.main(rows=rows, page=page)
    assert rows.read_text() == judge.ROWS.read_text()
    assert page.read_text() == judge.PAGE.read_text()
    capsys.readouterr()


def test_rows_are_replaced_and_unknown_names_refused(tmp_path, monkeypatch, capsys):
    def fedavg(task, module):
        return [task.x0] * (1 + (module is json))

    entries = Entry("still", "fedavg", fedavg, "it does not move"), *()
    package = Package("numpy", "json", "", entries)
    monkeypatch.setattr(judge, "PACKAGES", (package,))
    rows, page = tmp_path / "public.json", tmp_path / "page.md"
    rows.write_text(json.dumps(ROWS[:1]))  # of a package that is no longer there
    judge.main(["numpy"], rows, page)
    (row,) = json.loads(rows.read_text())
    assert judge.key(row) == ("numpy", "still", "fedavg")
    assert row["verdict"].startswith("FAILS at round 3")
    assert "| it does not move |" in page.read_text()
    assert "the notes on numpy are of" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="known are: numpy"):
        judge.main(["nampy"], rows, page)


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.stem)
def test_adapters_import_packages_only_when_they_run(path):
    if path.stem == "fedjax_muon":
        return  # that of this library
    own = {*sys.stdlib_module_names, "numpy", "conformance"}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names if not names]
            assert {name.split(".")[0] for name in names} <= own, names


def test_reproductions_are_linked_and_short():
    files = {path.stem for path in FINDINGS.glob("*.md")} - {"README"}
    linked = {*re.findall(r"findings/(\w+)\.md", " ".join(NOTES))}
    listed = {*re.findall(r"\((\w+)\.md\)", (FINDINGS / "README.md").read_text())}
    assert files == linked == listed
    read = {package.name: package.read for package in judge.PACKAGES}
    for name in files:
        text = (FINDINGS / f"{name}.md").read_text()
        (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        assert len(code.splitlines()) < 22
        ast.parse(code)
        for package, version in re.findall(r"([\w-]+) (\d[\d.]*)[:,]", text[:99]):
            assert read[package] == version
        assert re.search(r"\w+\.py:\d+", text)
        assert re.search(r"Expected", text)


def test_options_give_fedmuon_as_its_authors_coded_it():
    """`docs/algorithms/muon.md` shows them; the row is that of the authors' code."""

    def coded(h):
        adam = optax.scale_by_adam(0.9, 0.95, 1e-10)
        options = {"nesterov": True, "shape_scale": transforms.jordan, "rest": adam}
        rule = transforms.muon(h["momentum"], **options)
        decay = h["decay"] * (1 - h["align"])
        return fm.fedmuon_align(h["lr"], align=h["align"], decay=decay, rule=rule)

    entry = Entry("", "", lambda task, module: rounds(coded)(task))
    (row,) = [row for row in ROWS if row["method"] == "update_FedMuon"]
    made = judge.verdict(entry, None, "fedmuon_align")
    assert made["verdict"] == row["verdict"]
    assert "Nesterov; decay: times (1 - a)" in row["verdict"]
    assert float(made["error"]) < 1e-6


@pytest.mark.slow
def test_torch_conforms_and_another_momentum_does_not():
    torch = needs("torch")
    entry = Entry("optim.Muon", "muon", rules.of("optim"))
    assert judge.verdict(entry, torch, "muon")["verdict"] == "conforms"
    wrong = rules.torch_optimizer(
        lambda m, p, h: m.optim.Muon(p, **rules.usual(h) | {"momentum": 0.95})
    )
    said = judge.verdict(entry._replace(run=wrong), torch, "muon")["verdict"]
    assert "momentum" in said
    assert said.startswith("DEPARTS")
