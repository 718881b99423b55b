"""Commands at the same time, on full and read-only disks, without output or home."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .kills import SMALL, environment

TINY = [*SMALL, "--rounds", "3", "--evaluate-every", "1"]
TRAIN = ["train", "fedavg", *TINY]
MODULE = [sys.executable, "-m", "fedjax_muon"]
# a user whom the list of users does not have
HOMELESS = [
    sys.executable,
    "-c",
    "import pwd\ndef none(*_): raise KeyError('no entry')\npwd.getpwuid = none\n"
    "from fedjax_muon.cli.main import main; main()",
]


class Check(NamedTuple):
    """What was tried, and what is wrong with what came of it."""

    name: str
    problem: str


def spawn(words: list[str], place: Path, program: Sequence[str] = MODULE, **how):
    """A process of a command in a directory."""
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    settings = {"cwd": place, "env": environment()} | quiet | how
    return subprocess.Popen([*program, *words], **settings)


def ended(process: subprocess.Popen) -> tuple[int, str]:
    """The status of a process and everything that it printed."""
    out, err = process.communicate(timeout=600)
    return process.returncode, (out or "") + (err or "")


def limited_files(place: Path, sizes: tuple[int, ...] = (1, 2, 5, 50)) -> list[Check]:
    """Files that can't grow past some kB: as on a disk that is full at some write."""
    checks = []
    for size in sizes:
        own = place / str(size)
        own.mkdir()
        env = environment() | {"JAX_COMPILATION_CACHE_DIR": str(own / "cache")}
        limit = ["bash", "-c", f'ulimit -f {size}; exec "$@"', "limit", *MODULE]
        process = spawn([*TRAIN, "--directory", "run"], own, program=limit, env=env)
        status, text = ended(process)
        problem = _refused(status, text, (1, 2))
        if not problem and (own / "run" / "identity.json").exists():
            status, text = ended(spawn([*TRAIN, "--directory", "run"], own))
            problem = "" if status == 0 else f"not resumed: {text[-200:]}"
        checks.append(Check(f"files of at most {size} kB", problem))
    return checks


def _refused(status: int, text: str, statuses: tuple[int, ...] = (2,)) -> str:
    if "Traceback" in text:
        return f"traceback: {text[-300:]}"
    if status not in statuses:
        return f"status {status}: {text[-200:]}"
    return ""


def without(place: Path) -> list[Check]:
    """No standard output, a full one, no home, a read-only directory, 64 bits."""
    checks: list[Check] = []

    def check(name: str, process: subprocess.Popen, statuses: tuple[int, ...]) -> None:
        checks.append(Check(name, _refused(*ended(process), statuses)))

    with Path("/dev/full").open("w") as full:
        check("stdout is full", spawn(["list"], place, stdout=full), (1,))
    reader, writer = os.pipe()
    os.close(reader)
    check("stdout is closed", spawn(["--version"], place, stdout=writer), (1,))
    os.close(writer)
    nobody = environment()
    for name in ("HOME", "XDG_CACHE_HOME", "USER", "LOGNAME"):
        nobody.pop(name, None)
    nobody["JAX_ENABLE_X64"] = "1"
    words = [*TRAIN, "--directory", "homeless"]
    check("no home, 64 bits", spawn(words, place, env=nobody, program=HOMELESS), (0,))
    if os.getuid() != 0:
        (place / "read").mkdir(mode=0o500)
        check("read-only", spawn([*TRAIN, "--directory", "read/run"], place), (2,))
    return checks


def soak(rounds: int) -> Check:
    """A long run: memory and open files stay as they are after a tenth of it.

    It evaluates every ten rounds, and saves fifty checkpoints.
    """
    import jax
    import numpy as np
    import psutil

    from fedjax_muon import data, federate, models, partition
    from fedjax_muon.algorithms import fedavg
    from fedjax_muon.simulation import checkpoint
    from fedjax_muon.simulation.training import steps
    from fedjax_muon.tasks import classification

    digits = data.load("digits")
    clients = partition.iid(digits.y_train, 6, key=jax.random.key(0))
    task = classification(models.MLP(10, (8,)), digits)
    sizes = {"cohort": 3, "local_steps": 1, "batch_size": 8}
    simulation = federate(fedavg(lr=0.1), task, digits, clients, **sizes)
    state = simulation.init(jax.random.key(0))
    process, seen = psutil.Process(), []
    with (
        tempfile.TemporaryDirectory() as folder,
        checkpoint.open_checkpoints(Path(folder) / "checkpoints") as checkpoints,
    ):
        for step in steps(simulation, state, rounds=rounds, evaluate_every=10):
            if step.record is None or step.record["round"] % max(10, rounds // 50):
                continue
            checkpoint.save(checkpoints, step.state.round, step.state, "soak")
            seen.append((process.memory_info().rss, process.num_fds()))
    late = seen[len(seen) // 10 + 1 :]
    half = len(late) // 2
    memory = np.mean([m for m, _ in late[half:]]) - np.mean([m for m, _ in late[:half]])
    handles = max(n for _, n in late) - min(n for _, n in late)
    problem = ""
    if memory > 20e6:
        problem = f"memory grows by {memory / 1e6:.0f} MB"
    if handles > 2:
        problem = f"open files vary by {handles}"
    return Check(f"{rounds} rounds in a process", problem)
