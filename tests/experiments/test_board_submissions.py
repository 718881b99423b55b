"""The board: files of others, which are checked, run and accepted."""

import csv
import dataclasses
import json
import re
from pathlib import Path

import pytest

from experiments.board import __main__ as command, lines as kept
from experiments.board.rows import ROWS
from experiments.board.standings import tables
from experiments.board.submissions import SUBMITTED, accept, check, load
from experiments.board.tracks import TRACKS

pytestmark = pytest.mark.slow


NORMUON = """\
import fedjax_muon as fm
from experiments.board.row import Row

def normuon():
    return fm.transforms.by_rank(fm.transforms.scale_by_normuon())

ROWS = {"fedavg_normuon": Row("FedAvg(NorMuon)", normuon, {"lr": 0.03}, sends=1)}
"""


def test_a_file_becomes_a_row(short, tmp_path, capsys):
    file = tmp_path / "normuon.py"
    file.write_text(NORMUON)
    board = tmp_path / "board"
    command.main("run", "digits", row="fedavg", output=board)
    check(file, None, "digits", None, board)
    shown = capsys.readouterr().out
    assert "ahead of fedavg by" in shown
    assert "of 2 on digits" in shown
    submission = tmp_path / SUBMITTED
    text = submission.read_text()
    check(file, None, "digits", None, board)  # is there already
    assert submission.read_text() == text
    accept(submission, None, board)
    both = (board / "digits.jsonl").read_text()
    assert both.endswith("".join(text.splitlines(keepends=True)[1:]))
    assert (board / "rows" / "fedavg_normuon.py").read_text() == NORMUON
    rows = [*csv.DictReader((board / kept.HISTORY).read_text().splitlines())]
    assert [row["method"] for row in rows] == ["fedavg", "fedavg_normuon"]
    (table,) = tables(board)
    assert {each.row for each in table.rows} == {"fedavg", "fedavg_normuon"}
    with pytest.raises(ValueError, match="by another name"):
        accept(submission, None, board)


def test_a_score_that_is_not_repeated_is_refused(short, tmp_path):
    file = tmp_path / "normuon.py"
    file.write_text(NORMUON)
    check(file, None, "digits", None, tmp_path)
    submission = tmp_path / SUBMITTED
    lines = [json.loads(line) for line in submission.read_text().splitlines()]
    better = [line | {"score": 1.0} if "score" in line else line for line in lines]
    worse = [*lines[:-1]]
    for changed, message in ((better, "but here"), (worse, "lacks runs")):
        submission.write_text("".join(f"{json.dumps(line)}\n" for line in changed))
        with pytest.raises(ValueError, match=message):
            accept(submission, None, tmp_path / "board")
    elsewhere = [
        line | {"processor": "another"} if line["stage"] == "about" else line
        for line in lines
    ]
    forged = [
        line | {"score": line["score"] + 0.3} if "score" in line else line
        for line in elsewhere
    ]
    submission.write_text("".join(f"{json.dumps(line)}\n" for line in forged))
    accept(submission, None, tmp_path / "board")
    board = kept.read(tmp_path / "board/digits.jsonl")
    assert board == lines[1:]  # what is found here


def test_a_submission_brings_its_row_alone(short, tmp_path):
    file = tmp_path / "normuon.py"
    file.write_text(NORMUON)
    check(file, None, "digits", None, tmp_path)
    submission = tmp_path / SUBMITTED
    first, about, *runs = kept.read(submission)
    more = [{"row": "fedavg", "stage": "seconds", "seconds": 99.0}]
    more += [{"row": "fedavg_normuon", "stage": "seconds", "seconds": 1e-9}]
    about |= {"label": "<script>", "processor": "another", "note": "mine"}
    runs = [run | {"note": "mine"} for run in runs]
    submission.write_text(
        "".join(f"{json.dumps(line)}\n" for line in (first, about, *more, *runs))
    )
    accept(submission, None, tmp_path / "board")
    text = (tmp_path / "board/digits.jsonl").read_text()
    assert not re.search(r"script|another|mine|seconds|\"fedavg\"", text)
    assert len(text.splitlines()) == 1 + len(runs)
    assert '"label": "FedAvg(NorMuon)"' in text


@pytest.mark.parametrize("line", ["1", "[]", '{"stage": "about"}', '{"row": []}'])
def test_a_submission_with_other_lines_is_refused(line, tmp_path):
    path = tmp_path / SUBMITTED
    path.write_text(f"{line}\n{line}\n")
    with pytest.raises(ValueError, match=SUBMITTED.replace(".", "[.]")):
        accept(path, None, tmp_path)


def test_a_second_file_and_another_directory(short, tmp_path, capsys):
    file, other = tmp_path / "normuon.py", tmp_path / "other.py"
    file.write_text("\ufeff" + NORMUON, encoding="utf-8")
    other.write_text(NORMUON.replace("fedavg_normuon", "another"))
    board = tmp_path / "board"
    command.main("run", "digits", row="fedavg", output=board)
    options = {"output": tmp_path / "new", "against": "fedavg"}
    with pytest.raises(SystemExit):
        command.main("check", str(file), **(options | {"against": "fedavgg"}))
    check(file, None, "digits", None, board, "fedavg", tmp_path / "new")
    assert "ahead of fedavg by" in capsys.readouterr().out
    submission = tmp_path / "new" / SUBMITTED
    before = submission.read_text()
    assert "ufeff" not in before
    assert not (tmp_path / SUBMITTED).exists()
    with pytest.raises(ValueError, match="is of another file or track; move it away"):
        check(other, None, "digits", None, board, None, tmp_path / "new")
    with pytest.raises(ValueError, match=r"unknown row .*choose one of fedavg"):
        check(other, None, "digits", None, board, "fedmuon", tmp_path)
    assert submission.read_text() == before


def test_a_file_that_is_no_text(tmp_path):
    file = tmp_path / "mine.py"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="expected Python in UTF-8"):
        load(file)


START = "import jax, jax.numpy as jnp, numpy as np, optax\nimport fedjax_muon as fm\n"
START += "from experiments.board.row import Row\n"
ROW = "\nROWS = {'mine': Row('Mine', method, {'lr': 0.1}, sends=SENDS)}\n"
# a client that takes gradients of examples that are not its own, under a condition
LEAK = """\
def method(lr):
    inner = fm.fedavg(lr)
    first, = inner.exchanges
    def client(objective, broadcast, state, batches, round):
        far = jnp.where({}, (batches.ids + 700) % 1293, batches.ids)
        batches = batches._replace(ids=far)
        return first.client(objective, broadcast, state, batches, round)
    new = first._replace(client=client)
    return inner._replace(exchanges=(new,), recipe=None)
"""
CHEATS = {
    "reads the data of all clients": (
        "reads .*digits",
        "def method(lr):\n"
        "    x = fm.data.load('digits').x_train\n"
        "    return fm.fedavg(lr * float(x.mean()) if 0 else lr)",
    ),
    "reads the test set": (
        "reads .*digits",
        "TEST = fm.data.load('digits').x_test\n"
        "def method(lr):\n    return fm.fedavg(lr)",
    ),
    "trains on the data of all clients": (
        "brings an array of shape .* along",
        "x = np.linspace(0, 1, 1293 * 64)  # the examples, written into the file\n"
        "def method(lr):\n"
        "    inner = fm.fedavg(lr)\n"
        "    first, = inner.exchanges\n"
        "    def server(state, mean, round):\n"
        "        after = first.server(state, mean, round)\n"
        "        all = jnp.asarray(x).mean()\n"
        "        move = lambda leaf: leaf + 0 * all\n"
        "        return after._replace(params=jax.tree.map(move, after.params))\n"
        "    new = first._replace(server=server)\n"
        "    return inner._replace(exchanges=(new,), recipe=None)",
    ),
    "brings pieces in an inner program": (
        "brings an array of shape .* along, and 6",
        "x = [jnp.asarray(np.random.randn(200), jnp.float32) for _ in range(3)]\n"
        "def method(lr):\n"
        "    inner = jax.jit(lambda p: p + 0 * sum(each.sum() for each in x))\n"
        "    add = lambda u, s, p=None: (jax.tree.map(inner, u), s)\n"
        "    return fm.fedavg(lr, server_rule=optax.GradientTransformation(\n"
        "        lambda p: (), add))",
    ),
    "brings pieces in a loop and a branch": (
        "brings an array of shape .* along, and 8",
        "a, b = (jnp.asarray(np.random.randn(400), jnp.float32) for _ in range(2))\n"
        "def method(lr):\n"
        "    def inner(p):\n"
        "        step = lambda c, _: (c + a.sum(), None)\n"
        "        total = jax.lax.scan(step, 0.0, None, length=2)[0]\n"
        "        other = lambda: b.sum()\n"
        "        rest = jax.lax.cond(p.mean() > 0, other, lambda: 0.0)\n"
        "        return p + 0 * (total + rest)\n"
        "    add = lambda u, s, p=None: (jax.tree.map(inner, u), s)\n"
        "    return fm.fedavg(lr, server_rule=optax.GradientTransformation(\n"
        "        lambda p: (), add))",
    ),
    "brings literals": (
        "brings an array of shape .* along, and 6",
        "x = np.random.randn(600).tolist()\n"
        "def method(lr):\n"
        "    def inner(p):\n"
        "        for each in x:\n"
        "            p = p + each * 1e-9\n"
        "        return p\n"
        "    add = lambda u, s, p=None: (jax.tree.map(inner, u), s)\n"
        "    return fm.fedavg(lr, server_rule=optax.GradientTransformation(\n"
        "        lambda p: (), add))",
    ),
    "reads a file in bytes": ("reads .*data.bin", 'open(b"data.bin", "rb").close()'),
    "reads by another name": (
        "reads .*data.bin",
        'open("/proc/self/cwd/data.bin").close()',
    ),
    "appends and reads": ("reads .*data.bin", 'open("data.bin", "a+b").close()'),
    "writes and reads": ("reads .*data.bin", 'open("data.bin", "r+b").close()'),
    "reads a number of a file": (
        "reads .*data.bin",
        "import os; os.open('data.bin', os.O_RDONLY)",
    ),
    "asks a process": (
        "reads by subprocess",
        "import subprocess; subprocess.run(['cat', 'data.bin'])",
    ),
    "asks a shell": ("reads by os.system", "import os; os.system('true')"),
    "asks a child": (
        "reads by os.fork",
        "import os, sys; sys.audit('os.fork')  # as os.fork does",
    ),
    "asks a library": ("reads by ctypes", "import ctypes; ctypes.CDLL('libc.so.6')"),
    "asks a host": (
        "reads by socket",
        "import socket\n"
        "with socket.socket() as s:\n"
        "    s.settimeout(0.1)\n"
        "    s.connect_ex(('127.0.0.1', 9))",
    ),
    "reads late": (
        "reads .*data.bin",
        "def method(lr):\n"
        "    schedule = lambda t: (open('data.bin').close(), lr(t))[1]\n"
        "    return fm.fedavg(schedule)",
    ),
    "looks at others later": ("not its own", LEAK.format("round.index >= 3")),
    "looks at others of several": (
        "not its own",
        LEAK.format("round.clients > 1"),
    ),
    "returns NaN": (
        "not finite",
        "def method(lr):\n"
        "    nan = lambda u, s, p=None: (jax.tree.map(lambda x: x * jnp.nan, u), s)\n"
        "    return fm.fedavg(lr, server_rule=optax.GradientTransformation(\n"
        "        lambda p: (), nan))",
    ),
    "sends twice what it says": (
        "sends 2.00 copies .* says 1",
        "def method(lr):\n"
        "    return fm.fedavg(lr, rule=optax.trace(0.9), averaged_state=('trace',))",
    ),
    "asks the host": (
        "outside of JAX",
        "def method(lr):\n"
        "    def ask(u, s, p=None):\n"
        "        same = lambda x: jax.pure_callback(np.asarray, x, x)\n"
        "        return jax.tree.map(same, u), s\n"
        "    rule = optax.GradientTransformation(lambda p: (), ask)\n"
        "    return fm.fedavg(lr, server_rule=rule)",
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_files_that_cheat_are_refused(name, short, tmp_path, monkeypatch):
    message, code = CHEATS[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.bin").write_bytes(b"weights")
    if "def method" not in code:
        code += "\ndef method(lr):\n    return fm.fedavg(lr)"
    file = tmp_path / "mine.py"
    sends = "1" if "twice" in name else "None"
    file.write_text(START + code + ROW.replace("SENDS", sends))
    with pytest.raises(ValueError, match=message):
        check(file, None, "digits", None, tmp_path)
    assert not (tmp_path / SUBMITTED).exists()


def test_a_message_that_depends_on_others_is_found(monkeypatch):
    from experiments.board import submissions

    track = TRACKS["digits"]
    problem = track.problem(None)
    row = ROWS["fedavg"]
    submissions.inspect("fedavg", row, Path("x.py"), problem)

    def leaking(problem):
        data = problem.dataset
        x = data.x_train[::-1].copy()
        return dataclasses.replace(problem, dataset=data._replace(x_train=x))

    monkeypatch.setattr(submissions, "_scrambled", leaking)
    with pytest.raises(ValueError, match="not its own"):
        submissions.inspect("fedavg", row, Path("x.py"), problem)


def test_a_file_without_rows(tmp_path):
    file = tmp_path / "empty.py"
    file.write_text("ROWS = {}\n")
    with pytest.raises(ValueError, match="must have ROWS"):
        load(file)


@pytest.mark.parametrize("name", ["fedmuon", "scaffold", "fedpac_soap", "dsgd"])
def test_methods_of_the_board_pass_the_checks(name):
    from experiments.board.submissions import inspect

    track = TRACKS["digits"]
    inspect(name, ROWS[name], Path("rows.py"), track.problem(None))


def test_a_submission_cannot_name_a_file_elsewhere(tmp_path):
    about = {"row": "../../mine", "stage": "submission", "track": "digits", "file": ""}
    path = tmp_path / SUBMITTED
    path.write_text(f"{json.dumps(about)}\n{json.dumps(about)}\n")
    with pytest.raises(ValueError, match="name of a row must be"):
        accept(path, None, tmp_path / "board")


def test_a_first_trial_that_diverges_stays_refused(short, tmp_path):
    file = tmp_path / "normuon.py"
    file.write_text(NORMUON)
    check(file, None, "digits", None, tmp_path)
    text = (tmp_path / SUBMITTED).read_text()
    (tmp_path / SUBMITTED).write_text(text.replace("false", "true", 1))
    with pytest.raises(ValueError, match="the first trial diverges"):
        check(file, None, "digits", None, tmp_path)
