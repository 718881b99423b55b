"""The tutorial: commands and Python run as they are printed, in one directory."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from fedjax_muon.cli import main

pytestmark = pytest.mark.slow

PAGES = sorted((Path(__file__).parents[2] / "docs" / "tutorial").glob("[1-9]*.md"))
FENCE = re.compile(r'^```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```', re.DOTALL | re.M)
NOT_HERE = ("pip install ", "python3 -m venv ")  # done before the tests


def numberless(printed: str) -> list[str]:
    """The words of an output; its numbers are those of one machine."""
    text = re.sub(r"[\d.,]+", "0", printed)
    return re.sub(r"\s*\|\s*", " | ", text).split()


def run_command(line: str) -> None:
    """What a shell would do with a line of a page."""
    if not line.startswith(NOT_HERE):
        program, *words = shlex.split(line)
        assert program == "fedjax-muon", line
        main(words)


def run_page(page: Path, capsys) -> None:
    """Runs the blocks of a page in their order; outputs are those of the page."""
    names = {"__name__": page.stem}
    printed = None
    for language, title, code in FENCE.findall(page.read_text()):
        if language == "bash":
            for line in code.splitlines():
                run_command(line)
        elif title:
            Path(title).write_text(code)
            importlib.invalidate_caches()  # a module that was not there before
        elif language == "python":
            capsys.readouterr()
            exec(compile(code, page.name, "exec"), names)
            printed = capsys.readouterr().out
        else:
            assert language == "text", page
            assert numberless(printed) == numberless(code), page


def test_the_tutorial_runs_from_its_first_to_its_last_step(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert len(PAGES) == 5
    for page in PAGES:
        run_page(page, capsys)
    sys.modules.pop("my_method", None)


@pytest.mark.parametrize("line", ["rm -r runs", "fedjax-muon trian"])
def test_a_wrong_line_would_be_found(line):
    with pytest.raises((AssertionError, SystemExit)):
        run_command(line)
