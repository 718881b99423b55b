"""Memory of containers, and machines that lack what Linux has."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fedjax_muon.simulation.machine import container_limits, memory_bytes

pytestmark = pytest.mark.portable

TOTAL = psutil.virtual_memory().total
UNLIMITED = 9223372036854771712  # what version 1 says where there is no limit


def machine(root: Path, groups: str, **limits) -> Path:
    """A root directory with a process's groups and the limits of some."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, limit in limits.items():
        place = root / "sys/fs/cgroup" / name.replace("__", "/")
        place.mkdir(parents=True)
        file = "memory.max" if limit[0] == 2 else "memory.limit_in_bytes"
        (place / file).write_text(f"{limit[1]}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "limits", "found"),
    [
        # a container that sees its own group alone, at the top
        ("0::/\n", {"": (2, 650_000_000)}, 650_000_000),
        ("0::/\n", {"": (2, "max")}, TOTAL),
        # a service within a slice, where the slice allows less
        (
            "0::/app__slice/one\n".replace("__", "."),
            {"app.slice": (2, 3_000_000), "app.slice__one": (2, 5_000_000)},
            3_000_000,
        ),
        # version 1, alone and beside version 2, the path of the host unseen
        ("4:memory:/docker/abc\n1:cpu:/\n", {"memory": (1, 7_000_000)}, 7_000_000),
        ("4:cpu,memory:/\n", {"memory": (1, UNLIMITED)}, TOTAL),
        (
            "4:memory:/a\n0::/\n",
            {"memory__a": (1, 9_000_000), "unified": (2, 8_000_000)},
            8_000_000,
        ),
        ("0::/../else:where\n", {"": (2, 4_000_000)}, 4_000_000),
    ],
)
def test_the_smallest_limit_of_the_groups_counts(tmp_path, groups, limits, found):
    assert memory_bytes(machine(tmp_path, groups, **limits)) == found


def test_a_machine_without_groups_has_its_own_memory(tmp_path):
    assert memory_bytes(tmp_path) == TOTAL
    assert list(container_limits(tmp_path)) == []


# These have a file for each system, and that of Linux needs what others lack.
WITHOUT = """
import asyncio, os, psutil, sys
del os.sysconf
sys.modules["fcntl"] = None
from fedjax_muon.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_run_needs_neither_sysconf_nor_fcntl(tmp_path):
    out = tmp_path / "out"
    asked = "train --algorithm fedavg --rounds 1 --hidden 4 --cohort-size 1 --output"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *asked.split(), str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (out / "metrics.csv").is_file()
