"""A test of the notebooks with only a wheel of the package, as on Colab.

    pip wheel --no-deps -w dist .
    python -m notebooks.check --wheel dist/fedjax_muon-0.1.0-py3-none-any.whl

The environment has jupytext, nbclient and ipykernel, but not the package, which the
first cells of the notebooks install. Outputs are not kept.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import nbformat

from notebooks.build import HERE, NAMES, execute, install


def installed() -> str:
    """Returns the SHA-256 of the wheel that the package was installed from.

    It is empty if the package is not installed, and "no wheel" if it was not installed
    from a wheel.
    """
    try:
        found = metadata.distribution("fedjax-muon")
    except metadata.PackageNotFoundError:
        return ""
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    hashes = origin.get("archive_info", {}).get("hashes", {})
    return hashes.get("sha256", "no wheel")


def run(notebook: Path, wheel: Path) -> nbformat.NotebookNode:
    """Executes a notebook in a folder with only the wheel, without the checkout.

    Raises:
      nbclient.exceptions.CellExecutionError: If a cell raises an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(wheel, folder)
        executed = nbformat.read(notebook, as_version=4)
        first = next(cell for cell in executed.cells if cell.cell_type == "code")
        first.source = install(notebook.stem, "")  # from the wheel
        execute(executed, folder, None)
    return executed


def main() -> None:
    """Executes the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(prog="notebooks.check", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("names", nargs="*", metavar="NAME", default=NAMES)
    given = parser.parse_args()
    if not given.wheel.is_file():
        parser.error(f"{given.wheel} is no file; run: pip wheel --no-deps -w dist .")
    wanted = hashlib.sha256(given.wheel.read_bytes()).hexdigest()
    if installed() not in ("", wanted):
        parser.error(
            "the package is installed here, and not from this wheel; use a fresh "
            "virtual environment"
        )
    for name in given.names:
        began = time.perf_counter()
        run(HERE / f"{name}.ipynb", given.wheel)
        if installed() != wanted:
            sys.exit(f"{name}: the package was not installed from {given.wheel}")
        print(f"{name}: {time.perf_counter() - began:.0f} seconds", flush=True)


if __name__ == "__main__":
    main()
