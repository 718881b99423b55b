"""Reconstruction of examples from a release, by a neighbor.

    python -m experiments.studies.reconstruction  # digits
    python -m experiments.studies.reconstruction --dataset mnist --data-dir DATA

"DPMixSGD" shows in its Figure 1 that DLG fails on one release with noise of standard
deviation 1 in every coordinate. Here three attacks of `experiments.inversion`
run on releases of the library's estimators: gradients and STORM's innovations with
several levels of noise, means of many releases of the same examples, and gradients
clipped per example, without noise and with the noise of epsilon 1. The model has DLG's
hidden sigmoids, and weights uniform in +-0.5. The first layer's are uniform in +-4 /
sqrt(pixels), which is the same for 64 pixels and keeps sigmoids from saturating on
more. Pixels are in 0..1. On a shared machine set OPENBLAS_NUM_THREADS=1 and
XLA_FLAGS=--xla_cpu_multi_thread_eigen=false: with several threads it took ten times as
long there.
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
import numpy as np
import optax
import tyro

from benchmarks.machine import machine
from experiments import inversion, kept
from experiments.inversion import Reconstruction, Score, mean_guess, score
from fedjax_muon import data
from fedjax_muon.core import Objective, tree
from fedjax_muon.decentralized.estimators import fresh, noisy, storm
from fedjax_muon.decentralized.gossip import Iteration
from fedjax_muon.decentralized.private import private_gradient
from fedjax_muon.privacy import ADD_OR_REMOVE, Pld, Poisson, calibrate_noise
from fedjax_muon.reporting.style import drawing
from fedjax_muon.tasks.classification import classification
from fedjax_muon.tasks.task import Batch, per_example

REPEATS = {1: 4, 4: 2, 16: 1}  # number of batches by their size
SIGMAS = (0.0, 0.01, 0.1, 1.0)
AVERAGED = (10, 100)  # releases with sigma 1
LIMIT = 1.0  # C
AGENTS, STEPS, DELTA, EPSILON = 5, 1000, 1e-5, 1.0  # of the accounted run
BETA, LR = 0.1, 0.01  # of STORM
MEAN, KNOWN = "mean image", "cosine + TV"  # the latter knows the labels


class Sigmoids(nn.Module):
    """One hidden layer, on the flattened image."""

    classes: int
    hidden: int = 64

    @nn.compact
    def __call__(self, x):
        x = x.reshape(len(x), -1)
        hidden = nn.sigmoid(dense(self.hidden, 4 / math.sqrt(x.shape[1]))(x))
        return dense(self.classes, 0.5)(hidden)


def dense(width: int, bound: float) -> nn.Dense:
    """Returns a layer with weights uniform in +-bound, and biases in +-0.5."""
    uniform = lambda r: (
        lambda *args: 2 * r * (nn.initializers.uniform(1.0)(*args) - 0.5)
    )
    return nn.Dense(width, kernel_init=uniform(bound), bias_init=uniform(0.5))


class Images(NamedTuple):
    x: np.ndarray  # [n, height, width, channels], in 0..1
    y: np.ndarray  # [n]
    classes: int


class Release(NamedTuple):
    name: str
    kind: str  # key of `gradients`
    # (params, batch, other batch, key) -> arguments of the gradient, release
    make: Callable[[Any, Batch, Batch, jax.Array], tuple[Any, Any]]


class Row(NamedTuple):
    batch: int
    release: str
    attack: str
    batches: int
    norm: float  # of the release, mean over batches
    score: Score  # mean over batches


class Picture(NamedTuple):
    """One example and its reconstruction."""

    batch: int
    release: str
    attack: str
    repeat: int
    truth: np.ndarray
    guess: np.ndarray
    psnr: float


def images(name: str, data_dir: Path | None) -> Images:
    """Returns the training set with pixels in 0..1, in a fixed random order."""
    dataset = data.load(name, data_dir)
    low, high = dataset.x_train.min(), dataset.x_train.max()
    order = np.random.default_rng(0).permutation(len(dataset.y_train))
    x = (dataset.x_train[order] - low) / (high - low)
    return Images(x=x, y=dataset.y_train[order], classes=len(dataset.classes))


def multiplier(examples: int, batch: int) -> float:
    """Returns the noise multiplier z that gives an agent EPSILON after STEPS batches.

    The noise is inside the recursion.
    """
    sampling = Poisson(examples // AGENTS, batch)
    epsilon = lambda z: Pld().epsilon(sampling, z, STEPS, DELTA, ADD_OR_REMOVE)
    return calibrate_noise(epsilon, EPSILON, 1e-3)


def gradients(model: nn.Module) -> dict[str, inversion.Gradient]:
    """Returns releases as functions of the examples, by kind."""
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
    """Returns the release of the mean of `count` noisy gradients of one batch."""
    estimator, objective = noisy(fresh(), sigma), Objective(grad_fn)

    @jax.jit
    def many(params, batch, keys):
        begin = functools.partial(estimator.start, objective, params, batch)
        return jax.vmap(lambda key: begin(iteration(0, key))[0])(keys)

    def make(params, batch, other, key):
        del other
        released = many(params, batch, jax.random.split(key, count))
        return params, inversion.average(released)

    return make


def innovation(grad_fn, sigma: float) -> Callable:
    """Returns the release d* = g* - (1 - beta) g*_ of STORM, after one step.

    The noise is on the output.
    """
    estimator, objective = noisy(storm(BETA), sigma), Objective(grad_fn)

    @jax.jit
    def make(params, batch, other, key):
        first, second = jax.random.split(key)
        begun, later = iteration(0, first), iteration(1, second)
        before, memory = estimator.start(objective, params, other, begun)
        moved = tree.sub_scaled(params, LR, before)
        now, _ = estimator.update(objective, memory, moved, batch, later)
        return (moved, params), tree.sub_scaled(now, 1 - BETA, before)

    return make


def private(grad_fn, size: int, z: float) -> Callable:
    """Returns the library's release: clipped per example, noise of z LIMIT / size."""
    objective = Objective(grad_fn, example_grad=per_example(grad_fn))
    estimator = private_gradient(LIMIT, batch_size=size, noise_multiplier=z)

    @jax.jit
    def make(params, batch, other, key):
        del other
        return params, estimator.start(objective, params, batch, iteration(0, key))[0]

    return make


def releases(grad_fn, size: int, z: float) -> list[Release]:
    """Returns all releases of a batch of `size`; innovations for single examples."""
    found = [Release(f"σ = {s:g}", "gradient", plain(grad_fn, s)) for s in SIGMAS]
    for k in AVERAGED:
        make = plain(grad_fn, 1.0, k)
        found.append(Release(f"σ = 1, mean of {k}", "gradient", make))
    for name, noise in ((f"clip {LIMIT:g}", 0.0), (f"clip, ε = {EPSILON:g}", z)):
        found.append(Release(name, "clipped", private(grad_fn, size, noise)))
    for sigma in SIGMAS if size == 1 else ():
        make = innovation(grad_fn, sigma)
        found.append(Release(f"STORM's d, σ = {sigma:g}", "innovation", make))
    return found


def attacks(gradient, shape, classes: int, size: int) -> dict[str, Callable]:
    """Returns the attacks by name: (params, release, labels, key) -> Reconstruction."""
    leakage = inversion.deep_leakage(
        gradient, shape, classes, size=size, steps=500, restarts=2
    )
    cosine = inversion.cosine_matching(gradient, shape)
    return {
        "analytic": lambda p, seen, labels, key: inversion.analytic(seen, shape, size),
        "DLG": lambda params, seen, labels, key: leakage(params, seen, key),
        KNOWN: cosine,
    }


def scored(x, y, restored: Reconstruction) -> tuple[Score, np.ndarray]:
    """Returns the score, and the reconstruction of the first example."""
    first = inversion.matched(x, np.clip(restored.x, 0, 1))[0]
    return score(x, y, restored), np.clip(restored.x[first], 0, 1)


def audit(source: Images, size: int, repeats: int, z: float):
    """Returns rows and pictures of all attacks on all releases of batches of `size`."""
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
            points, released = release.make(params, batch, other, keys[1])
            norms.append(float(optax.tree.norm(released)))
            labels = jax.nn.one_hot(batch.y, source.classes)
            guesses = {
                name: attack(points, released, labels, keys[2])
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
    rows = slice(index * size, (index + 1) * size)
    return Batch(
        x=jnp.asarray(source.x[rows]),
        y=jnp.asarray(source.y[rows]),
        weight=jnp.ones(size, jnp.float32),
    )


def table(rows: list[Row]) -> list[str]:
    """Returns a table of releases and attacks as Markdown: PSNR / SSIM / labels."""
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
    """Formats PSNR / SSIM / labels, with the PSNR in bold if it is above `bar`."""
    labels = "known" if row.attack == KNOWN else f"{row.score.labels:.2f}"
    decibels = f"{row.score.psnr:.1f}"
    first = f"**{decibels}**" if row.score.psnr > bar else decibels
    return f"{first} / {row.score.ssim:.2f} / {labels}"


def pixels(image: np.ndarray) -> list[list[int]]:
    """Returns the shades of an image in 0..255, as JSON has them."""
    return np.rint(255 * np.squeeze(image)).astype(int).tolist()


def drawn(pictures: list[Picture]) -> list[dict[str, Any]]:
    """Returns the rows of the figure: one per example and attack.

    A row has a label and, by the heads of columns, images with what is below them.
    """
    lines = [(1, attack, i) for attack in ("analytic", "DLG", KNOWN) for i in (0, 1)]
    lines += [(size, attack, 0) for size in (4, 16) for attack in ("DLG", KNOWN)]
    lines = [line for line in lines if any(p.batch == line[0] for p in pictures)]
    every = dict.fromkeys(p.release for p in pictures)
    hidden = f"σ = 1, mean of {AVERAGED[0]}"
    names = [n for n in every if n != hidden and not n.startswith("STORM")]
    find = {(p.batch, p.attack, p.repeat, p.release): p for p in pictures}
    rows = []
    for batch, attack, repeat in lines:
        first = find[batch, attack, repeat, names[0]]
        shown = {MEAN: find[batch, MEAN, repeat, names[0]]}
        shown |= {name: find[batch, attack, repeat, name] for name in names}
        images = {"original": [pixels(first.truth), ""]} | {
            name: [pixels(p.guess), f"{p.psnr:.1f} dB"] for name, p in shown.items()
        }
        rows.append({"label": f"{attack}\nbatch of {batch}", "images": images})
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws the originals and their reconstructions."""
    columns = len(rows[0]["images"])
    with drawing(path, (1.15 * columns, 1.3 * len(rows) + 0.3)) as figure:
        panels = figure.subplots(len(rows), columns, squeeze=False)
        for axes, row in zip(panels, rows, strict=True):
            for axis, (image, text) in zip(axes, row["images"].values(), strict=True):
                axis.imshow(image, cmap="gray", vmin=0, vmax=255)
                axis.set_xlabel(text, fontsize=8, labelpad=1)
                axis.set(xticks=[], yticks=[])
            axes[0].set_ylabel(row["label"], fontsize=8)
        for axis, head in zip(panels[0], rows[0]["images"], strict=True):
            axis.set_title(head.replace(", ", ",\n"), fontsize=9)


def write(rows: list[Row], path: Path) -> None:
    """Writes all means with all digits."""
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow([*Row._fields[:-1], *Score._fields])
        out.writerows([*row[:-1], *row.score] for row in rows)


def main(
    dataset: str = "digits",
    data_dir: Path | None = None,
    output: Path = Path("results/privacy"),
) -> None:
    """Runs the study; writes reconstruction_DATASET.csv, .md, .json, .png.

    Args:
      dataset: Images in `fedjax_muon.data`: digits, mnist, fashion_mnist.
      data_dir: Directory of its files.
      output: Directory of the results.
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
        "PSNR in dB / SSIM / share of correct labels; exact images count as "
        f"{inversion.scores.CEILING:g} dB. {KNOWN} knows the labels. The mean image "
        "uses no release; closer reconstructions are bold. σ is the standard deviation "
        f"of the noise in every coordinate. With a clip of C = {LIMIT:g} it is "
        f"z C / b, which gives ε = {EPSILON:g} (δ = {DELTA:g}) for {STEPS} Poisson "
        f"batches of b of an agent's {len(source.y) // AGENTS} examples.",
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
    kept.write(output / f"{name}.json", {"rows": drawn(pictures)})
    draw(drawn(pictures), output / f"{name}.png")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
