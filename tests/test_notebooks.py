"""Notebooks do what they show: their code runs, and their outputs are of that code."""

import base64
import importlib.util
import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jupytext
import matplotlib.pyplot as plt
import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from notebooks import build

# What the line that begins with ROUNDS becomes; all else is run as it is written.
SHORT = {
    "quickstart": "ROUNDS = 5",
    "own_transformation": "ROUNDS = 5",
    "heavy_tails_minimax": "ROUNDS = 50",
    "private_graph": "ROUNDS, WORLDS = 5, 20",
    "sweeps": "ROUNDS, SEEDS = 2, (0,)",
}
NAMES = build.NAMES
LARGEST = 400_000  # bytes of a notebook


def script(name: str) -> str:
    return (build.HERE / f"{name}.py").read_text()


def stored(name: str) -> nbformat.NotebookNode:
    return nbformat.read(build.HERE / f"{name}.ipynb", as_version=4)


def codes(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pictures(cell) -> list:
    """Of a cell's outputs, [height, width, channels] in 0..1."""
    found = [output.get("data", {}).get("image/png") for output in cell.outputs]
    decode = lambda png: plt.imread(io.BytesIO(base64.b64decode(png)))
    return [decode(png) for png in found if png]


def shows_something(picture) -> bool:
    """Frames, ticks and words are grey; what is drawn from data has colours."""
    colour = picture[..., :3]
    return (colour.max(-1) - colour.min(-1) > 0.3).mean() > 0.0002


def test_all_notebooks_are_known():
    assert {path.stem for path in build.HERE.glob("*.ipynb")} == set(NAMES)
    assert {path.stem for path in build.HERE.glob("*.py")} == {*NAMES, "build"}
    page = (build.HERE / "README.md").read_text()
    assert re.findall(r"^\| \[(\w+)\]\(\1\.ipynb\)", page, re.MULTILINE) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_script_and_notebook_say_the_same(name):
    notebook, source = stored(name), jupytext.reads(script(name), fmt="py:percent")
    both = [[(c.cell_type, c.source) for c in n.cells] for n in (notebook, source)]
    assert both[0] == both[1]
    assert notebook.metadata == build.METADATA
    assert [cell.metadata for cell in notebook.cells] == [{}] * len(notebook.cells)
    assert [c.id for c in notebook.cells] == [c.id for c in build.written(name).cells]
    nbformat.validate(notebook)


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_in_colab_and_installs_what_is_missing(name, monkeypatch):
    first, install = stored(name).cells[:2]
    title, badge, *_ = [line for line in first.source.splitlines() if line]
    assert title.startswith("# ")
    assert badge == build.badge(name)
    address = re.escape(build.REPOSITORY.removeprefix("https://github.com/"))
    assert len(re.findall(address, script(name))) == 2  # its badge, and what follows

    ran = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command))
    exec(install.source, {})
    assert not ran
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    exec(install.source, {})
    package = f"fedjax-muon @ git+{build.REPOSITORY}"
    assert ran == [[sys.executable, "-m", "pip", "install", "-q", package]]


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_whole(name):
    assert (build.HERE / f"{name}.ipynb").stat().st_size < LARGEST
    cells = codes(stored(name))
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(cells) + 1))  # of one kernel, top to bottom
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {
        "display_data",
        "execute_result",
        "stream",
    }
    assert all(output.get("name", "stdout") == "stdout" for output in outputs)
    assert pictures(cells[-1])
    assert all(map(shows_something, (p for cell in cells for p in pictures(cell))))


@pytest.mark.parametrize("name", NAMES)
# a script that shows a figure has no one to show it to
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive:UserWarning")
def test_it_runs(name, tmp_path, monkeypatch):
    code, found = re.subn(r"^ROUNDS\b.*", SHORT[name], script(name), flags=re.MULTILINE)
    assert found == 1
    path = tmp_path / f"{name}.py"
    path.write_text(code)
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("Agg")
    with plt.rc_context():
        runpy.run_path(str(path), run_name="__main__")
        figures = [plt.figure(number) for number in plt.get_fignums()]
        axes = [axis for figure in figures for axis in figure.axes]
        for axis in axes:
            assert axis.has_data()
            assert axis.get_xlabel()
            assert axis.get_title()
            assert axis.get_legend()
        plt.close("all")
    drawn = [plt.imread(png) for png in Path("runs").glob("*.png")]
    assert axes or drawn
    assert all(map(shows_something, drawn))


SMALL = """# %% [markdown]
# # Title

# %%
import os

import fedjax_muon

print(len(os.listdir()))
1 + 1
"""


def test_notebooks_are_written_alike_every_time(tmp_path, monkeypatch):
    script, notebook = tmp_path / "small.py", tmp_path / "small.ipynb"
    monkeypatch.setattr(build, "HERE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["build", "small"])
    script.write_text(SMALL)
    build.main()
    first = notebook.read_bytes()
    (cell,) = codes(nbformat.reads(first, as_version=4))
    assert [output.get("text") for output in cell.outputs] == ["0\n", None]
    assert cell.outputs[1].data == {"text/plain": "2"}
    build.main()
    assert notebook.read_bytes() == first
    script.write_text(SMALL + "raise OSError\n")
    with pytest.raises(CellExecutionError, match="OSError"):
        build.main()
    assert notebook.read_bytes() == first
