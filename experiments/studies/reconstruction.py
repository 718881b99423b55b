"""What a neighbour reconstructs of the examples behind a release.

    python -m experiments.studies.reconstruction  # digits
    python -m experiments.studies.reconstruction --dataset mnist --data-dir DATA

"DPMixSGD" shows in its Figure 1 that DLG fails on one release with noise of standard
deviation 1 in every coordinate. Here three attacks of `fedjax_muon.attacks.inversion`
are given releases as the library's estimators make them: gradients and STORM's
innovations with several levels of noise, means of many releases of the same examples,
and gradients clipped per example without noise and with that of epsilon 1. The model
has DLG's hidden sigmoids and weights uniform in +-0.5; the first layer's in +-4 /
sqrt(pixels), the same for 64 of them, lest sigmoids saturate on more. Pixels are in
0..1. On a shared machine set OPENBLAS_NUM_THREADS=1 and
XLA_FLAGS=--xla_cpu_multi_thread_eigen=false: threads that wait for each other took ten
times as long.
"""

import csv
import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
import tyro
from matplotlib.figure import Figure

from benchmarks.machine import machine
from fedjax_muon import data
from fedjax_muon.attacks import inversion
from fedjax_muon.attacks.inversion import Restored, Score, mean_guess, score
from fedjax_muon.core import Objective, tree
from fedjax_muon.decentralized.estimators import fresh, noisy, storm
from fedjax_muon.decentralized.gossip import Iteration
from fedjax_muon.decentralized.private_storm import private_gradient
from fedjax_muon.privacy.accounting import ADD_OR_REMOVE, Pld, solve
from fedjax_muon.privacy.sampling import Poisson
from fedjax_muon.reporting.plots import STYLE
from fedjax_muon.tasks.classification import Batch, classification, per_example

REPEATS = {1: 4, 4: 2, 16: 1}  # batches, by their size
SIGMAS = (0.0, 0.01, 0.1, 1.0)
AVERAGED = (10, 100)  # releases with sigma 1
LIMIT = 1.0  # C
AGENTS, STEPS, DELTA, EPSILON = 5, 1000, 1e-5, 1.0  # of the accounted run
BETA, LR = 0.1, 0.01  # of STORM
MEAN, KNOWN = "mean image", "cosine + TV"  # the latter is told the labels


class Sigmoids(nn.Module):
    """One hidden layer, on the flattened image."""

    classes: int
    hidden: int = 64

    @nn.compact
    def __call__(self, x):
        x = x.reshape(len(x), -1)
        hidden = nn.sigmoid(dense(self.hidden, 4 / math.sqrt(x.shape[1]))(x))
        return dense(self.classes, 0.5)(hidden)


def dense(width: int, reach: float) -> nn.Dense:
    """Weights uniform in +-reach, biases in +-0.5."""
    uniform = lambda r: (
        lambda *args: 2 * r * (nn.initializers.uniform(1.0)(*args) - 0.5)
    )
    return nn.Dense(width, kernel_init=uniform(reach), bias_init=uniform(0.5))


class Images(NamedTuple):
    x: np.ndarray  # [n, height, width, channels], in 0..1
    y: np.ndarray  # [n]
    classes: int


class Release(NamedTuple):
    name: str
    kind: str  # which of `gradients` it is
    # (params, batch, other batch, key) -> what the gradient takes, what is told
    tell: Callable[[Any, Batch, Batch, jax.Array], tuple[Any, Any]]


class Row(NamedTuple):
    batch: int
    release: str
    attack: str
    batches: int
    norm: float  # of what was told, mean over batches
    score: Score  # mean over batches


class Picture(NamedTuple):
    """One example and what was made of it."""

    batch: int
    release: str
    attack: str
    repeat: int
    truth: np.ndarray
    guess: np.ndarray
    psnr: float


def images(name: str, data_dir: Path | None) -> Images:
    """The training set with pixels in 0..1 again, in a fixed random order."""
    dataset = data.load(name, data_dir)
    low, high = dataset.x_train.min(), dataset.x_train.max()
    order = np.random.default_rng(0).permutation(len(dataset.y_train))
    x = (dataset.x_train[order] - low) / (high - low)
    return Images(x=x, y=dataset.y_train[order], classes=len(dataset.classes))


def multiplier(examples: int, batch: int) -> float:
    """z of noise inside with which STEPS batches of an agent have EPSILON."""
    sampling = Poisson(examples // AGENTS, batch)
    epsilon = lambda z: Pld().epsilon(sampling, z, STEPS, DELTA, ADD_OR_REMOVE)
    return solve(epsilon, EPSILON, 1e-3)


def gradients(model: nn.Module) -> dict[str, inversion.Gradient]:
    """What was told, as a function of the examples, by the kind of release."""
    gradient = inversion.cross_entropy_gradient(model)
    return {
        "gradient": gradient,
        "clipped": inversion.clipped(gradient, LIMIT),
        "innovation": inversion.innovation(gradient, 1 - BETA),
    }


def iteration(index: int, key) -> Iteration:
    own, noise = jax.random.split(key)
    return Iteration(index=jnp.int32(index), key=own, noise=noise)


def plain(grad_fn, sigma: float, count: int = 1) -> Callable:
    """The mean of `count` noisy gradients of the same batch."""
    estimator, objective = noisy(fresh(), sigma), Objective(grad_fn)

    @jax.jit
    def many(params, batch, keys):
        begin = functools.partial(estimator.start, objective, params, batch)
        return jax.vmap(lambda key: begin(iteration(0, key))[0])(keys)

    def tell(params, batch, other, key):
        del other
        told = many(params, batch, jax.random.split(key, count))
        return params, inversion.average(told)

    return tell


def innovation(grad_fn, sigma: float) -> Callable:
    """d* = g* - (1 - beta) g*_ of STORM with noise outside, after one step."""
    estimator, objective = noisy(storm(BETA), sigma), Objective(grad_fn)

    @jax.jit
    def tell(params, batch, other, key):
        first, second = jax.random.split(key)
        begun, later = iteration(0, first), iteration(1, second)
        before, memory = estimator.start(objective, params, other, begun)
        moved = tree.sub_scaled(params, LR, before)
        now, _ = estimator.update(objective, memory, moved, batch, later)
        return (moved, params), tree.sub_scaled(now, 1 - BETA, before)

    return tell


def private(grad_fn, size: int, z: float) -> Callable:
    """The library's mechanism: clipped per example, noise of z LIMIT / size."""
    objective = Objective(grad_fn, example_grad=per_example(grad_fn))
    estimator = private_gradient(LIMIT, batch_size=size, inside=z)

    @jax.jit
    def tell(params, batch, other, key):
        del other
        return params, estimator.start(objective, params, batch, iteration(0, key))[0]

    return tell


def releases(grad_fn, size: int, z: float) -> list[Release]:
    """All of a batch of `size` examples, innovations of single examples only."""
    found = [Release(f"σ = {s:g}", "gradient", plain(grad_fn, s)) for s in SIGMAS]
    for k in AVERAGED:
        told = plain(grad_fn, 1.0, k)
        found.append(Release(f"σ = 1, mean of {k}", "gradient", told))
    for name, noise in ((f"clip {LIMIT:g}", 0.0), (f"clip, ε = {EPSILON:g}", z)):
        found.append(Release(name, "clipped", private(grad_fn, size, noise)))
    for sigma in SIGMAS if size == 1 else ():
        told = innovation(grad_fn, sigma)
        found.append(Release(f"STORM's d, σ = {sigma:g}", "innovation", told))
    return found


def attacks(gradient, shape, classes: int, size: int) -> dict[str, Callable]:
    """By name: (params, release, labels, key) -> Restored."""
    leakage = inversion.deep_leakage(
        gradient, shape, classes, size=size, steps=500, restarts=2
    )
    cosine = inversion.cosine_matching(gradient, shape)
    return {
        "analytic": lambda p, told, labels, key: inversion.analytic(told, shape, size),
        "DLG": lambda params, told, labels, key: leakage(params, told, key),
        KNOWN: cosine,
    }


def scored(x, y, restored: Restored) -> tuple[Score, np.ndarray]:
    """The score, and the guess at the first example."""
    place = inversion.matched(x, np.clip(restored.x, 0, 1))[0]
    return score(x, y, restored), np.clip(restored.x[place], 0, 1)


def audit(source: Images, size: int, repeats: int, z: float):
    """Rows and pictures of all attacks on all releases of batches of `size`."""
    shape = source.x.shape[1:]
    model = Sigmoids(source.classes)
    task = classification(model, shape)
    by_kind = {
        kind: attacks(gradient, shape, source.classes, size)
        for kind, gradient in gradients(model).items()
    }
    rows: list[Row] = []
    pictures: list[Picture] = []
    for release in releases(task.grad, size, z):
        found: dict[str, list[Score]] = {name: [] for name in by_kind[release.kind]}
        found[MEAN] = []
        norms = []
        for repeat in range(repeats):
            keys = jax.random.split(jax.random.key(repeat), 3)
            batch, other = (_batch(source, size, repeat + i) for i in (0, repeats))
            params = task.init(keys[0])
            points, told = release.tell(params, batch, other, keys[1])
            norms.append(float(optax.tree.norm(told)))
            labels = jax.nn.one_hot(batch.y, source.classes)
            guesses = {
                name: attack(points, told, labels, keys[2])
                for name, attack in by_kind[release.kind].items()
            }
            guesses[MEAN] = mean_guess(source.x, source.y, source.classes, size)
            for name, restored in guesses.items():
                result, guess = scored(batch.x, batch.y, restored)
                found[name].append(result)
                own = inversion.psnr(batch.x[0], guess)
                about = (size, release.name, name, repeat)
                pictures.append(Picture(*about, np.asarray(batch.x[0]), guess, own))
        for name, results in found.items():
            mean = Score(*np.mean(results, axis=0).tolist())
            rows.append(
                Row(size, release.name, name, repeats, float(np.mean(norms)), mean)
            )
    return rows, pictures


def _batch(source: Images, size: int, index: int) -> Batch:
    place = slice(index * size, (index + 1) * size)
    return Batch(
        x=jnp.asarray(source.x[place]),
        y=jnp.asarray(source.y[place]),
        weight=jnp.ones(size, jnp.float32),
    )


def table(rows: list[Row]) -> list[str]:
    """Releases of one batch size down, attacks across: PSNR / SSIM / labels."""
    names = list(dict.fromkeys(row.attack for row in rows))
    lines = ["| release | norm | " + " | ".join(names) + " |"]
    lines.append("|---|---:|" + "---:|" * len(names))
    for release in dict.fromkeys(row.release for row in rows):
        line = {row.attack: row for row in rows if row.release == release}
        bar = line[MEAN].score.psnr
        cells = " | ".join(cell(line[name], bar) for name in names)
        lines.append(f"| {release} | {line[MEAN].norm:.3g} | {cells} |")
    return lines


def cell(row: Row, bar: float) -> str:
    """PSNR / SSIM / labels, the PSNR bold if it is above `bar`."""
    labels = "known" if row.attack == KNOWN else f"{row.score.labels:.2f}"
    decibels = f"{row.score.psnr:.1f}"
    first = f"**{decibels}**" if row.score.psnr > bar else decibels
    return f"{first} / {row.score.ssim:.2f} / {labels}"


def draw(pictures: list[Picture], path: Path) -> None:
    """A row for an example and an attack: the original, then what was made of it."""
    lines = [(1, attack, i) for attack in ("analytic", "DLG", KNOWN) for i in (0, 1)]
    lines += [(size, attack, 0) for size in (4, 16) for attack in ("DLG", KNOWN)]
    lines = [line for line in lines if any(p.batch == line[0] for p in pictures)]
    every = dict.fromkeys(p.release for p in pictures)
    hidden = f"σ = 1, mean of {AVERAGED[0]}"
    names = [n for n in every if n != hidden and not n.startswith("STORM")]
    find = {(p.batch, p.attack, p.repeat, p.release): p for p in pictures}
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        size = (1.15 * (len(names) + 2), 1.3 * len(lines) + 0.3)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(lines), len(names) + 2, squeeze=False)
        for axes, (batch, attack, repeat) in zip(panels, lines, strict=True):
            shown = [find[batch, attack, repeat, name] for name in names]
            mean = find[batch, MEAN, repeat, names[0]]
            entries = [(shown[0].truth, ""), (mean.guess, f"{mean.psnr:.1f} dB")]
            entries += [(p.guess, f"{p.psnr:.1f} dB") for p in shown]
            for axis, (image, text) in zip(axes, entries, strict=True):
                axis.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=1)
                axis.set_xlabel(text, fontsize=8, labelpad=1)
                axis.set(xticks=[], yticks=[])
            axes[0].set_ylabel(f"{attack}\nbatch of {batch}", fontsize=8)
        heads = ["original", MEAN, *(n.replace(", ", ",\n") for n in names)]
        for axis, head in zip(panels[0], heads, strict=True):
            axis.set_title(head, fontsize=9)
        figure.savefig(path, dpi=100)


def write(rows: list[Row], path: Path) -> None:
    """Every mean with all its digits."""
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow([*Row._fields[:-1], *Score._fields])
        out.writerows([*row[:-1], *row.score] for row in rows)


def main(
    dataset: str = "digits",
    data_dir: Path | None = None,
    output: Path = Path("results/privacy"),
) -> None:
    """Runs everything; writes reconstruction_DATASET.csv, .md and .png.

    Args:
      dataset: images in `fedjax_muon.data`: digits, mnist, fashion_mnist.
      data_dir: where its files are.
      output: directory.
    """
    began, name = time.perf_counter(), f"reconstruction_{dataset}"
    source = images(dataset, data_dir)
    lines = [f"# Reconstruction: {dataset}"]
    rows: list[Row] = []
    pictures: list[Picture] = []
    for size, repeats in REPEATS.items():
        z = multiplier(len(source.y), size)
        found, shown = audit(source, size, repeats, z)
        rows += found
        pictures += shown
        head = f"## Batches of {size} ({repeats} of them), z = {z:.3f}"
        lines += ["", head, "", *table(found)]
    about = machine("experiments.studies.reconstruction")
    lines += [
        "",
        "PSNR in dB / SSIM / share of right labels; exact images count as "
        f"{inversion.scores.CEILING:g} dB. {KNOWN} is told the labels. The mean image "
        "looks at no release; what is nearer is bold. σ is the standard deviation of "
        f"the noise in every coordinate; with a clip of C = {LIMIT:g} it is z C / b, "
        f"with ε = {EPSILON:g} (δ = {DELTA:g}) for {STEPS} Poisson batches of b of an "
        f"agent's {len(source.y) // AGENTS} examples.",
        "",
        f"`{about['command']}`, {time.perf_counter() - began:.0f} seconds, "
        f"{about['cores']} cores of {about['cpu']}, jax {about['jax']}.",
        "",
        f"![originals and reconstructions]({name}.png)",
        "",
    ]
    output.mkdir(parents=True, exist_ok=True)
    (output / f"{name}.md").write_text("\n".join(lines))
    write(rows, output / f"{name}.csv")
    draw(pictures, output / f"{name}.png")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
