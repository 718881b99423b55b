"""Rows of others: a file is checked and run, and its runs are repeated and accepted."""

import contextlib
import dataclasses
import json
import math
import os
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from experiments.board import lines as kept, protocol
from experiments.board.protocol import Line
from experiments.board.row import Row, algorithm_of, check_name, check_row
from experiments.board.rows import ROWS
from experiments.board.tracks import TRACKS, Track, score_of
from fedjax_muon.core import Algorithm, check_choice
from fedjax_muon.files import reading
from fedjax_muon.problems import Problem
from fedjax_muon.runs import simulate
from fedjax_muon.runs.intervals import half_width
from fedjax_muon.runs.simulate import start_key
from fedjax_muon.simulation import Simulation

LARGEST = 500  # numbers that a method may bring along, all together
SUBMITTED = "submission.jsonl"
ACCEPTED = "rows"  # directory of the files of accepted rows
CODE = (".py", ".pyc", ".so", ".pyd", ".dll", ".dylib")
HARMLESS = ("/dev/null", "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo", "/sys/")
# audit events of what starts or calls something that is not watched
ELSEWHERE: tuple[str, ...] = ("subprocess", "os.system", "os.exec", "os.fork", "pty.")
ELSEWHERE += ("os.posix_spawn", "os.spawn", "ctypes.dlopen", "ctypes.dlsym")
ELSEWHERE += ("socket.", "mmap.")
_watching: list[list[str]] = []  # where what is read now is listed


def load(path: Path) -> dict[str, Row]:
    """The rows of a file, whose code runs here.

    Raises:
      ValueError: If it has none, or reads files.
    """
    text = text_of(path)
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


def text_of(path: Path) -> str:
    """The text of a method's file, without the mark that some editors begin it with."""
    with reading(path, "Python in UTF-8", "save it as UTF-8"):
        return path.read_text(encoding="utf-8-sig")


@contextlib.contextmanager
def _reads_no_files(path: Path) -> Iterator[None]:
    """Raises `ValueError` if files that are no code are opened within.

    It notices what an honest file does by mistake. It is no sandbox.
    """
    if not _watching:
        _watching.append([])  # audit hooks stay, so there is only one
        sys.addaudithook(_watch)
    seen: list[str] = []
    _watching.append(seen)
    try:
        yield
    finally:
        _watching.remove(seen)
    if seen:
        raise ValueError(f"{path} reads {seen[0]}; a row brings no data along")


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if len(_watching) < 2:
        return
    if event.startswith(ELSEWHERE) and arguments[:1] != (None,):
        _watching[-1].append(f"by {event}")
    if event != "open" or isinstance(arguments[0], int):
        return
    name, mode, flags = arguments
    name = os.path.realpath(os.fsdecode(name))  # not by another name, as in /proc
    own = name.startswith((sys.prefix, sys.base_prefix)) and "datasets" not in name
    own |= name.startswith((*HARMLESS, *_caches()))
    writes = flags & os.O_ACCMODE == os.O_WRONLY
    if mode is not None:
        writes = "r" not in mode and "+" not in mode
    if not (own or writes or name.endswith(CODE)):
        _watching[-1].append(name)


def _caches() -> tuple[str, ...]:
    """Where JAX keeps compiled programs, if it does."""
    place = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]  # run-time option
    return (os.path.realpath(place),) if place else ()


def inspect(
    name: str, row: Row, path: Path, problem: Problem, track: Track | None = None
) -> None:
    """Raises `ValueError` for a method that depends on more than a client's examples.

    Args:
      path: The file, for messages.
      problem: On which it is tried.
      track: Whose whole run is tried; without one, two rounds of a single client are.
    """
    rounds = track.rounds_of(row, problem) if track else 2
    with _reads_no_files(path):
        whole = _of_first(row, problem, problem, track)
        usual: Any = ()
        if track is not None:  # what all methods have there
            usual = _numbers(_of_first(ROWS[track.baseline], problem, problem, track))
        found = _numbers(whole, name)
        shapes = [shape for key, shape in found.items() if key not in usual]
        if (total := sum(map(math.prod, shapes))) > LARGEST:
            raise ValueError(
                f"{name}: the method brings an array of shape "
                f"{max(shapes, key=math.prod)} along, and {total} numbers in all; at "
                f"most {LARGEST} are allowed, since they may be data"
            )
        if row.sends is not None:
            _check_sent(name, row, _alone(row, problem))
        first = _trained(whole, rounds)
        again = _trained(_of_first(row, problem, _scrambled(problem), track), rounds)
    if not all(np.isfinite(leaf).all() for leaf in first):
        raise ValueError(
            f"{name}: parameters are not finite after a run whose clients all have the "
            "examples of the first; begin the search at a lower rate"
        )
    if not all(map(np.array_equal, first, again)):
        raise ValueError(
            f"{name}: what a client sends depends on examples that are not its own"
        )


def _of_first(
    row: Row, problem: Problem, data: Problem, track: Track | None
) -> Simulation:
    """A row on a track, all of whose clients have the examples of the first."""
    parts = problem.parts(0)
    if track is None:
        return _alone(row, dataclasses.replace(data, divided=lambda d, key: parts[:1]))
    same = dataclasses.replace(data, divided=lambda data, key: [parts[0]] * len(parts))
    return track.simulation(row, same, 0, track.variants[0])


def _alone(row: Row, problem: Problem) -> Simulation:
    """A simulation of the first client alone, for two rounds."""
    part = problem.parts(0)[0]
    task = problem.task
    if row.minimax and problem.public_task is not None:
        task = problem.public_task(problem.dataset)
    one = dataclasses.replace(
        problem, divided=lambda data, key: [part], task=task, public_task=None
    )
    other = {} if row.option is None else {"other": row.space[row.option]}
    algorithm: Any = algorithm_of(row, 2, lr=row.space["lr"], **other)
    if not isinstance(algorithm, Algorithm):
        one = dataclasses.replace(one, weights=lambda agents, key: np.ones((1, 1)))
        return simulate(algorithm, one, batch_size=8)
    return simulate(algorithm, one, cohort=1, local_steps=2, batch_size=8)


def _scrambled(problem: Problem) -> Problem:
    """The same, but for the examples that the first client does not have.

    Neither they nor their sums and shares stay as they were.
    """
    data, mine = problem.dataset, problem.parts(0)[0]
    other = np.setdiff1d(np.arange(len(data.y_train)), mine)
    x, y = np.array(data.x_train), np.array(data.y_train)
    x[other], y[other] = _changed(x[other], y[other])
    x_test, y_test = _changed(np.array(data.x_test), np.array(data.y_test))
    changed = data._replace(x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return dataclasses.replace(problem, dataset=changed)


def _changed(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Examples read from their ends, with the label of the first one."""
    return x.reshape(len(x), -1)[:, ::-1].reshape(x.shape), np.broadcast_to(
        y[:1], y.shape
    )


def _trained(simulation: Simulation, rounds: int) -> list[np.ndarray]:
    state, _ = simulation.train_rounds(simulation.init(start_key(0)), rounds)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]


def _numbers(simulation: Simulation, name: str = "") -> dict[Any, tuple[int, ...]]:
    """The shapes of the constants in all programs, by type and content.

    Raises `ValueError` for callbacks.
    """
    program, data, run = simulation.program, simulation.data, simulation.run
    start = lambda key: program.create(data, run, key)
    shapes = jax.eval_shape(start, start_key(0))
    begun, _ = jax.eval_shape(program.begin, data, run, shapes)
    traced = [jax.make_jaxpr(start)(start_key(0))]
    traced.append(jax.make_jaxpr(program.begin)(data, run, shapes))
    traced.append(jax.make_jaxpr(program.rounds)(data, run, begun, 1))
    given = {id(leaf) for leaf in jax.tree.leaves((data, run))}
    found = {}
    for value in (x for x in _constants(traced) if id(x) not in given):
        is_key = jax.dtypes.issubdtype(
            jax.numpy.result_type(value), jax.dtypes.prng_key
        )
        array = np.asarray(jax.random.key_data(value) if is_key else value)
        found[str(array.dtype), array.tobytes()] = array.shape
    if any("callback" in str(jaxpr) for jaxpr in traced):
        raise ValueError(f"{name}: the method calls functions outside of JAX")
    return found


def _constants(value: Any) -> Iterator[Any]:
    """The constants of a program and of those inside it, such as loops and branches."""
    if isinstance(value, ClosedJaxpr):
        yield from value.consts
        yield from _constants(value.jaxpr)
    elif isinstance(value, Jaxpr):
        for equation in value.eqns:
            yield from _constants([*equation.invars, *equation.params.values()])
        yield from _constants(value.outvars)
    elif isinstance(value, Literal):
        yield value.val
    elif isinstance(value, tuple | list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _constants(each)


def _check_sent(name: str, row: Row, simulation: Simulation) -> None:
    """Raises `ValueError` if messages are not as long as the row says."""
    params = jax.eval_shape(simulation.data.task.init, jax.random.key(0))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    (_, before), (_, after) = (simulation.meter.bytes_after(n, None) for n in (1, 2))
    sent = (after - before) / size
    assert row.sends is not None
    if abs(sent - row.sends) > 0.01:
        raise ValueError(
            f"{name}: a client sends {sent:.2f} copies of the parameters in a round, "
            f"the row says {row.sends:g}"
        )


def check(
    path: Path,
    only: str | None,
    on: str,
    data_dir: Path | None,
    board: Path,
    against: str | None = None,
    output: Path | None = None,
) -> None:
    """Checks a file, runs it on a track, and says where it stands.

    Args:
      only: Its row, if it has several.
      on: The track.
      board: Directory of the board's results.
      against: A row of the board that it is compared with too.
      output: Directory of the submission; by default that of the file.
    """
    rows = load(path)
    if only is None and len(rows) > 1:
        raise ValueError(f"{path} has several rows; choose one of {', '.join(rows)}")
    name = check_choice("row", only or next(iter(rows)), rows)
    track = TRACKS[check_choice("track", on, TRACKS)]
    if against is not None:
        check_choice("row", against, _means(board, on, name, track.seeds))
    row = rows[name]._replace(tracks=(on,))
    place = (output or path.parent) / SUBMITTED
    first = {"row": name, "stage": kept.SUBMISSION, "track": on, "file": text_of(path)}
    known = kept.read(place) if place.exists() else []
    if known and known[0] != first:
        raise ValueError(
            f"{place} is of another file or track; move it away, or write elsewhere "
            "with --output"
        )
    problem = track.problem(data_dir)
    print(f"checking {name} ...", flush=True)
    inspect(name, row, path, problem, track)
    if not known:
        place.parent.mkdir(parents=True, exist_ok=True)
        kept.append(place, first)
    total = len(protocol.TUNING_SEEDS) * track.trials + track.seeds
    done = sum(line["stage"] in (protocol.TRIAL, protocol.FINAL) for line in known)
    _check_first(name, known)
    for line in kept.finish(place, name, row, track, problem):
        done += 1
        print(f"{done} of {total} runs, {_words(line)}", flush=True)
        _check_first(name, [line] if done == 1 else [])
    print(standing(kept.lines_of(place, name), on, problem, board, against))
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


def standing(
    lines: Sequence[Line],
    on: str,
    problem: Problem,
    board: Path,
    against: str | None = None,
) -> str:
    """Where a finished row stands on a track, in words.

    Args:
      against: A row of the board that it is compared with too.
    """
    score = score_of(problem)
    own = np.array([line["score"] for line in kept.finals(lines)])
    means = _means(board, on, lines[0]["row"], len(own))
    words = [f"{score.words}: {_spread(own, score)}"]
    for base in dict.fromkeys((TRACKS[on].baseline, against)):
        if base in means:
            apart = score.sign * (own - means[base])
            words.append(f"ahead of {base} by {_spread(apart, score)}")
    ahead = sum(score.sign * (x.mean() - own.mean()) > 0 for x in means.values())
    words.append(f"place {ahead + 1} of {len(means) + 1} on {on}")
    diverged = sum(line["diverged"] for line in kept.finals(lines))
    if diverged:
        words.append(f"{diverged} of {len(own)} runs diverged")
    return "\n".join(words)


def _means(board: Path, on: str, name: str, seeds: int) -> dict[str, np.ndarray]:
    """The scores of the other rows of a track by seed."""
    path = board / f"{on}.jsonl"
    by_row: dict[str, list[Line]] = {}
    for line in kept.read(path) if path.exists() else []:
        by_row.setdefault(line["row"], []).append(line)
    runs = {row: kept.finals(lines) for row, lines in by_row.items() if row != name}
    return {
        row: np.array([line["score"] for line in each])
        for row, each in runs.items()
        if len(each) == seeds
    }


def _spread(values: np.ndarray, score: Any) -> str:
    factor = 100 if score.high == 1 else 1
    mean, half = factor * values.mean(), factor * float(half_width(values))
    return f"{mean:.2f} ± {half:.2f}"


def accept(path: Path, data_dir: Path | None, output: Path) -> None:
    """Runs the file of a submission again, and adds its row, as it is here.

    Nothing else of a submission stands on the board.

    Raises:
      ValueError: If it is not finished, or a run has another score on a processor of
        the same kind with the same versions.
    """
    with reading(path, "the lines of `check`", "run `check` again"):
        every = kept.read(path)
        if not every or every[0]["stage"] != kept.SUBMISSION:
            raise ValueError(f"{path} is no submission; `check` writes one")
        (first, about), lines = every[:2], every[1:]
        name, text = check_name(first["row"]), str(first["file"])
        on = check_choice("track", str(first["track"]), TRACKS)
    track, board = TRACKS[on], output / f"{on}.jsonl"
    if kept.lines_of(board, name):
        raise ValueError(f"{board} has a row {name}; submit it by another name")
    with tempfile.TemporaryDirectory() as place:
        file, repeated = Path(place) / f"{name}.py", Path(place) / SUBMITTED
        file.write_text(text, encoding="utf-8")
        row = load(file)[check_choice("row", name, load(file))]._replace(tracks=(on,))
        problem = track.problem(data_dir)
        here = kept.about(name, row, track, problem)
        inspect(name, row, file, problem, track)
        with reading(path, "runs of its row", "run `check` again"):
            for key in ("space", "rounds", "rules"):
                if about[key] != here[key]:
                    raise ValueError(f"{path}: {key} is {about[key]}, here {here[key]}")
            if protocol.asked(lines, row, track, score_of(problem).sign):
                raise ValueError(f"{path} lacks runs; finish it with `check`")
            same = all(about[key] == here[key] for key in ("processor", "versions"))
            known = {protocol.key_of(line): line for line in lines}
        for line in kept.finish(repeated, name, row, track, problem):
            print(f"repeating {_words(line)}", flush=True)
            theirs = known.get(protocol.key_of(line), line)
            if same and theirs != line:
                raise ValueError(
                    f"{path}: {_words(theirs)}, but here {_words(line)}, on the same "
                    "processor with the same versions"
                )
        lines = kept.read(repeated)
    output.mkdir(parents=True, exist_ok=True)
    with board.open("a") as out:
        out.write("".join(f"{json.dumps(line)}\n" for line in lines))
    (output / ACCEPTED).mkdir(exist_ok=True)
    (output / ACCEPTED / f"{name}.py").write_text(text, encoding="utf-8")
    kept.remember(output, name, on)
    print(standing(lines, on, problem, output))
    print(f"accepted: {name} on {on}")
