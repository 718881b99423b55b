"""Writes the notebooks with fresh outputs: NAME.ipynb, by executing NAME.py.

    python -m notebooks.build                 # all of them, minutes on two cores
    python -m notebooks.build sweeps          # some

The scripts, in jupytext's percent format, are what is edited, except for the badge and
the cell that installs the package: these are written into them first, by the setting
`repository` of `pyproject.toml`. Whatever would differ though nothing changed is left
out of the notebooks: times, versions, random cell ids.
"""

import os
import re
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

NAMES = (
    "quickstart",
    "own_transformation",
    "heavy_tails_minimax",
    "private_graph",
    "sweeps",
)
# extras that notebooks need, and a module that each brings
EXTRAS = {"private_graph": ("privacy", "dp_accounting")}
HERE = Path(__file__).parent
ROOT = HERE.parent  # has the package, installed or not
SECONDS = 600  # that a cell may take
METADATA = {
    # where jupytext is installed Jupyter saves both files, the script without a header
    "jupytext": {
        "cell_metadata_filter": "-all",
        "formats": "ipynb,py:percent",
        "notebook_metadata_filter": "-all",
    },
    "kernelspec": {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}

TITLE = re.compile(r"\A# %% \[markdown\]\n# # .*\n#\n(# \[!\[Open in Colab\].*\n#\n)?")
INSTALLING = """\
import subprocess
import sys
from glob import glob
from importlib.util import find_spec

if not {present}:
    sources = {wheels}
    if not sources:
{otherwise}
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *sources], check=True)
"""
FIND = re.compile(
    r"(?<=^# %%\n)import subprocess\n.*?\n(?=\n+# %%)", re.MULTILINE | re.DOTALL
)
ADVICE = """\
        raise FileNotFoundError(
            "no fedjax_muon-*.whl here: run `pip wheel --no-deps -w dist .` in a clone "
            "of the repository, and upload the file in dist beside this notebook"
        )"""


def repository() -> str:
    """The address of the public repository; empty if it is not known."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return settings["tool"]["fedjax-muon"]["repository"]


def badge(name: str, address: str) -> str:
    """What opens a notebook in Colab, in Markdown; empty for what Colab cannot open."""
    if not address.startswith("https://github.com/"):
        return ""
    colab = "https://colab.research.google.com"
    page = address.replace("https://github.com", f"{colab}/github")
    image = f"{colab}/assets/colab-badge.svg"
    return f"[![Open in Colab]({image})]({page}/blob/main/notebooks/{name}.ipynb)"


def installing(name: str, address: str) -> str:
    """The cell that installs the package where it is absent.

    From a wheel beside the notebook, else from the repository if its address is known.
    """
    extra, module = EXTRAS.get(name, ("", ""))
    wheels, package, otherwise = 'glob("fedjax_muon-*.whl")', "fedjax-muon", ADVICE
    present = 'find_spec("fedjax_muon")'
    if extra:
        present = f'({present} and find_spec("{module}"))'
        wheels = f'[f"{{wheel}}[{extra}]" for wheel in {wheels}]'
        package += f"[{extra}]"
    if address:
        otherwise = (
            f'        address = "{address}"\n'
            f'        sources = [f"{package} @ git+{{address}}"]'
        )
    return INSTALLING.format(present=present, wheels=wheels, otherwise=otherwise)


def opened(script: str, name: str, address: str) -> str:
    """The script with the badge and the installing cell that belong to an address."""
    line = badge(name, address)

    def titled(match: re.Match[str]) -> str:
        title = match[0].removesuffix(match[1] or "")
        return title + (f"# {line}\n#\n" if line else "")

    script = TITLE.sub(titled, script)
    return FIND.sub(lambda _: installing(name, address), script, count=1)


def written(name: str) -> nbformat.NotebookNode:
    """The script as a notebook without outputs."""
    source = jupytext.read(HERE / f"{name}.py", fmt="py:percent")
    made = nbformat.v4.new_notebook(metadata=METADATA)
    for number, cell in enumerate(source.cells):
        code = cell.cell_type == "code"
        new = nbformat.v4.new_code_cell if code else nbformat.v4.new_markdown_cell
        made.cells.append(new(cell.source, id=f"cell-{number}"))
    return made


def execute(notebook: nbformat.NotebookNode, folder: str, paths: str | None) -> None:
    """Adds the outputs of a fresh kernel of this Python, started in a folder.

    Its PYTHONPATH is `paths`. Raises `nbclient.exceptions.CellExecutionError` for a
    cell that does.
    """
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # else what is printed is cut up by the clock
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    client.execute(cwd=folder, env=env | ({"PYTHONPATH": paths} if paths else {}))


def executed(name: str) -> nbformat.NotebookNode:
    """With the outputs of a kernel that starts where nothing is and nothing stays."""
    notebook = written(name)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as empty:
        execute(notebook, empty, paths)
    notebook.metadata = nbformat.from_dict(METADATA)  # not the kernel's version
    return notebook


def main() -> None:
    """Executes the notebooks that are named, or all."""
    address = repository()
    for name in sys.argv[1:] or NAMES:
        began = time.perf_counter()
        script = HERE / f"{name}.py"
        script.write_text(opened(script.read_text("utf-8"), name, address), "utf-8")
        nbformat.write(executed(name), HERE / f"{name}.ipynb")
        print(f"{name}: {time.perf_counter() - began:.0f} seconds", flush=True)


if __name__ == "__main__":
    main()
