"""Scores of reconstructions against their formulas; the study's tables and figure."""

import csv
import itertools
import sys

import numpy as np
import pytest

from experiments.studies import reconstruction
from experiments.studies.reconstruction import MEAN, Picture, Row
from fedjax_muon.attacks import inversion
from fedjax_muon.attacks.inversion import Reconstruction, Score
from fedjax_muon.attacks.inversion.scores import CEILING
from fedjax_muon.privacy import Poisson, Rdp

pytestmark = pytest.mark.slow

DRAWS = np.random.default_rng(0)


def ssim_by_hand(a, b):
    """Wang et al. 2004 with uniform windows of 7 x 7 inside the image, unbiased."""
    c1, c2 = 0.01**2, 0.03**2
    values = []
    for i in range(a.shape[0] - 6):
        for j in range(a.shape[1] - 6):
            for k in range(a.shape[2]):
                u, v = (m[i : i + 7, j : j + 7, k].ravel() for m in (a, b))
                cov = np.cov(u, v)
                mean = (2 * u.mean() * v.mean() + c1) / (
                    u.mean() ** 2 + v.mean() ** 2 + c1
                )
                values.append(
                    mean * (2 * cov[0, 1] + c2) / (cov[0, 0] + cov[1, 1] + c2)
                )
    return np.mean(values)


@pytest.mark.parametrize("shape", [(8, 8, 1), (9, 10, 3)])
def test_psnr_and_ssim_by_hand(shape):
    a = DRAWS.uniform(size=shape)
    for b in (
        DRAWS.uniform(size=shape),
        np.clip(a + 0.1 * DRAWS.normal(size=shape), 0, 1),
    ):
        wanted = -10 * np.log10(np.mean((a - b) ** 2))
        np.testing.assert_allclose(inversion.psnr(a, b), wanted, rtol=1e-12)
        np.testing.assert_allclose(inversion.ssim(a, b), ssim_by_hand(a, b), rtol=1e-9)


def test_the_ceiling():
    a = DRAWS.uniform(size=(8, 8, 1))
    assert inversion.psnr(a, a) == CEILING
    assert inversion.psnr(a, a + 0.9e-5) == CEILING
    np.testing.assert_allclose(inversion.psnr(a, a + 2e-5), 100 - 20 * np.log10(2))
    assert inversion.ssim(a, a) == 1


def test_matching_is_the_best_of_all_orders():
    # its own draws: whichever tests came before, the order given is not the best
    x, guess = np.random.default_rng(1).uniform(size=(2, 4, 8, 8, 1))
    error = lambda order: ((x - guess[list(order)]) ** 2).sum()
    best = min(itertools.permutations(range(4)), key=error)
    assert best != tuple(range(4))
    assert tuple(inversion.matched(x, guess)) == best


def test_a_shuffled_batch_is_scored_with_its_labels():
    x, y = DRAWS.uniform(size=(4, 8, 8, 1)), np.array([3, 1, 4, 1])
    labels = np.eye(10)[[3, 1, 4, 2]]  # the last is wrong
    order = [2, 0, 3, 1]
    found = inversion.score(x, y, Reconstruction(x[order], labels[order]))
    assert found == Score(psnr=CEILING, ssim=1.0, labels=0.75)


def test_restored_images_are_cut_to_the_range():
    x, y = np.ones((1, 8, 8, 1)), np.array([0])
    x[0, :4] = 0
    far = Reconstruction(100 * (x - 0.5), np.eye(2)[[0]])
    assert inversion.score(x, y, far).psnr == CEILING


def test_mean_guess():
    x, y = DRAWS.uniform(size=(5, 8, 8, 1)), np.array([0, 2, 2, 2, 0])
    found = inversion.mean_guess(x, y, 4, 2)
    np.testing.assert_allclose(found.x, np.stack(2 * [sum(x) / 5]), rtol=1e-12)
    np.testing.assert_allclose(found.labels, 2 * [[0.4, 0, 0.6, 0]])


def test_refusals(monkeypatch):
    x, y, labels = np.ones((2, 8, 8, 1)), np.zeros(2, int), np.eye(3)[:2]
    for call, said in (
        (lambda: inversion.score(x, y, Reconstruction(x[:1], labels)), "one shape"),
        (
            lambda: inversion.score(x, y[:1], Reconstruction(x, labels)),
            r"labels must be \[2\]",
        ),
        (lambda: inversion.score(x, y, Reconstruction(x, labels[:1])), "restored ones"),
        (lambda: inversion.matched(x, x[:, :4]), "one shape"),
        (lambda: inversion.matched(y, y), "one shape"),
        (lambda: inversion.ssim(x[0, :6], x[0, :6]), "7 x 7 pixels, got"),
        (lambda: inversion.ssim(x[0, ..., 0], x[0, ..., 0]), "height, width, channels"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    monkeypatch.setitem(sys.modules, "skimage", None)
    for measure in (inversion.psnr, inversion.ssim):
        with pytest.raises(
            ImportError, match=r'pip install "scikit-image<0\.27,>=0\.26"'
        ):
            measure(x[0], 0 * x[0])


def test_pixels_of_the_study_are_those_of_the_source():
    from sklearn.datasets import load_digits

    source = reconstruction.images("digits", None)
    assert (source.x.min(), source.x.max(), source.classes) == (0, 1, 10)
    sixteenths = 16 * source.x.astype(np.float64)
    np.testing.assert_allclose(sixteenths, sixteenths.round(), atol=1e-5)
    known = {image.tobytes() for image in load_digits().images.astype(np.int8)}
    assert all(
        image.tobytes() in known
        for image in sixteenths[:20, ..., 0].round().astype(np.int8)
    )


def test_the_multiplier_reaches_epsilon(monkeypatch):
    monkeypatch.setattr(reconstruction, "Pld", Rdp)  # larger by less than half, fast
    z = reconstruction.multiplier(5 * 287 + 4, 16)
    assert 0.99 < Rdp().epsilon(Poisson(287, 16), z, 1000, 1e-5) <= 1


def rows():
    make = lambda attack, psnr: Row(
        4, "σ = 0", attack, 2, 4.7, Score(psnr=psnr, ssim=0.5, labels=0.25)
    )
    return [make("DLG", 30.0), make(reconstruction.KNOWN, 9.0), make(MEAN, 11.5)]


def test_the_table_and_the_file(tmp_path):
    head, _, line = reconstruction.table(rows())
    assert head == "| release | norm | DLG | cosine + TV | mean image |"
    cells = "**30.0** / 0.50 / 0.25 | 9.0 / 0.50 / known | 11.5 / 0.50 / 0.25"
    assert line == f"| σ = 0 | 4.7 | {cells} |"
    reconstruction.write(rows(), tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [float(row["psnr"]) for row in found] == [30.0, 9.0, 11.5]
    assert found[0]["attack"] == "DLG"


def test_the_figure(tmp_path):
    image = DRAWS.uniform(size=(8, 8, 1))
    pictures = [
        Picture(1, release, attack, repeat, image, image, 9.0)
        for release in ("σ = 0", "σ = 1, mean of 10", "STORM's d, σ = 0")
        for attack in ("analytic", "DLG", reconstruction.KNOWN, MEAN)
        for repeat in (0, 1)
    ]
    reconstruction.draw(pictures, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
