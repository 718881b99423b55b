"""Why the best rate of FedMuon differs between tracks of the board.

    python -m experiments.studies.rates shapes     # scale of shapes, and width
    python -m experiments.studies.rates leaves     # what is no hidden matrix
    python -m experiments.studies.rates sizes      # steps, cohort, clients, rounds
    python -m experiments.studies.rates lengths    # of the mean of polar factors
    python -m experiments.studies.rates table      # of what was found

Trials are those of the board, with its validation seeds, at rates a factor of the root
of 3 apart. Finished trials are appended to results/tuning/why.jsonl.
"""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import optax

import fedjax_muon as fm
from experiments.arguments import call
from experiments.board import protocol, tracks
from experiments.board.row import Row
from experiments.board.tracks import TRACKS, Track
from experiments.board.tuning import Curve
from fedjax_muon import transforms
from fedjax_muon.runs.simulate import start_key
from fedjax_muon.transforms import hidden_matrices

PLACE = Path("results/tuning/why.jsonl")
RATES = (0.00577, 0.01, 0.0173, 0.03, 0.052, 0.09, 0.156, 0.27)
ADAM = optax.scale_by_adam(0.9, 0.99)
SCALES = {
    "none": transforms.unscaled,
    "sqrt(fan_out / fan_in)": transforms.spectral,
    "0.2 sqrt(max)": transforms.moonlight,
}
Question = Literal["shapes", "leaves", "sizes", "lengths", "table"]
Setting = tuple[str, Track, Any]  # a name, the track, and a rule or None


def scaled(scale: Any) -> optax.GradientTransformation:
    """Orthogonalizes and scales matrices."""
    return transforms.by_rank(
        optax.chain(transforms.orthogonalize(), transforms.scale_by_shape(scale))
    )


def apart(rest: optax.GradientTransformation) -> optax.GradientTransformation:
    """Orthogonalizes hidden matrices; embeddings, the head and vectors by rest."""
    matrices = transforms.orthogonalize(layout=hidden_matrices)
    return transforms.by_rank(matrices, rest, layout=hidden_matrices)


def shapes() -> Iterator[Setting]:
    for width in (32, 128, 512):
        mlp = fm.models.MLP(10, (width, width))
        made = lambda data_dir, mlp=mlp: tracks.labeled("digits", mlp, 0.1)
        track = TRACKS["digits"]._replace(problem=made)
        for name, scale in SCALES.items():
            yield f"width {width}, {name}", track, scaled(scale)


def leaves() -> Iterator[Setting]:
    head = {
        "head by Adam": apart(ADAM),
        "head by signs": apart(optax.scale_by_sign()),
        "head by SGD": apart(optax.identity()),
    }
    vectors = {
        "default": None,
        "vectors by Adam": transforms.by_rank(transforms.orthogonalize(), ADAM),
        "unit vectors": transforms.unit_directions(),
    }
    for name, rule in {
        **vectors,
        **head,
        "0.2 sqrt(max)": scaled(transforms.moonlight),
    }.items():
        yield f"plays, {name}", TRACKS["plays"], rule


def sizes() -> Iterator[Setting]:
    base: dict[str, Any] = {"cohort": 8, "local_steps": 5, "batch_size": 32}
    changes: list[tuple[int, float, dict[str, int]]] = [
        (100, 0.1, {}),
        (30, 0.1, {}),
        (300, 0.1, {}),
        (100, 0.1, {"local_steps": 1}),
        (100, 0.1, {"local_steps": 20}),
        (100, 0.1, {"cohort": 2}),
        (100, 0.1, {"cohort": 16}),
        (100, 1.0, {}),
    ]
    for rounds, alpha, changed in changes:
        name = ", ".join(
            [f"digits, {rounds} rounds, alpha {alpha:g}"]
            + [f"{key} {value}" for key, value in changed.items()]
        )
        mlp = fm.models.MLP(10, (64, 64))
        made = functools.partial(_digits, mlp, alpha)
        simulate = functools.partial(tracks.federated, **base | changed)
        yield (
            name,
            TRACKS["digits"]._replace(
                problem=made, rounds=rounds, simulate=simulate, fits=None
            ),
            None,
        )
    for rounds in (40, 160):
        yield f"plays, {rounds} rounds", TRACKS["plays"]._replace(rounds=rounds), None


def _digits(model: Any, alpha: float, data_dir: Path | None) -> Any:
    del data_dir
    return tracks.labeled("digits", model, 0.1, alpha=alpha)


SETTINGS: dict[str, Callable[[], Iterator[Setting]]] = {
    "shapes": shapes,
    "leaves": leaves,
    "sizes": sizes,
}


def trials(question: str) -> None:
    """Runs what is missing of a question."""
    known = [json.loads(line) for line in PLACE.open()] if PLACE.exists() else []
    done = {(line["setting"], line["lr"]) for line in known if "lr" in line}
    for name, track, rule in SETTINGS[question]():
        missing = [rate for rate in RATES if (name, rate) not in done]
        if not missing:
            continue
        row = Row(name, functools.partial(_fedmuon, rule), {"lr": 0.03})
        runs = protocol.Runs(name, row, track, track.problem(None))
        for rate in missing:
            found = [runs.trial({"lr": rate}, seed) for seed in protocol.TUNING_SEEDS]
            keep(
                question=question,
                setting=name,
                lr=rate,
                validation=[line["validation"] for line in found],
                diverged=sum(line["diverged"] for line in found),
            )


def _fedmuon(rule: Any, lr: Any) -> Any:
    return fm.fedmuon(lr=lr, rule=rule)


def lengths() -> None:
    """The norm of a round's change by the number of clients, of that of one client.

    Means over eight cohorts of each size in the round after ten rounds at 0.03, for
    each matrix with at least 8 rows and columns.
    """
    for name in ("digits", "plays", "tokens"):
        track = TRACKS[name]
        problem, clients = track.problem(None), CLIENTS[name]
        row = Row("FedMuon", lambda lr: fm.fedmuon(lr=lr), {"lr": 0.03})
        first = track.simulation(row, problem)
        state, _ = first.train_rounds(first.init(start_key(0)), 10)
        norms = {}
        for size in (size for size in (1, 2, 4, 8, 16) if size <= clients):
            resized = row._replace(sizes={"cohort": size})
            simulation = track.simulation(resized, problem)
            norms[size] = np.mean([_norms(simulation, state, i) for i in range(8)], 0)
            shares = [round(float(x), 4) for x in norms[size] / norms[1]]
            keep(question="lengths", setting=f"{name}, {size} clients", shares=shares)


CLIENTS = {"digits": 16, "plays": 16, "tokens": 4}


def _norms(simulation: Any, state: Any, seed: int) -> list[float]:
    """Of the changes of matrices in the next round, with a cohort of a seed."""
    before = jax.tree.map(np.asarray, state.params)
    start = jax.tree.map(jax.numpy.copy, state)._replace(key=jax.random.key(seed))
    after, _ = simulation.train_rounds(start, 1)
    change = jax.tree.map(lambda x, y: np.asarray(x) - y, after.params, before)
    wide = [x for x in jax.tree.leaves(change) if x.ndim == 2 and min(x.shape) >= 8]
    return [float(np.linalg.norm(x)) for x in wide]


def table() -> list[str]:
    """The best rate of every setting, and those that lose at most a point."""
    lines = [json.loads(line) for line in PLACE.open()]
    found: dict[tuple[str, str], dict[float, float]] = {}
    for line in lines:
        if "lr" in line:
            score = 0.0 if line["diverged"] else float(np.mean(line["validation"]))
            found.setdefault((line["question"], line["setting"]), {})[line["lr"]] = (
                score
            )
    text = [
        HEAD,
        "| question | setting | best rate | loses at most two points | score |",
    ]
    text.append("|---|---|---:|---:|---:|")
    for (question, setting), scores in found.items():
        rates = np.array(sorted(scores))
        values = np.array([scores[rate] for rate in rates])
        low, high = Curve(rates, 100 * (values.max() - values)).plateau(2.0)
        best = rates[int(np.argmax(values))]
        text.append(
            f"| {question} | {setting} | {best:g} | {low:.2g} to {high:.2g} | "
            f"{100 * values.max():.1f} |"
        )
    text += [
        "",
        LENGTHS,
        "| clients | least matrix | greatest matrix |",
        "|---|---:|---:|",
    ]
    for line in lines:
        if line["question"] == "lengths":
            shares = line["shares"]
            text.append(
                f"| {line['setting']} | {min(shares):.2f} | {max(shares):.2f} |"
            )
    return [*text, ""]


HEAD = """\
# Where the best rate of FedMuon lies

Validation scores in percent, means of two seeds, at eight rates from 0.00577 to 0.27
that fall to 0 by a cosine (`python -m experiments.studies.rates QUESTION`, AMD EPYC,
jax 0.10.2).
"""
LENGTHS = """\
Norm of the change of a round by the number of clients, in that of one client: means
over eight cohorts, after ten rounds at 0.03.
"""


def keep(**line: Any) -> None:
    with PLACE.open("a") as file:
        file.write(f"{json.dumps(line)}\n")
    print(*line.values(), flush=True)


def main(question: Question, /) -> None:
    """Runs the trials of a question.

    Args:
      question: What may change the best rate.
    """
    PLACE.parent.mkdir(exist_ok=True)
    if question == "table":
        PLACE.with_suffix(".md").write_text("\n".join(table()))
    elif question == "lengths":
        lengths()
    else:
        trials(question)


if __name__ == "__main__":
    call(main, __doc__)
