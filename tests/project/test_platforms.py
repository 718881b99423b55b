"""What other systems lack is done without, or refused by name; see getting started."""

import ast
import os
from pathlib import Path

import filelock
import pytest

import fedjax_muon as fm
from fedjax_muon import files
from fedjax_muon.cli import names
from fedjax_muon.runs import directory
from fedjax_muon.simulation.last_state import LastState
from fedjax_muon.simulation.memory import UnknownMemoryError, memory_bytes
from tests.support.error_lines import one_line

ROOT = Path(__file__).parents[2]
TEXTS = {"open", "read_text", "write_text"}


def without_encoding(tree):
    """Lines that open text in the encoding of the system."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
        binary = any(isinstance(t, str) and "b" in t and len(t) < 4 for t in texts)
        flags = any(isinstance(a, ast.Attribute) for a in node.args)  # of os.open
        given = "utf-8" in texts or any(k.arg == "encoding" for k in node.keywords)
        if isinstance(node.func, ast.Name) and name != "open":  # that of `files`
            continue
        if name in TEXTS and not (binary or flags or given or "x" in texts):
            yield node.lineno, ast.unparse(node)


def test_texts_are_read_and_written_in_utf_8():
    others = ("Image.open", "archive.open", "table.reading", "os.open")
    found = [
        f"{path.relative_to(ROOT)}:{line}: {call}"
        for path in sorted((ROOT / "fedjax_muon").rglob("*.py"))
        for line, call in without_encoding(ast.parse(path.read_text("utf-8")))
        if not call.startswith(others)
    ]
    assert found == []


def test_a_file_is_claimed_without_links(tmp_path, monkeypatch):
    def link(*args):
        raise PermissionError("this file system has no links")

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "a"
    assert files.claim(path, "one")
    assert not files.claim(path, "two")
    assert path.read_text() == "one"
    assert [*tmp_path.iterdir()] == [path]


def test_a_lock_that_stays_is_released(tmp_path, monkeypatch):
    def unlink(*args, **kwargs):
        raise PermissionError("another process has it open")

    with monkeypatch.context() as changed:
        changed.setattr("pathlib.Path.unlink", unlink)
        with directory.held(tmp_path):
            pass
    assert (tmp_path / directory.LOCK).exists()
    filelock.FileLock(tmp_path / directory.LOCK, timeout=0).acquire().lock.release()
    with directory.held(tmp_path):
        pass


def test_memory_that_is_not_known_is_not_checked(monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    with pytest.raises(UnknownMemoryError, match="does not say how much memory"):
        memory_bytes()


def test_states_are_kept_where_nothing_forks(monkeypatch):
    monkeypatch.delattr(os, "register_at_fork")
    LastState().keep({"x": fm.tree})


def test_drive_letters_are_no_names():
    for place in ("C:/data/a.csv", "C:\\data\\a.csv"):
        call = names.called(f"{place}:label=risk,owner=bank", "problem")
        assert call.kwargs["dataset"].kwargs["path"] == place
        assert call.kwargs["dataset"].kwargs["label"] == "risk"


def test_private_runs_are_refused_on_windows(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "WINDOWS", True)
    privacy = fm.privacy.ClientPrivacy(epsilon=4.0, delta=1e-3)
    problem = fm.problems.classification(model=fm.problems.linear)
    how = {"directory": tmp_path / "a", "privacy": privacy, "rounds": 1}
    with (
        pytest.warns(UserWarning, match="unlikely to learn anything"),
        one_line("which Python can't make on Windows; use WSL, Linux or macOS"),
    ):
        fm.train(fm.dp_fedmuon(), problem, **how)
