"""The published files themselves, where FEDJAX_MUON_DATA says that they lie."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from fedjax_muon import data
from fedjax_muon.data import images, loading, text

pytestmark = pytest.mark.slow


def real(*files):
    """Paths of files that are too large, or not free, to be part of the tests."""
    directory = os.environ.get("FEDJAX_MUON_DATA")
    if directory is None:
        return pytest.mark.skip(reason="FEDJAX_MUON_DATA names no directory of data")
    missing = [file for file in files if not (Path(directory) / file).is_file()]
    return pytest.mark.skipif(
        bool(missing), reason=f"no {', '.join(missing)} in {directory}"
    )


REAL = Path(os.environ.get("FEDJAX_MUON_DATA", "."))
# As published with the dataset (zalandoresearch/fashion-mnist, README).
FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


def assert_moments(x, mean, std, places):
    """Mean and deviation of the pixels over 255, from exact counts of each value."""
    half = 0.5 * 10.0**-places
    value = np.arange(256) / 255
    for channel in range(x.shape[-1]):
        share = np.bincount(x[..., channel].ravel(), minlength=256) / x[..., 0].size
        center = share @ value
        assert abs(center - mean[channel]) < half
        assert abs(np.sqrt(share @ (value - center) ** 2) - std[channel]) < half


# examples of both parts, and the mean and deviation of each channel as published;
# those of CIFAR-100 since weiaicunzai/pytorch-cifar100 (conf/global_settings.py)
FASHION = "fashion_mnist", tuple(f"fashion_mnist/{file}" for file in FASHION_MD5)
MNIST = "mnist", tuple(f"mnist/{file}.gz" for file in images.IDX_FILES)
CIFAR = "cifar100", ("cifar100.npz",)
COLORS = [0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]


@pytest.mark.parametrize(
    ("name", "sizes", "mean", "std"),
    [
        pytest.param(name, sizes, *moments, marks=real(*files))
        for (name, files), sizes, moments in (
            (FASHION, (60000, 10000), ([0.2860], [0.3530])),
            (MNIST, (60000, 10000), ([0.1307], [0.3081])),
            (CIFAR, (50000, 10000), COLORS),
        )
    ],
)
def test_real_images(name, sizes, mean, std):
    raw = loading.read(name, REAL)[0]
    assert_moments(raw.x_train, mean, std, 4)
    loaded = data.load(name, REAL)
    assert (len(loaded.x_train), len(loaded.x_test)) == sizes
    # Published means and deviations are off by up to 0.5e-4, deviations are above 0.25
    # and results below 3: (0.5e-4 + 3 * 0.5e-4) / 0.25.
    expected = (raw.x_test[:500] / 255 - np.array(mean)) / std
    np.testing.assert_allclose(loaded.x_test[:500], expected, atol=4 * 0.5e-4 / 0.25)
    if name != "mnist":  # as many of every class
        each = sizes[0] // len(loaded.classes)
        assert np.bincount(loaded.y_train).tolist() == [each] * len(loaded.classes)


@real(*FASHION[1], *MNIST[1])
def test_real_idx_files_are_told_apart():
    for file, md5 in FASHION_MD5.items():
        content = (REAL / "fashion_mnist" / file).read_bytes()
        assert hashlib.md5(content).hexdigest() == md5
    for name, other in (("mnist", "fashion_mnist"), ("fashion_mnist", "mnist")):
        with pytest.raises(ValueError, match=f"this is {other}'s file"):
            data.load(name, REAL / other)


# As published with GLUE (those of qqp without the lines that are left out) and UCI's.
SENTENCES = {
    "sst2": (67349, 872),
    "cola": (8551, 1043),
    "mrpc": (3668, 408),
    "qqp": (363846, 40430),
    "qnli": (104743, 5463),
    "rte": (2490, 277),
    "mnli": (392702, 9815),
    "yelp_labelled": (800, 200),
}
POSITIVE = {"yelp_labelled": 400, "mrpc": 2474}  # published as well


def in_files(name):
    row = data.NAMES[name].layouts[0]
    return real(*(f"{row.folders[0]}/{file.name}" for file in row.files))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=in_files(n)) for n in SENTENCES]
)
def test_real_sentences(name):
    loaded = data.load(name, REAL)
    assert (len(loaded.x_train), len(loaded.x_test)) == SENTENCES[name]
    for x in (loaded.x_train, loaded.x_test):
        assert x.dtype == np.int32
        assert np.all(x[:, 0] != text.PADDING)
    assert loaded.y_train.sum() == POSITIVE.get(name, loaded.y_train.sum())


@real()
@pytest.mark.parametrize(
    ("name", "sizes", "positives"),
    [("a8a", (22696, 9865), 5506), ("ijcnn1", (49990, 91701), 4853)],
)
def test_real_tables_of_libsvm(name, sizes, positives):
    found = data.load(name, REAL)
    assert (len(found.x_train), len(found.x_test)) == sizes
    assert sizes == data.NAMES[name].examples
    assert found.y_train.sum() == positives
