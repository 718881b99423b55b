"""Every data set by its name."""

import difflib
import os
from functools import partial
from pathlib import Path

from fedjax_muon.data import cifar, embedded, idx, libsvm, prepared, text, tiny_imagenet
from fedjax_muon.data.dataset import Dataset, check, standardise
from fedjax_muon.data.source import File, Layout, Source, located, verify
from fedjax_muon.data.text import Encoder, read_text_set

DATA_DIR_VARIABLE = "FEDJAX_MUON_DATA"
PREPARED = "tfds:"  # prefix of the names of tensorflow-datasets

Directory = str | os.PathLike[str] | None

SENTENCES = {  # to train on and to test on, as published with GLUE and by UCI
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
        licence=prepared.GLUE_LICENCE if glue else "CC BY 4.0 (UCI)",
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
    """The data set `name`, checked and standardised (see `check`, `standardise`).

    `name` is one of NAMES, or "tfds:" and the name of a set that tensorflow-datasets
    has prepared in `data_dir` (see `prepare`). Files are looked for in `data_dir`, or
    where the environment variable FEDJAX_MUON_DATA points if it is None; in which
    folders there, and where they come from, NAMES has, and `fedjax-muon data NAME`
    shows. Those of which size or checksum are published must be these.

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
    raw = read(name, data_dir)
    scaled = name in NAMES and NAMES[name].scaled
    try:
        return check(raw) if scaled else standardise(check(raw))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def read(name: str, data_dir: Directory = None) -> Dataset:
    """What `load` standardises, pixels in uint8; the same arguments and errors."""
    if name.startswith(PREPARED):
        plain = name.removeprefix(PREPARED)
        return prepared.read_prepared(plain, data_directory(name, data_dir))
    source = source_of(name)
    directory = Path() if source.embedded else data_directory(name, data_dir)
    found = located(name, source, directory)
    verify(found)
    return found.layout.read(found.paths)


def source_of(name: str) -> Source:
    """What is known of a set; of "tfds:" sets in `prepared.SETS` alone.

    Raises `ValueError` for an unknown name.
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
            f"{name} is no set that an encoder is for; choose one of "
            f"{', '.join(text.SETS)}"
        )
    return check(read_text_set(name, data_directory(name, data_dir), encoder))


def prepare(name: str, data_dir: Directory = None) -> Path:
    """Downloads a set of tensorflow-datasets and converts it for `load("tfds:...")`.

    Needs the network and, unlike `load`, TensorFlow (the extra `prepare`). The prefix
    "tfds:" of `name` may be left out. Returns the folder.

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
            f"{DATA_DIR_VARIABLE} to the directory that holds them; how to get them: "
            "fedjax-muon data --list"
        )
    return Path(chosen).expanduser()
