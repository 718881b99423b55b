"""Datasets by name: found, read, checked, downloaded."""

import difflib
import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from fedjax_muon.data import prepared
from fedjax_muon.data.catalog import NAMES, PREPARED
from fedjax_muon.data.dataset import Dataset, check, standardize
from fedjax_muon.data.hugging_face import from_hf, is_saved
from fedjax_muon.data.image_folders import from_folder
from fedjax_muon.data.mapped import mapped
from fedjax_muon.data.source import Located, Source, located, verify, verify_rows
from fedjax_muon.data.text import Encoder
from fedjax_muon.data.user_files import from_csv, from_npz
from fedjax_muon.files import reading
from fedjax_muon.versions import check_installed

DATA_DIR_VARIABLE = "FEDJAX_MUON_DATA"
TFDS = "tfds:"  # prefix of the names of tensorflow-datasets
TABLES = (".csv", ".tsv", ".txt")  # suffixes, also of what gzip or bzip2 has packed
FILES = (*TABLES, *(f"{end}{p}" for end in TABLES for p in (".gz", ".bz2")), ".npz")
Directory = str | os.PathLike[str] | None


def load(
    name: str, data_dir: Directory = None, *, encoder: Encoder | None = None
) -> Dataset:
    """Reads, checks and standardizes a dataset.

    `fedjax-muon list` says how to get the files of a dataset. Files whose size or
    number of examples is published are verified. Two kinds of
    datasets are not standardized: sentences, which become token ids, and LIBSVM's,
    which are already scaled.

    Args:
      name: One of NAMES, or "tfds:" and the name of a dataset that tensorflow-datasets
        has prepared in `data_dir` (see `prepare`).
      data_dir: Directory with the files; by default, the environment variable
        FEDJAX_MUON_DATA.
      encoder: Encoder for the token ids of sentences; by default, ids of frequent
        words. Datasets of tensorflow-datasets do not take one.
    """
    raw, place = read(name, data_dir, encoder)
    try:
        checked = check(raw)._replace(name=name)
        scaled = source_of(name).scaled or encoder is not None
        return checked if scaled else standardize(checked)
    except ValueError as error:
        # Token ids are the encoder's, not those of a file.
        stored = place is not None and encoder is None
        where = f"; correct or replace {place}" if stored else ""
        raise ValueError(f"{name}: {error}{where}") from error


def is_of_user(dataset: str | os.PathLike[str]) -> bool:
    """Whether a dataset is the user's own file or directory, and not a name."""
    text = os.fspath(dataset)
    if text.lower().endswith(FILES):
        return True
    if text.startswith(TFDS) or text in NAMES:
        return False
    return "/" in text or Path(text).expanduser().exists()


def reader_of(place: Path) -> Callable[..., Dataset]:
    """What reads a user's file or directory."""
    if place.suffix.lower() == ".npz":
        return from_npz
    if place.name.lower().endswith(FILES) or place.is_file():
        return from_csv
    if (place / "x.npy").is_file():
        return mapped
    return from_hf if is_saved(place) else from_folder


def read(
    name: str, data_dir: Directory = None, encoder: Encoder | None = None
) -> tuple[Dataset, Path | None]:
    """A dataset as it is stored, and its folder or only file, if not in a package."""
    source_of(name)  # refuses what is no name
    if encoder is not None and (name not in NAMES or NAMES[name].example != "text"):
        texts = [each for each, source in NAMES.items() if source.example == "text"]
        raise ValueError(
            f"{name} does not take an encoder; choose one of {', '.join(texts)}"
        )
    if name.startswith(TFDS):
        directory = data_directory(name, data_dir)
        folder = prepared.locate(name.removeprefix(TFDS), directory)
        return prepared.read_prepared(folder), folder
    files = files_of(name, data_dir)
    verify(files)
    if encoder is not None:  # its errors are not those of files
        raw = files.layout.read(files.paths, encoder=encoder)
    else:
        with reading(files.folder, f"the files of {name}", files.layout.remedy):
            raw = files.layout.read(files.paths)
    verify_rows(files, raw)
    return raw, None if NAMES[name].package else files.place


def files_of(name: str, data_dir: Directory = None) -> Located:
    """Finds the files of a dataset of NAMES; errors are those of `load`."""
    source = source_of(name)
    return located(name, source, _directory(name, source, data_dir))


def place_of(name: str, data_dir: Directory = None) -> Path:
    """The folder or the only file of a dataset; errors are those of `load`."""
    if name.startswith(TFDS):
        directory = data_directory(name, data_dir)
        return prepared.locate(name.removeprefix(TFDS), directory)
    return files_of(name, data_dir).place


def source_of(name: str) -> Source:
    """Describes a dataset; with "tfds:", almost nothing of names outside PREPARED."""
    if not isinstance(name, str):
        raise TypeError(f"a dataset is loaded by name, such as 'digits', got {name!r}")
    if name.startswith(TFDS):
        plain = name.removeprefix(TFDS)
        unknown = Source("", None, 0, "see tensorflow-datasets", prepared=plain)
        return PREPARED.get(plain, unknown)
    if name not in NAMES:
        compact = {re.sub("[^a-z0-9]", "", known): known for known in sorted(NAMES)}
        given = re.sub("[^a-z0-9]", "", name.lower())
        near = [compact[x] for x in difflib.get_close_matches(given, compact, 1, 0.7)]
        meant = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(
            f"unknown dataset {name!r}{meant} Choose one of "
            f"{', '.join(sorted(NAMES))}, or {TFDS}<name> for a dataset prepared with "
            "tensorflow-datasets"
        )
    return NAMES[name]


def prepare(name: str, data_dir: Directory = None) -> Path:
    """Downloads a dataset of tensorflow-datasets and converts it for `load`.

    This needs the network and, unlike `load`, TensorFlow (the extra `prepare`).

    Returns:
      The folder of the dataset, which `load("tfds:...")` reads.
    """
    return prepared.prepare(name.removeprefix(TFDS), data_directory(name, data_dir))


def data_directory(name: str, data_dir: Directory) -> Path:
    """The directory with the files of datasets; `name` is for the error message."""
    chosen = data_dir or os.environ.get(DATA_DIR_VARIABLE)
    if not chosen:
        raise ValueError(
            f"{name} is stored in files: give data_dir or set the environment variable "
            f"{DATA_DIR_VARIABLE} to the directory that holds them; how to get them: "
            "fedjax-muon list"
        )
    return Path(chosen).expanduser()


def _directory(name: str, source: Source, data_dir: Directory) -> Path:
    """Where the files of a dataset are: in its package, or in the data directory."""
    if not source.package:
        return data_directory(name, data_dir)
    module = {"scikit-learn": "sklearn"}.get(source.package, source.package)
    check_installed(source.package, name, module=module)
    spec = find_spec(module)  # finds the files without an import
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])
