"""The site, built once for all tests that look at it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from packages import needs

ROOT = Path(__file__).parents[2]


def build(place: Path) -> None:
    """The site as `mkdocs build --strict` leaves it, wherever it is called from."""
    needs("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    where = ["--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(place)]
    done = subprocess.run(
        [*command, *where], cwd=place.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """Where the site is; the first worker that needs it builds it for the others."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers
    place = folder / "site"
    with FileLock(folder / "site.lock"):
        if not place.exists():
            build(place)
    return place
