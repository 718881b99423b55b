"""Data sets by name."""

import difflib
import os
from functools import partial
from pathlib import Path

from fedjax_muon.data import cifar, embedded, idx, libsvm, prepared, text, tiny_imagenet
from fedjax_muon.data.dataset import Dataset, check, standardize
from fedjax_muon.data.source import File, Layout, Source, located, verify
from fedjax_muon.data.text import Encoder, read_text_set

DATA_DIR_VARIABLE = "FEDJAX_MUON_DATA"
PREPARED = "tfds:"  # prefix of the names of tensorflow-datasets

Directory = str | os.PathLike[str] | None

SENTENCES = {  # training and test examples, as published with GLUE and by UCI
    "sst2": (67_349, 872),
    "cola": (8_551, 1_043),
    "mrpc": (3_668, 408),
    "qqp": (363_846, 40_430),
    "qnli": (104_743, 5_463),
    "rte": (2_490, 277),
    "mnli": (392_702, 9_815),
    "yelp_labelled": (800, 200),
}


def _read_sentences(name: str, paths: list[Path]) -> Dataset:
    folder = next(f for f in text.SETS[name].folders if paths[0].parent.match(f))
    return read_text_set(name, paths[0].parents[len(Path(folder).parts)])


def _of_sentences(name: str, row: text.TextSet) -> Source:
    layout = Layout(
        files=tuple(File(file) for file in row.files),
        folders=row.folders,
        read=partial(_read_sentences, name),
        url=row.url,
    )
    glue = row.folders[0].startswith("glue/")
    return Source(
        example="text",
        examples=SENTENCES.get(name),
        classes=len(row.classes),
        license=prepared.GLUE_LICENSE if glue else "CC BY 4.0 (UCI)",
        layouts=(layout,),
    )


NAMES: dict[str, Source] = {
    **embedded.SETS,
    **idx.SETS,
    **cifar.SETS,
    **tiny_imagenet.SETS,
    **{name: _of_sentences(name, row) for name, row in text.SETS.items()},
    **libsvm.SETS,
}


def load(
    name: str, data_dir: Directory = None, *, encoder: Encoder | None = None
) -> Dataset:
    """Reads, checks and standardizes a data set.

    `fedjax-muon data NAME` shows the files of a data set and how to get them. Files
    whose size or checksum is published are verified. Two kinds of data sets are not
    standardized: sentences, which become token ids, and LIBSVM's, which are already
    scaled.

    Args:
      name: One of NAMES, or "tfds:" and the name of a data set that tensorflow-datasets
        has prepared in `data_dir` (see `prepare`).
      data_dir: Directory with the files; by default, the environment variable
        FEDJAX_MUON_DATA.
      encoder: Encoder for the token ids of sentences, such as that of
        `byte_pairs.roberta_encoder`; by default, ids of frequent words. Data sets of
        tensorflow-datasets do not take one.

    Returns:
      The data set, in float32 or int32 token ids, with int32 labels.

    Raises:
      FileNotFoundError: If files are missing.
      ValueError: If the name is unknown, no directory is given, data is damaged, or the
        data set does not take an encoder.

    Example:
      >>> digits = load("digits")
    """
    if encoder is not None:
        return _encoded(name, data_dir, encoder)
    raw = read(name, data_dir)
    scaled = name in NAMES and NAMES[name].scaled
    try:
        return check(raw) if scaled else standardize(check(raw))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def read(name: str, data_dir: Directory = None) -> Dataset:
    """Reads a data set as it is stored, without checks and standardization.

    Args:
      name: Name of the data set, as for `load`.
      data_dir: Directory with the files, as for `load`.

    Returns:
      The data set, with pixels in uint8.

    Raises:
      FileNotFoundError: If files are missing.
      ValueError: If the name is unknown, no directory is given, or data is damaged.
    """
    if name.startswith(PREPARED):
        plain = name.removeprefix(PREPARED)
        return prepared.read_prepared(plain, data_directory(name, data_dir))
    source = source_of(name)
    directory = Path() if source.embedded else data_directory(name, data_dir)
    found = located(name, source, directory)
    verify(found)
    return found.layout.read(found.paths)


def source_of(name: str) -> Source:
    """Describes a data set.

    Args:
      name: Name of the data set, as for `load`.

    Returns:
      The description; with "tfds:", it is almost empty for names outside
      `prepared.SETS`.

    Raises:
      ValueError: If the name is unknown.
    """
    if name.startswith(PREPARED):
        plain = name.removeprefix(PREPARED)
        unknown = Source("", None, 0, "see tensorflow-datasets", prepared=plain)
        return prepared.SETS.get(plain, unknown)
    if name not in NAMES:
        nearest = difflib.get_close_matches(name, NAMES, n=len(NAMES), cutoff=0)
        raise ValueError(
            f"unknown data set {name!r}; choose one of {', '.join(nearest)}, or "
            f"{PREPARED}<name> for one that tensorflow-datasets has prepared"
        )
    return NAMES[name]


def _encoded(name: str, data_dir: Directory, encoder: Encoder) -> Dataset:
    if name not in text.SETS:
        raise ValueError(
            f"{name} does not take an encoder; choose one of {', '.join(text.SETS)}"
        )
    return check(read_text_set(name, data_directory(name, data_dir), encoder))


def prepare(name: str, data_dir: Directory = None) -> Path:
    """Downloads a data set of tensorflow-datasets and converts it for `load`.

    This needs the network and, unlike `load`, TensorFlow (the extra `prepare`).

    Args:
      name: Name of the data set, with or without the prefix "tfds:".
      data_dir: Directory for the files, as for `load`.

    Returns:
      The folder of the data set, which `load("tfds:...")` reads.

    Raises:
      ValueError: If TensorFlow is missing, or tensorflow-datasets does not know the
        name.

    Example:
      >>> folder = prepare("tfds:cifar10", "data")  # doctest: +SKIP
    """
    plain = name.removeprefix(PREPARED)
    return prepared.prepare(plain, data_directory(name, data_dir))


def data_directory(name: str, data_dir: Directory) -> Path:
    """Returns the directory with the files of data sets.

    Args:
      name: Name of the data set, for the error message.
      data_dir: The directory; by default, the environment variable FEDJAX_MUON_DATA.

    Returns:
      The path of the directory.

    Raises:
      ValueError: If neither is given.
    """
    chosen = data_dir or os.environ.get(DATA_DIR_VARIABLE)
    if not chosen:
        raise ValueError(
            f"{name} is stored in files: give data_dir or set the environment variable "
            f"{DATA_DIR_VARIABLE} to the directory that holds them; how to get them: "
            "fedjax-muon data --list"
        )
    return Path(chosen).expanduser()
