"""Writes the notebooks with fresh outputs: NAME.ipynb, by executing NAME.py.

    python -m notebooks.build                 # all of them, minutes on two cores
    python -m notebooks.build sweeps          # some

The scripts, in jupytext's percent format, are what is edited. Whatever would differ
though nothing changed is left out of the notebooks: times, versions, random cell ids.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

# Where readers find the project: what badges and installing cells are checked against.
REPOSITORY = "https://github.com/fedjax-muon/fedjax-muon"
NAMES = (
    "quickstart",
    "own_transformation",
    "heavy_tails_minimax",
    "private_graph",
    "sweeps",
)
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


def badge(name: str) -> str:
    """What opens a notebook in Colab, in Markdown."""
    colab = "https://colab.research.google.com"
    page = REPOSITORY.replace("https://github.com", f"{colab}/github")
    image = f"{colab}/assets/colab-badge.svg"
    return f"[![Open in Colab]({image})]({page}/blob/main/notebooks/{name}.ipynb)"


def written(name: str) -> nbformat.NotebookNode:
    """The script as a notebook without outputs."""
    source = jupytext.read(HERE / f"{name}.py", fmt="py:percent")
    made = nbformat.v4.new_notebook(metadata=METADATA)
    for number, cell in enumerate(source.cells):
        code = cell.cell_type == "code"
        new = nbformat.v4.new_code_cell if code else nbformat.v4.new_markdown_cell
        made.cells.append(new(cell.source, id=f"cell-{number}"))
    return made


def executed(name: str) -> nbformat.NotebookNode:
    """With the outputs of a fresh kernel, started where nothing is and nothing stays.

    Raises `nbclient.exceptions.CellExecutionError` for a cell that does.
    """
    notebook = written(name)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # else what is printed is cut up by the clock
    )
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as empty:
        client.execute(cwd=empty, env={**os.environ, "PYTHONPATH": paths})
    notebook.metadata = nbformat.from_dict(METADATA)  # not the kernel's version
    return notebook


def main() -> None:
    """Executes the notebooks that are named, or all."""
    for name in sys.argv[1:] or NAMES:
        began = time.perf_counter()
        nbformat.write(executed(name), HERE / f"{name}.ipynb")
        print(f"{name}: {time.perf_counter() - began:.0f} seconds", flush=True)


if __name__ == "__main__":
    main()
