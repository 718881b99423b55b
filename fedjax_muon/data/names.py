"""Every data set by its name."""

import difflib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedjax_muon.data import prepared
from fedjax_muon.data.dataset import Dataset, check, standardise
from fedjax_muon.data.embedded import breast_cancer, digits
from fedjax_muon.data.idx import read_idx_set
from fedjax_muon.data.libsvm import SETS as LIBSVM
from fedjax_muon.data.libsvm import read_libsvm_set
from fedjax_muon.data.npz import read_npz
from fedjax_muon.data.text import SETS as TEXTS
from fedjax_muon.data.text import Encoder, read_text_set

DATA_DIR_VARIABLE = "FEDJAX_MUON_DATA"
PREPARED = "tfds:"  # prefix of the names of tensorflow-datasets

Directory = str | os.PathLike[str] | None
Reader = Callable[[str, Directory], Dataset]


def _from_files(read: Callable[[str, Path], Dataset]) -> Reader:
    return lambda name, data_dir: read(name, data_directory(name, data_dir))


NAMES: dict[str, Reader] = {
    "digits": lambda name, data_dir: digits(),
    "breast_cancer": lambda name, data_dir: breast_cancer(),
    "mnist": _from_files(read_idx_set),
    "fashion_mnist": _from_files(read_idx_set),
    "cifar10": _from_files(partial(read_npz, num_classes=10, tfds_name="cifar10")),
    "cifar10_subset": _from_files(
        partial(read_npz, num_classes=10, tfds_name="cifar10")
    ),
    "cifar100": _from_files(partial(read_npz, num_classes=100, tfds_name="cifar100")),
    **{name: _from_files(read_text_set) for name in TEXTS},
    **{name: _from_files(read_libsvm_set) for name in LIBSVM},
}


def load(
    name: str, data_dir: Directory = None, *, encoder: Encoder | None = None
) -> Dataset:
    """The data set `name`, checked and standardised (see `check`, `standardise`).

    `name` is one of NAMES, or "tfds:" and the name of a set that tensorflow-datasets
    has prepared in `data_dir` (see `prepare`). Files are looked for in `data_dir`, or
    where the environment variable FEDJAX_MUON_DATA points if it is None:

    * mnist, fashion_mnist: the four original IDX files, .gz or not, in
      data_dir/name or data_dir itself;
    * cifar10, cifar10_subset, cifar100: data_dir/name.npz (see `read_npz`);
    * sst2, cola, mrpc, qqp, qnli, rte, mnli: train.tsv and dev.tsv, of mnli
      dev_matched.tsv, of GLUE in data_dir/glue/SST-2 and so on, with or without glue
      (see `read_text_set`);
    * yelp_labelled: data_dir/yelp_labelled_uci/yelp_labelled.txt;
    * a8a, a9a, ijcnn1: LIBSVM's two files in data_dir/libsvm (see `read_libsvm_set`);
    * tfds:name: data_dir/name (see `read_prepared`);
    * digits, breast_cancer: none, they come with scikit-learn.

    Sentences are not standardised, they are token ids (see `text.encode`), nor are
    LIBSVM's sets, which are scaled in their files. Sets of sentences, but for those of
    tensorflow-datasets, become the ids of another vocabulary by an `encoder`.

    Raises:
      ValueError: for an unknown name, a missing `data_dir`, damaged data, or an encoder
        for anything but sentences.
      FileNotFoundError: if the files are not there.
    """
    if encoder is not None:
        return _encoded(name, data_dir, encoder)
    if name.startswith(PREPARED):
        plain = name.removeprefix(PREPARED)
        raw = prepared.read_prepared(plain, data_directory(name, data_dir))
    elif name in NAMES:
        raw = NAMES[name](name, data_dir)
    else:
        nearest = difflib.get_close_matches(name, NAMES, n=len(NAMES), cutoff=0)
        raise ValueError(
            f"unknown data set {name!r}; choose one of {', '.join(nearest)}, or "
            f"{PREPARED}<name> for one that tensorflow-datasets has prepared"
        )
    try:
        return check(raw) if name in LIBSVM else standardise(check(raw))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _encoded(name: str, data_dir: Directory, encoder: Encoder) -> Dataset:
    if name not in TEXTS:
        raise ValueError(
            f"{name} is no set that an encoder is for; choose one of {', '.join(TEXTS)}"
        )
    return check(read_text_set(name, data_directory(name, data_dir), encoder))


def prepare(name: str, data_dir: Directory = None) -> Path:
    """Downloads a set of tensorflow-datasets and converts it for `load("tfds:...")`.

    Needs the network and, unlike `load`, TensorFlow (pip install
    "fedjax-muon[prepare]"). The prefix "tfds:" of `name` may be left out. Returns the
    folder.

    Raises:
      ValueError: without TensorFlow, or for a name that tensorflow-datasets does not
        know.
    """
    plain = name.removeprefix(PREPARED)
    return prepared.prepare(plain, data_directory(name, data_dir))


def data_directory(name: str, data_dir: Directory) -> Path:
    """`data_dir`, or where FEDJAX_MUON_DATA points; ValueError if neither is given."""
    chosen = data_dir or os.environ.get(DATA_DIR_VARIABLE)
    if not chosen:
        raise ValueError(
            f"{name} is stored in files: give data_dir or set the environment variable "
            f"{DATA_DIR_VARIABLE} to the directory that holds them"
        )
    return Path(chosen).expanduser()
