"""Rows of others: a file is checked and run, and its runs are repeated and accepted."""

import contextlib
import dataclasses
import json
import secrets
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.board import lines as kept, protocol
from experiments.board.protocol import Line, Runs
from experiments.board.row import Row, algorithm_of, check_name, check_row
from experiments.board.tracks import TRACKS, score_of
from fedjax_muon.core import Algorithm, check_choice
from fedjax_muon.experiments import simulate
from fedjax_muon.experiments.prepared import start_key
from fedjax_muon.problems import Problem
from fedjax_muon.reporting.intervals import half_width
from fedjax_muon.simulation import Simulation

LARGEST = 1000  # numbers in an array that a method may bring along
SUBMITTED = "submission.jsonl"
ACCEPTED = "rows"  # directory of the files of accepted rows
CODE = (".py", ".pyc", ".so", ".pyd", ".dll", ".dylib")
_watching: list[list[str]] = []  # where files that are read now are listed


def load(path: Path) -> dict[str, Row]:
    """The rows of a file, whose code runs here.

    Raises:
      ValueError: If it has none, or reads files.
    """
    text = path.read_text()
    module = types.ModuleType(f"board_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    with _reads_no_files(path):
        exec(compile(text, str(path), "exec"), module.__dict__)  # a row
    rows = getattr(module, "ROWS", None)
    if not isinstance(rows, dict) or not rows:
        raise ValueError(f"{path} must have ROWS, such as {{'mine': Row(...)}}")
    for name, row in rows.items():
        check_row(name, row)
    return rows


@contextlib.contextmanager
def _reads_no_files(path: Path) -> Iterator[None]:
    """Raises `ValueError` if files that are no code are opened within."""
    if not _watching:
        _watching.append([])  # audit hooks stay, so there is only one
        sys.addaudithook(_watch)
    _watching.append(seen := [])
    try:
        yield
    finally:
        _watching.remove(seen)
    if seen:
        raise ValueError(f"{path} reads {seen[0]}; a row brings no data along")


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or len(_watching) < 2 or not isinstance(arguments[0], str):
        return
    name, mode, _ = arguments
    own = (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev")
    code = name.endswith(CODE) or (name.startswith(own) and "datasets" not in name)
    if not code and "w" not in (mode or "r") and "a" not in (mode or "r"):
        _watching[-1].append(name)


def inspect(name: str, row: Row, path: Path, problem: Problem) -> None:
    """Raises `ValueError` for a method that depends on more than a client's examples.

    Args:
      path: The file, for messages.
      problem: Whose clients it is tried on.
    """
    with _reads_no_files(path):
        algorithm_of(row, 2, lr=row.space["lr"])
    one = _alone(row, problem, problem)
    _check_constants(name, one)
    if row.sends is not None:
        _check_sent(name, row, one)
    first = _trained(one)
    again = _trained(_alone(row, problem, _scrambled(problem)))
    if not all(np.isfinite(leaf).all() for leaf in first):
        raise ValueError(f"{name}: parameters are not finite after two rounds")
    if not all(map(np.array_equal, first, again)):
        raise ValueError(
            f"{name}: what a client sends depends on examples that are not its own"
        )


def _alone(row: Row, problem: Problem, data: Problem) -> Simulation:
    """A simulation of the first client alone, for two rounds."""
    part = problem.parts(0)[0]
    task = problem.task
    if row.minimax and problem.public_task is not None:
        task = problem.public_task(problem.dataset)
    one = dataclasses.replace(
        data, divided=lambda data, key: [part], task=task, public_task=None
    )
    algorithm: Any = algorithm_of(row, 2, lr=row.space["lr"])
    if row.option is not None:
        other = row.space[row.option]
        algorithm = algorithm_of(row, 2, lr=row.space["lr"], other=other)
    if not isinstance(algorithm, Algorithm):
        one = dataclasses.replace(one, weights=lambda agents, key: np.ones((1, 1)))
        return simulate(algorithm, one, batch_size=8)
    return simulate(algorithm, one, cohort=1, local_steps=2, batch_size=8)


def _scrambled(problem: Problem) -> Problem:
    """The same, but for the examples that the first client does not have."""
    data, mine = problem.dataset, problem.parts(0)[0]
    other = np.setdiff1d(np.arange(len(data.y_train)), mine)
    x, y = np.array(data.x_train), np.array(data.y_train)
    x[other], y[other] = x[other][::-1], y[other][::-1]
    changed = data._replace(
        x_train=x, y_train=y, x_test=data.x_test[::-1], y_test=data.y_test[::-1]
    )
    return dataclasses.replace(problem, dataset=changed)


def _trained(simulation: Simulation) -> list[np.ndarray]:
    state, _ = simulation.train_rounds(simulation.init(start_key(0)), 2)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]


def _check_constants(name: str, simulation: Simulation) -> None:
    """Raises `ValueError` for large arrays and callbacks in the programs."""
    program, data, run = simulation.program, simulation.data, simulation.run
    start = lambda key: program.create(data, run, key)
    create = jax.make_jaxpr(start)(start_key(0))
    shapes = jax.eval_shape(start, start_key(0))
    traced = [jax.make_jaxpr(program.begin)(data, run, shapes)]
    begun, _ = jax.eval_shape(program.begin, data, run, shapes)
    traced.append(jax.make_jaxpr(program.rounds)(data, run, begun, 1))
    given = {id(leaf) for leaf in jax.tree.leaves((data, run))}
    brought = [x for x in create.consts if id(x) not in given]
    for each in (*brought, *(x for jaxpr in traced for x in jaxpr.consts)):
        if np.size(each) > LARGEST:
            raise ValueError(
                f"{name}: the method brings an array of shape {np.shape(each)} along; "
                f"at most {LARGEST} numbers are allowed, since they may be data"
            )
    for jaxpr in traced:
        if "callback" in str(jaxpr):
            raise ValueError(f"{name}: the method calls functions outside of JAX")


def _check_sent(name: str, row: Row, simulation: Simulation) -> None:
    """Raises `ValueError` if messages are not as long as the row says."""
    params = jax.eval_shape(simulation.data.task.init, jax.random.key(0))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    (_, before), (_, after) = (simulation.bytes_after(n, None) for n in (1, 2))
    sent = (after - before) / size
    assert row.sends is not None
    if abs(sent - row.sends) > 0.01:
        raise ValueError(
            f"{name}: a client sends {sent:.2f} copies of the parameters in a round, "
            f"the row says {row.sends:g}"
        )


def check(
    path: Path, only: str | None, on: str, data_dir: Path | None, output: Path
) -> None:
    """Checks a file, runs it on a track, and says where it stands.

    Args:
      only: Its row, if it has several.
      on: The track.
      output: Directory of the board's results.
    """
    rows = load(path)
    if only is None and len(rows) > 1:
        raise ValueError(f"{path} has several rows; choose one of {', '.join(rows)}")
    name = check_choice("row", only or next(iter(rows)), rows)
    track = TRACKS[check_choice("track", on, TRACKS)]
    row = rows[name]._replace(tracks=(on,))
    problem = track.problem(data_dir)
    print(f"checking {name} ...", flush=True)
    inspect(name, row, path, problem)
    place = path.parent / SUBMITTED
    text = path.read_text()
    first = {"row": name, "stage": kept.SUBMISSION, "track": on, "file": text}
    known = kept.lines_of(place, name)
    if known and known[0] != first:
        raise ValueError(f"{place} is of another file or track; move it away")
    if not known:
        kept.append(place, first)
    total = len(protocol.TUNING_SEEDS) * track.trials + track.seeds
    done = sum(line["stage"] in (protocol.TRIAL, protocol.FINAL) for line in known)
    _check_first(name, known)
    for line in kept.finish(place, name, row, track, problem):
        done += 1
        print(f"{done} of {total} runs, {_words(line)}", flush=True)
        _check_first(name, [line] if done == 1 else [])
    print(standing(kept.lines_of(place, name), on, problem, output))
    print(f"written: {place}")


def _check_first(name: str, lines: Sequence[Line]) -> None:
    """Raises `ValueError` if the first trial of a search diverges."""
    first = next((line for line in lines if line["stage"] == protocol.TRIAL), None)
    if first is not None and first["diverged"]:
        raise ValueError(
            f"{name}: the first trial diverges, with {first['hyper']}; begin the "
            "search at a lower rate"
        )


def _words(line: Line) -> str:
    options = ", ".join(f"{name} {value:g}" for name, value in line["hyper"].items())
    score = line.get("validation", line.get("score"))
    what = "validation" if line["stage"] == protocol.TRIAL else "test"
    return f"{options}, seed {line['seed']}: {what} {score:.4g}"


def standing(lines: Sequence[Line], on: str, problem: Problem, output: Path) -> str:
    """Where a finished row stands on a track, in words."""
    score = score_of(problem)
    own = np.array([line["score"] for line in kept.finals(lines)])
    path = output / f"{on}.jsonl"
    board = kept.read(path) if path.exists() else []
    others = {line["row"] for line in board} - {lines[0]["row"]}
    means = {}
    for other in others:
        runs = kept.finals([line for line in board if line["row"] == other])
        if len(runs) == len(own):
            means[other] = np.array([line["score"] for line in runs])
    words = [f"{score.words}: {_spread(own, score)}"]
    if (base := TRACKS[on].baseline) in means:
        apart = score.sign * (own - means[base])
        words.append(f"ahead of {base} by {_spread(apart, score)}")
    ahead = sum(score.sign * (x.mean() - own.mean()) > 0 for x in means.values())
    words.append(f"place {ahead + 1} of {len(means) + 1} on {on}")
    diverged = sum(line["diverged"] for line in kept.finals(lines))
    if diverged:
        words.append(f"{diverged} of {len(own)} runs diverged")
    return "\n".join(words)


def _spread(values: np.ndarray, score: Any) -> str:
    factor = 100 if score.high == 1 else 1
    mean, half = factor * values.mean(), factor * float(half_width(values))
    return f"{mean:.2f} ± {half:.2f}"


def accept(path: Path, data_dir: Path | None, output: Path) -> None:
    """Repeats two runs of a submission, and adds its row to the board.

    Raises:
      ValueError: If it is not finished, or a run has another score here.
    """
    every = kept.read(path)
    if not every or every[0]["stage"] != kept.SUBMISSION:
        raise ValueError(f"{path} is no submission; `check` writes one")
    (first, about), lines = every[:2], every[1:]
    name, on = check_name(first["row"]), check_choice("track", first["track"], TRACKS)
    track, board = TRACKS[on], output / f"{on}.jsonl"
    if kept.lines_of(board, name):
        raise ValueError(f"{board} has a row {name}; submit it by another name")
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / f"{name}.py"
        file.write_text(first["file"])
        row = load(file)[name]._replace(tracks=(on,))
    problem = track.problem(data_dir)
    inspect(name, row, file, problem)
    here = kept.about(name, row, track, problem)
    for key in ("space", "rounds", "rules"):
        if about[key] != here[key]:
            raise ValueError(f"{path}: {key} is {about[key]}, here {here[key]}")
    if protocol.asked(lines, row, track, score_of(problem).sign):
        raise ValueError(f"{path} lacks runs; finish it with `check`")
    same = all(about[key] == here[key] for key in ("processor", "versions"))
    runs = Runs(name, row, track, problem)
    for line in _drawn(lines):
        print(f"repeating {_words(line)}", flush=True)
        _compare(line, runs, lines, same)
    output.mkdir(parents=True, exist_ok=True)
    with board.open("a") as out:
        out.write("".join(f"{json.dumps(line)}\n" for line in lines))
    (output / ACCEPTED).mkdir(exist_ok=True)
    (output / ACCEPTED / f"{name}.py").write_text(first["file"])
    kept.remember(output, name, on)
    print(f"accepted: {name} on {on}")


def _drawn(lines: Sequence[Line]) -> list[Line]:
    """A trial and a final run, which nobody can foresee."""
    return [
        secrets.choice([line for line in lines if line["stage"] == stage])
        for stage in (protocol.TRIAL, protocol.FINAL)
    ]


def _compare(line: Line, runs: Runs, lines: Sequence[Line], same: bool) -> None:
    train = runs.trial if line["stage"] == protocol.TRIAL else runs.final
    again = json.loads(json.dumps(train(line["hyper"], line["seed"])))
    if same and again != line:
        raise ValueError(
            f"{_words(line)}, but here {_words(again)}, on the same processor with the "
            "same versions"
        )
    if not same and line["stage"] == protocol.FINAL:
        scores = [each["score"] for each in kept.finals(lines)]
        if abs(again["score"] - line["score"]) > 2 * float(half_width(scores)):
            raise ValueError(f"{_words(line)}, but here {_words(again)}")
