"""Data sets by name."""

import difflib
import os
from functools import partial
from pathlib import Path

from fedjax_muon.core.reading import reading
from fedjax_muon.data import (
    cifar,
    embedded,
    idx,
    libsvm,
    natural,
    prepared,
    text,
    tiny_imagenet,
)
from fedjax_muon.data.dataset import Dataset, check, standardize
from fedjax_muon.data.source import (
    File,
    Layout,
    Source,
    located,
    verify,
    verify_rows,
)
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


def _of_sentences(name: str, row: text.TextSet) -> Source:
    examples = SENTENCES[name]
    rows = examples if len(row.files) == 2 else (sum(examples),)
    layout = Layout(
        files=tuple(
            File(file, rows=count) for file, count in zip(row.files, rows, strict=True)
        ),
        folders=row.folders,
        read=partial(read_text_set, name),
        url=row.url,
    )
    glue = row.folders[0].startswith("glue/")
    return Source(
        example="text",
        examples=examples,
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
    **natural.SETS,
}


def load(
    name: str, data_dir: Directory = None, *, encoder: Encoder | None = None
) -> Dataset:
    """Reads, checks and standardizes a data set.

    `fedjax-muon data NAME` shows the files of a data set and how to get them. Files
    whose size, checksum or number of examples is published are verified. Two kinds of
    data sets are not standardized: sentences, which become token ids, and LIBSVM's,
    which are already scaled.

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
    """
    raw, place = _read(name, data_dir, encoder)
    scaled = name in NAMES and NAMES[name].scaled
    try:
        checked = check(raw)
        return checked if scaled or encoder is not None else standardize(checked)
    except ValueError as error:
        # Token ids are the encoder's, not those of a file.
        stored = place is not None and encoder is None
        where = f"; correct or replace {place}" if stored else ""
        raise ValueError(f"{name}: {error}{where}") from error


def read(name: str, data_dir: Directory = None) -> Dataset:
    """Reads a data set as it is stored, without checks and standardization.

    Args:
      name: Name of the data set, as for `load`.
      data_dir: Directory with the files, as for `load`.

    Returns:
      The data set, with pixels in uint8.

    Raises:
      FileNotFoundError: If files are missing.
    """
    return _read(name, data_dir, None)[0]


def _read(
    name: str, data_dir: Directory, encoder: Encoder | None
) -> tuple[Dataset, Path | None]:
    """A data set as it is stored, and the folder or file that it comes from."""
    if encoder is not None and name not in text.SETS:
        raise ValueError(
            f"{name} does not take an encoder; choose one of {', '.join(text.SETS)}"
        )
    if name.startswith(PREPARED):
        plain, directory = name.removeprefix(PREPARED), data_directory(name, data_dir)
        raw = prepared.read_prepared(plain, directory)
        return raw, prepared.locate(plain, directory)
    source = source_of(name)
    if source.embedded:
        return source.layouts[0].read([]), None
    found = located(name, source, data_directory(name, data_dir))
    verify(found)
    if encoder is not None:
        raw = read_text_set(name, found.paths, encoder)
    else:
        with reading(found.folder, f"the files of {name}", found.layout.remedy):
            raw = found.layout.read(found.paths)
    verify_rows(found, raw)
    return raw, found.paths[0] if len(found.paths) == 1 else found.folder


def source_of(name: str) -> Source:
    """Describes a data set.

    Args:
      name: Name of the data set, as for `load`.

    Returns:
      The description; with "tfds:", it is almost empty for names outside
      `prepared.SETS`.
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


def prepare(name: str, data_dir: Directory = None) -> Path:
    """Downloads a data set of tensorflow-datasets and converts it for `load`.

    This needs the network and, unlike `load`, TensorFlow (the extra `prepare`).

    Args:
      name: Name of the data set, with or without the prefix "tfds:".
      data_dir: Directory for the files, as for `load`.

    Returns:
      The folder of the data set, which `load("tfds:...")` reads.
    """
    plain = name.removeprefix(PREPARED)
    return prepared.prepare(plain, data_directory(name, data_dir))


def data_directory(name: str, data_dir: Directory) -> Path:
    """Returns the directory with the files of data sets.

    Args:
      name: Name of the data set, for the error message.
      data_dir: The directory; by default, the environment variable FEDJAX_MUON_DATA.
    """
    chosen = data_dir or os.environ.get(DATA_DIR_VARIABLE)
    if not chosen:
        raise ValueError(
            f"{name} is stored in files: give data_dir or set the environment variable "
            f"{DATA_DIR_VARIABLE} to the directory that holds them; how to get them: "
            "fedjax-muon data --list"
        )
    return Path(chosen).expanduser()
