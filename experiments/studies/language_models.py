"""Optimizers of a small GPT: local steps, workers, and the bytes that they send.

    python -m experiments.studies.language_models
    python -m experiments.studies.language_models --part 0 --parts 2
    python -m experiments.studies.language_models --text letters/

A GPT of a quarter of a million parameters predicts the characters of Shakespeare's
plays, the longest of whose parts have a million. All methods train on the same number
of tokens, with the same tokens per step of all workers together: a worker's batch is 16
windows over the number of workers. Every worker has a piece of the text and takes part
in every round. Learning rates are chosen by validation with four workers and one seed,
on a grid that goes on until the best is inside; the table has five other seeds at these
rates. Finished runs are appended to a file, and left out the next time.

The claims are those of MuLoCo (Therien et al. 2025, arXiv:2505.23725).
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import matplotlib
import numpy as np
import optax

import fedjax_muon as fm
from experiments.arguments import call
from experiments.studies.tuned import read
from fedjax_muon.core import Algorithm
from fedjax_muon.data import natural
from fedjax_muon.data.loading import files_of
from fedjax_muon.runs import intervals, summary
from fedjax_muon.runs.intervals import half_width
from fedjax_muon.runs.style import (
    NOTE,
    Label,
    drawing,
    label_ends,
    styles,
)
from fedjax_muon.runs.summary import Point

matplotlib.use("Agg")

PLACE = Path("results/language_models")
LEAST = 20_000  # characters of a speaker of the plays
SHAPE = (96, 2, 4)  # width, depth and heads
WINDOW, BATCH, STEPS = 64, 16, 360  # of all workers together, and of each
WORKERS, TUNED_AT = (1, 2, 4, 8), 4
LOCAL_STEPS = (5, 30)
TUNING_SEED, SEEDS = 100, (0, 1, 2, 3, 4)
TITLE = "FedMuon with 5 local steps nearly matches data-parallel Muon"
FREE = 0.02  # bits per byte that count as nothing
CURVE = ("tokens", "bytes_up", "bytes_down", "test_bits_per_byte")
ADAM = optax.scale_by_adam(0.9, 0.99)
HIDDEN = fm.transforms.hidden_matrices


def adamw() -> Algorithm:
    """AdamW of the mean gradient, as an outer rule of clients that take one step."""
    decayed = optax.chain(ADAM, optax.add_decayed_weights(0.01))
    return fm.fedavg(1.0, server_lr=0.003, server_rule=decayed)


def muon() -> Algorithm:
    """Muon of the mean gradient."""
    scaled: dict[str, Any] = {"shape_scale": fm.transforms.spectral, "layout": HIDDEN}
    rule = fm.transforms.muon(0.9, rest=ADAM, **scaled)
    return fm.fedavg(1.0, server_lr=0.03, server_rule=rule)


class Entry(NamedTuple):
    """A method, and the rate that its grid begins with."""

    make: Callable[[], Algorithm]
    rates: tuple[float, ...]
    rate: str = "lr"  # the name of the hyperparameter


def muloco() -> Algorithm:
    """MuLoCo, which leaves embeddings to Adam as its authors do."""
    return fm.muloco(layout=HIDDEN)


def quantized() -> Algorithm:
    """MuLoCo whose messages have two bits per number, with error feedback."""
    return fm.compress(muloco(), fm.quantize(2), feedback=1.0)


ADAMS, MUONS = (0.001, 0.003, 0.01), (0.01, 0.03, 0.1)
METHODS = {
    "AdamW, data-parallel": Entry(adamw, ADAMS, "server_lr"),
    "Muon, data-parallel": Entry(muon, MUONS, "server_lr"),
    "FedAvg, Adam": Entry(lambda: fm.fedavg(rule=ADAM), ADAMS),
    "FedMuon": Entry(fm.fedmuon, MUONS),
    "DiLoCo": Entry(fm.diloco, ADAMS),
    "MuLoCo": Entry(muloco, MUONS),
    "MuLoCo, 2 bits": Entry(quantized, MUONS),
    "SparseLoCo": Entry(fm.sparseloco, ADAMS),
}
PARALLEL = ("AdamW, data-parallel", "Muon, data-parallel")


class Setting(NamedTuple):
    method: str
    workers: int
    steps: int  # local ones, in a round


def settings() -> Iterator[Setting]:
    """Every setting; data-parallel methods are the same for any number of workers."""
    for method in METHODS:
        for workers in (1,) if method in PARALLEL else WORKERS:
            for steps in (1,) if method in PARALLEL else LOCAL_STEPS:
                yield Setting(method, workers, steps)


def problem_of(dataset: Any, workers: int) -> fm.problems.Problem:
    model = lambda data: fm.models.GPT(data.tokens, WINDOW, *SHAPE)
    return fm.problems.text(dataset, clients=workers, model=model)


def trained(
    setting: Setting, dataset: Any, rates: tuple[float, ...], seeds: tuple[int, ...]
) -> list[Point]:
    """The runs of a setting, at all rates and seeds; several rates are extended."""
    entry = METHODS[setting.method]
    rounds = STEPS // setting.steps
    swept = fm.sweep(
        {"": entry.make()},
        problem_of(dataset, setting.workers),
        {entry.rate: rates},
        rounds=rounds,
        evaluate_every=max(1, rounds // 3),
        seeds=seeds,
        extend=len(rates) > 1,
        cells_at_once=1,
        progress=False,
        cohort=setting.workers,
        local_steps=setting.steps,
        batch_size=BATCH // setting.workers,
    )
    return swept[""].points


def runs(setting: Setting, dataset: Any, rates: dict[Any, float]) -> list[dict]:
    """The rows of a setting: a curve for every seed, at the chosen rate."""
    key = setting.method, setting.steps
    if key not in rates:
        at = setting._replace(workers=1 if setting.method in PARALLEL else TUNED_AT)
        entry = METHODS[setting.method]
        points = trained(at, dataset, entry.rates, (TUNING_SEED,))
        best = summary.best(points)
        assert best is not None
        rates[key] = best.hyper[entry.rate]
    (point,) = trained(setting, dataset, (rates[key],), SEEDS)
    about = setting._asdict() | {"lr": rates[key], "diverged": point.diverged}
    return [
        about | {"seed": seed} | {name: run[name].tolist() for name in CURVE}
        for seed, run in zip(SEEDS, point.runs, strict=False)
    ]


def dataset_of(text: str) -> Any:
    """The windows of a text, by characters; of the plays, the longest parts."""
    if text != "plays":
        return fm.data.from_text(text, window=WINDOW, tokenizer="characters")
    every = natural.texts_of_speakers(files_of("plays").paths)
    longest = {name: each for name, each in every.items() if len(each) >= LEAST}
    return fm.data.from_text(longest, window=WINDOW, tokenizer="characters")


def main(
    *, text: str = "plays", part: int = 0, parts: int = 1, output: Path = PLACE
) -> None:
    """Trains what is missing of one part of the settings.

    Args:
      text: A text file, a directory of text files, or plays.
    """
    path = output / f"{Path(text).name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    dataset, mine = dataset_of(text), [*settings()]
    methods = [*METHODS][part::parts]  # settings of a method share their rates
    done = lambda: {tuple(row[k] for k in Setting._fields) for row in read(path)}
    for setting in mine:
        if setting.method not in methods or tuple(setting) in done():
            continue
        rates = {(row["method"], row["steps"]): row["lr"] for row in read(path)}
        rows = runs(setting, dataset, rates)
        with path.open("a") as file:
            file.write("".join(f"{json.dumps(row)}\n" for row in rows))
        last = [row["test_bits_per_byte"][-1] for row in rows]
        print(*setting, rows[0]["lr"], f"{np.mean(last):.3f}", flush=True)
    if done() >= {tuple(setting) for setting in mine}:
        table(path)


def runs_of(rows: list[dict], setting: Setting) -> list[dict]:
    return [r for r in rows if tuple(r[k] for k in Setting._fields) == setting]


def ends(rows: list[dict], setting: Setting) -> np.ndarray:
    """The last bits per byte of the seeds of a setting."""
    return np.array([r["test_bits_per_byte"][-1] for r in runs_of(rows, setting)])


def shown(values: np.ndarray) -> str:
    return f"{values.mean():.3f} ± {half_width(values):.3f}"


def claims(rows: list[dict]) -> list[str]:
    """MuLoCo's claims: paired differences over seeds, and what they say."""
    at = lambda method, workers, steps: ends(rows, Setting(method, workers, steps))
    lines = []
    for steps in LOCAL_STEPS:
        for workers in WORKERS:
            less = at("DiLoCo", workers, steps) - at("MuLoCo", workers, steps)
            about = f"better than DiLoCo, workers: {workers}, local steps: {steps}"
            lines.append(_verdict(about, less))
        grown = [
            at(method, WORKERS[-1], steps) - at(method, WORKERS[0], steps)
            for method in ("DiLoCo", "MuLoCo")
        ]
        about = f"loses less than DiLoCo with more workers, local steps: {steps}"
        lines.append(_verdict(about, grown[0] - grown[1]))
        pair = [at(name, TUNED_AT, steps) for name in ("MuLoCo", "MuLoCo, 2 bits")]
        about = f"two bits cost less than {FREE:g}, workers: {TUNED_AT}, "
        about += f"local steps: {steps}"
        lines.append(_verdict(about, pair[0] - pair[1], free=True))
    return lines


def _verdict(about: str, gain: np.ndarray, *, free: bool = False) -> str:
    mean, half = gain.mean(), half_width(gain)
    words = "not decided"
    if mean - half > (-FREE if free else 0):
        words = "confirmed"
    elif mean + half < 0:
        words = "refuted"
    return f"| {about} | {shown(gain)} | {words} |"


def table(source: Path) -> None:
    """Writes the table and the figure of kept runs, next to them."""
    rows = read(source)
    lines = [
        f"# Language models on {source.stem}\n",
        "Bits per byte of held-out text after "
        f"{rows[0]['tokens'][-1]:,} tokens: mean ± "
        f"95% interval over {len(SEEDS)} seeds; MB: sent and received by all workers. "
        f"`python -m experiments.studies.language_models`, jax {jax.__version__}.\n",
        "| method | workers | local steps | learning rate | bits per byte | MB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for setting in settings():
        of = runs_of(rows, setting)
        sent = (of[0]["bytes_up"][-1] + of[0]["bytes_down"][-1]) / 1e6
        lines.append(
            f"| {setting.method} | {setting.workers} | {setting.steps} | "
            f"{of[0]['lr']:g} | {shown(ends(rows, setting))} | {sent:,.1f} |"
        )
    lines += ["\n| claim of MuLoCo | difference, bits per byte | verdict |"]
    lines += ["|---|---:|---|", *claims(rows)]
    source.with_suffix(".md").write_text("\n".join([*lines, ""]))
    draw(rows, source.with_suffix(".png"))


def draw(rows: list[dict], path: Path) -> None:
    """Draws the bits per byte by the number of workers, a panel for each number of
    local steps, beside data-parallel training; and by the megabytes sent."""
    looks = styles(METHODS)
    with drawing(path, (7.5, 9), title=TITLE) as figure:
        *panels, sent = figure.subplots(len(LOCAL_STEPS) + 1, 1, sharey=True)
        for axis, steps in zip(panels, LOCAL_STEPS, strict=True):
            _by_workers(axis, rows, steps, looks)
        _by_bytes(sent, rows, looks)
        figure.supylabel("bits per byte of held-out text", fontsize=9)
        note = f"means over {len(SEEDS)} seeds; bars: {intervals.WORDS}"
        figure.supxlabel(note, fontsize=7.5, color=NOTE)


def _by_workers(axis: Any, rows: list[dict], steps: int, looks: Any) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(WORKERS, [str(number) for number in WORKERS])
    axis.set(xlabel="workers", title=f"{steps} local steps per round")
    labels = []
    for method, look in looks.items():
        if method in PARALLEL:
            means = [ends(rows, Setting(method, 1, 1)).mean()] * len(WORKERS)
            axis.plot(WORKERS, means, lw=1, **look)
        else:
            of = [ends(rows, Setting(method, n, steps)) for n in WORKERS]
            means, halves = [x.mean() for x in of], [half_width(x) for x in of]
            axis.errorbar(WORKERS, means, halves, marker="o", ms=3, lw=1.3, **look)
        labels.append(Label(method, WORKERS[-1], means[-1], look["color"]))
    label_ends(axis, labels, 2.2)


def _by_bytes(axis: Any, rows: list[dict], looks: Any) -> None:
    axis.set_title(f"{TUNED_AT} workers, {LOCAL_STEPS[-1]} local steps")
    axis.set_xlabel("MB sent and received")
    labels = []
    for method, look in looks.items():
        if method in PARALLEL:
            continue
        runs = runs_of(rows, Setting(method, TUNED_AT, LOCAL_STEPS[-1]))
        # all seeds send as much
        moved = np.add(runs[0]["bytes_up"], runs[0]["bytes_down"])[1:] / 1e6
        bits = np.array([run["test_bits_per_byte"] for run in runs])[:, 1:]
        mean = intervals.curve(axis, moved, bits, marker="o", ms=3, lw=1.3, **look)
        reach = intervals.ends(bits[:, -1], 0.0, np.inf)
        labels.append(Label(method, moved[-1], mean[-1], look["color"], *reach))
    label_ends(axis, labels, 2.2)


if __name__ == "__main__":
    call(main, __doc__)
