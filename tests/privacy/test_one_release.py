"""No round of a private run is released twice for one charge, however it is tried."""

import contextlib
import functools
import itertools
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon import data, files, problems, tasks
from fedjax_muon.algorithms import fedavg, fedmuon
from fedjax_muon.data.dataset import digest
from fedjax_muon.decentralized import private_storm, topology
from fedjax_muon.decentralized.private_methods import ExamplePrivacy
from fedjax_muon.decentralized.simulation import decentralize
from fedjax_muon.engine.plans import mapped
from fedjax_muon.privacy import AdaptiveClip, ClientPrivacy
from fedjax_muon.privacy.correlated import Banded
from fedjax_muon.privacy.ledger import Ledger
from fedjax_muon.runs import metrics_csv, private, record, trackers
from fedjax_muon.runs.directory import METRICS
from fedjax_muon.runs.train import begin, job_of, run
from fedjax_muon.simulation import checkpoint
from fedjax_muon.simulation.federated import federate
from fedjax_muon.terminal import Progress
from tests.support.error_lines import refused

KEY = jax.random.key(0)
DRAWS = np.random.default_rng(0)
X, Y = DRAWS.normal(size=(48, 4)).astype(np.float32), np.arange(48, dtype=np.int32) % 3
DATASET = data.Dataset(X, Y, X[:9], Y[:9], ("a", "b", "c"))
PARTS = np.split(np.arange(48), 6)
TASK = tasks.classification(nn.Dense(3), DATASET)
OTHER_TASK = tasks.classification(
    nn.Sequential([lambda x: 3 * x, nn.Dense(3)]), DATASET
)
CLIENT = ClientPrivacy(
    clip_norm=0.5, cohort=3, rounds=4, delta=1e-3, noise_multiplier=5.0
)
AGENT = ExamplePrivacy(rounds=4, delta=1e-3, noise_scale=5.0)
pytestmark = pytest.mark.filterwarnings(
    "ignore:the noise in the sum", "ignore:messages have params"
)


def clients(given=CLIENT, algorithm=None, task=TASK, **changes):
    sizes = {"local_steps": 1, "batch_size": 4, "privacy": given, **changes}
    return federate(algorithm or fedavg(lr=0.1), task, DATASET, PARTS, **sizes)


def agents(given=AGENT, parts=PARTS):
    weights = topology.metropolis(topology.ring(6))
    sizes = {"weights": weights, "batch_size": 4, "privacy": given}
    return decentralize(private_storm(lr=0.1), TASK, DATASET, parts, **sizes)


KINDS = {
    "clients": clients,
    "prologue": lambda: clients(algorithm=fedmuon(lr=0.1)),
    "adaptive": lambda: clients(
        replace(CLIENT, clip_norm=AdaptiveClip(count_noise=9.0))
    ),
    "correlated": lambda: clients(replace(CLIENT, strategy=Banded((0.8, 0.6)))),
    "agents": agents,
}


@functools.cache
def simulation(kind):
    return KINDS[kind]()


def copied(state):
    return jax.tree.map(jnp.copy, state)


def moved(state):
    """The same state with other parameters."""
    params = jax.tree.map(lambda x: x + 1, state.params)
    training = state.training
    if hasattr(training, "server"):
        server = training.server._replace(params=params)
        return state._replace(training=training._replace(server=server))
    inner = training.agents._replace(params=params)
    return state._replace(training=training._replace(agents=inner))


def set_back(state):
    training = state.training
    return state._replace(training=training._replace(index=training.index - 1))


def finished(one, kind):
    """What a run directory has of a finished run."""
    other = KINDS[kind]()
    return one, private.published(other.train_rounds(other.init(KEY), 1)[0])


def without_privacy(one, kind):
    del kind
    sizes = {"local_steps": 1, "batch_size": 4}
    public = federate(fedavg(lr=0.1), TASK, DATASET, PARTS, cohort=3, **sizes)
    return one, public.init(KEY)


def with_fixed_noise(one, kind):
    del one
    given = AGENT if kind == "agents" else CLIENT
    make = agents if kind == "agents" else clients
    loose = make(replace(given, insecure_fixed_noise=True))
    state = loose.init(KEY)
    return make(), state


# (simulation, its newest state, kind) -> the simulation and the state that are tried
WAYS = {
    "a copy": lambda one, state, kind: (one, copied(state)),
    "other parameters": lambda one, state, kind: (one, moved(state)),
    "an earlier round": lambda one, state, kind: (one, set_back(state)),
    "another simulation": lambda one, state, kind: (KINDS[kind](), state),
    "a finished run": lambda one, state, kind: finished(one, kind),
    "fixed noise": lambda one, state, kind: with_fixed_noise(one, kind),
}
OF_CLIENTS = {
    "another task": lambda one, state, kind: (clients(task=OTHER_TASK), state),
    "another plan": lambda one, state, kind: (clients(plan=mapped), state),
    "no privacy": lambda one, state, kind: without_privacy(one, kind),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_private_simulation_trains_only_from_its_last_state(kind, monkeypatch):
    one = simulation(kind)
    state, _ = one.train_round(one.init(KEY))
    again = r"init\(key, params=...\)"
    for way in (WAYS if kind == "agents" else WAYS | OF_CLIENTS).values():
        tried, other = way(one, state, kind)
        refused(again, tried.train_round, other)
    with monkeypatch.context() as patched:  # as after a fork
        patched.setattr(os, "getpid", lambda: -2)
        refused(again, one.train_round, state)
    kept = copied(state)
    state, _ = one.train_round(state)  # none of them has used it up
    refused(again, one.train_round, kept)
    params = state.params
    if kind == "agents":
        params = jax.tree.map(lambda x: x[0], params)
    once = "new noise in every call; call it outside of jax.jit"
    for calls in (one.train_round, one.evaluate):
        with pytest.raises(TypeError, match=once):
            jax.jit(calls)(state)
    for given in ({}, {"drop_nonfinite": True}):
        with pytest.raises(TypeError, match=once):
            jax.jit(lambda key, given=given: one.init(key, **given))(KEY)
    begun = one.init(KEY, params=params)
    refused(again, one.train_round, state)
    assert one.train_rounds(begun, 2)[0].round == 2


FORKED = """
import os
os.getpid = lambda: 1  # as of the first process in a container, and of its child
from tests.privacy.test_one_release import KEY, clients

one = clients()
state, _ = one.train_round(one.init(KEY))
read, write = os.pipe()
if os.fork() == 0:
    try:
        one._last_state.take(state)
        os.write(write, b"released again")
    except ValueError as error:
        os.write(write, str(error).encode())
    os._exit(0)
print(os.read(read, 1000).decode())
os.wait()
one._last_state.take(state)  # the parent still has it
"""


def test_a_child_with_the_same_process_number_is_refused():
    root = str(Path(__file__).parents[2])
    paths = {"PYTHONPATH": root, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    ran = subprocess.run(
        command, env=os.environ | paths, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert "trains only from the state that it made" in ran.stdout


# ---------------------------------------------------------------------- run directories
class Killed(BaseException):
    """As a process that is killed here."""


PRIVACY = ClientPrivacy(clip_norm=0.5, cohort=3, rounds=2, delta=0.01, epsilon=8.0)
# what a run does to its files, in any order
WRITES = [
    (checkpoint, "save"),
    (Ledger, "reach"),
    (metrics_csv, "append"),
    (files, "write"),
    (files, "write"),
    (record, "restore_rows"),
    (record.Recorder, "publish"),
    (shutil, "rmtree"),
]


@functools.cache
def prepared():
    """A run, but for its directory."""
    model = functools.partial(problems.mlp, hidden=(2,))
    problem = problems.classification("breast_cancer", clients=6, model=model)
    method, how = fedavg(), {"privacy": PRIVACY}
    given = "FedAvg", method, problem, 0, how, fm.simulate(method, problem, **how)
    every = {"rounds": 2, "evaluate_every": 1, "drop_nonfinite": False}
    make = functools.partial(job_of, *given, digest(problem.dataset), **every)
    return problem.dataset, make


class Job:
    """A private run in a directory, which may be started several times."""

    def __init__(self, place):
        self.place, self.ledger = place / "run", Ledger(place / "ledger.json")
        self.dataset, make = prepared()
        self.job = make(directory=self.place)
        self.released = {}  # losses by round, of all starts

    def begin(self):
        begin([self.job], self.dataset, self.place, self.ledger.path)

    def start(self):
        self.begin()
        see = lambda state, row: self.see(row)
        watching = "json", lambda run, about: contextlib.nullcontext(see)
        try:
            with mock.patch.dict(trackers.TRACKERS, watching=watching):
                followed = trackers.Followed(("watching",))
                run(self.job, Progress(2), lambda: False, followed)
        finally:
            self.look()

    def look(self):
        metrics = self.place / METRICS
        if metrics.exists():
            for row in metrics_csv.parsed(metrics.read_text()):
                self.see(row)

    def see(self, row):
        self.released.setdefault(row["round"], set()).add(f"{row['test_loss']:.6g}")

    def check(self):
        """No round has more releases than charges."""
        charges = len(self.ledger.entries())
        assert max(map(len, self.released.values()), default=0) <= max(charges, 1)


def killed_at(patched, moment):
    """Kills the process at a moment: before the first write, after it, and so on."""
    moments = itertools.count()

    def watched(function):
        def write(*arguments, **options):
            if next(moments) == moment:
                raise Killed
            made = function(*arguments, **options)
            if next(moments) == moment:
                raise Killed
            return made

        return write

    for owner, name in WRITES:
        patched.setattr(owner, name, watched(getattr(owner, name)))


@pytest.mark.parametrize("seconds", [0, 5], ids=["often", "rarely"])
@pytest.mark.parametrize(
    "moments", [[12, 17], pytest.param(range(100), marks=pytest.mark.slow)]
)
def test_a_run_that_is_killed_at_any_write_releases_no_round_twice(
    tmp_path, monkeypatch, seconds, moments
):
    monkeypatch.setattr(record, "SECONDS_BETWEEN_CHECKPOINTS", seconds)
    for moment in moments:
        place = tmp_path / str(moment)
        place.mkdir()
        job = Job(place)
        with monkeypatch.context() as patched:
            killed_at(patched, moment)
            try:
                job.start()
            except Killed:
                pass
            else:
                assert moment > 17  # all were tried
                break
        job.start()
        job.check()
        assert job.released.keys() == {0, 1, 2}
        assert len(job.ledger.entries()) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is not what the checkpoint says")
def test_a_file_that_is_put_back_releases_no_round_twice(tmp_path, monkeypatch):
    """An older copy of any file or folder beside newer ones of all others."""
    monkeypatch.setattr(record, "SECONDS_BETWEEN_CHECKPOINTS", 0)
    job = Job(tmp_path / "job")
    copies = []
    kept = record.Recorder.save

    def save(self, checkpoints, state):
        kept(self, checkpoints, state)
        copies.append(tmp_path / f"copy{len(copies)}")
        shutil.copytree(tmp_path / "job", copies[-1])

    with monkeypatch.context() as patched:
        patched.setattr(record.Recorder, "save", save)
        job.start()
    shutil.copytree(tmp_path / "job", tmp_path / "end")
    copies.append(tmp_path / "end")
    for older, newer in itertools.combinations([None, *copies], 2):
        names = {path.relative_to(newer) for path in newer.rglob("*")}
        names = {name for name in names if len(name.parts) <= 4}  # else Orbax's own
        for name in sorted(names):
            shutil.rmtree(tmp_path / "job")
            shutil.copytree(newer, tmp_path / "job")
            job.released = {}  # this is another world, which has seen this much
            job.look()
            put_back(older, name, tmp_path / "job")
            with contextlib.suppress(ValueError, OSError):  # refused
                job.start()
            job.check()


def put_back(older, name, place):
    """Replaces a file or folder by an older copy; deletes it if there was none."""
    path = place / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if older is not None and (older / name).is_dir():
        shutil.copytree(older / name, path)
    elif older is not None and (older / name).exists():
        shutil.copy2(older / name, path)


def test_parameters_that_are_exported_are_released(tmp_path, monkeypatch):
    """Of a checkpoint that the ledger does not know yet."""
    monkeypatch.setattr(record, "SECONDS_BETWEEN_CHECKPOINTS", 0)
    job, reach = Job(tmp_path), Ledger.reach

    def reached(self, run, round):
        if round == 2:
            raise Killed
        reach(self, run, round)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "reach", reached)
        with pytest.raises(Killed):
            job.start()
    (name,) = [entry.run for entry in job.ledger.entries()]
    assert job.ledger.round_of(name) == 1
    state = record.last_state(job.job.simulation, job.job.course, job.place)
    assert state.round == 2
    assert job.ledger.round_of(name) == 2
    shutil.rmtree(tmp_path / "ledger.secret" / name / "checkpoints" / "2")
    refused("is an older copy", job.start)


def test_a_run_whose_secrets_are_deleted_is_refused(tmp_path, monkeypatch):
    job = Job(tmp_path)
    with monkeypatch.context() as patched:
        killed_at(patched, 17)
        with pytest.raises(Killed):
            job.start()
    assert 0 in job.released
    shutil.rmtree(tmp_path / "ledger.secret")
    (job.place / METRICS).unlink()
    refused("secret state.*is missing.*start again in another directory", job.start)
    job.check()


def test_what_can_not_hold_secrets_is_refused_before_the_charge(tmp_path):
    (tmp_path / "file.secret").write_text("")
    for name, said in (
        ("a[1].json", r"can't be read from a path with \[ \]"),
        ("a.secret", "is where secrets are kept"),
        ("file.json", "can't be made .File exists"),
    ):
        job = Job(tmp_path)
        job.ledger = Ledger(tmp_path / name)
        refused(said, job.begin)
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([np.zeros(8, int), *PARTS[1:]], "example 0 is 8 times in part 0"),
        ([PARTS[0]] * 6, "example 0 is 6 times in 6 parts"),
        ([PARTS[1][::-1], *PARTS[1:]], "example 8 is 2 times in 2 parts"),
    ],
)
def test_an_example_that_counts_several_times_is_refused(parts, said):
    refused(said, agents, AGENT, parts)
    refused(f"{said}.*remove the copies", agents, AGENT, parts)
