"""Tiny valid files of every kind that this package reads, and how to read them."""

import bz2
import gzip
import io
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from fedjax_muon import data
from fedjax_muon.data import images
from fedjax_muon.data.source import File, Source
from tests.support.published import with_files

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
SMALL = IMAGES[:, :4, :5]
LABELS = np.array([0, 1, 2, 1, 0, 2, 0, 1, 2, 0], np.uint8)
TRAIN, TEST = slice(0, 6), slice(6, 10)
TEXT = "the hand on the sand and a thing in the end red and round ring"
WORDS = TEXT.split()

Arrays = dict[str, np.ndarray]


class Kind(NamedTuple):
    """A kind of files."""

    write: Callable[[Path], object]  # valid files, into a directory
    read: Callable[[Path], Arrays]
    exact: bool  # whether a checksum tells every change of the values


def _sentence(i: int) -> str:
    return " ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 6))


def _arrays(dataset: data.Dataset) -> Arrays:
    found = dataset._asdict()
    numbers = np.array([len(found.pop("classes")), found.pop("tokens")])
    return {"numbers": numbers} | {k: np.asarray(array) for k, array in found.items()}


def _load(name: str, folder: Path, source: Source | None = None) -> Arrays:
    """A set, by another description if one is given."""
    described = {} if source is None else {name: source}
    with mock.patch.dict(data.NAMES, described):
        return _arrays(data.load(name, folder))


def _load_as(name: str, files: dict[str, File], folder: Path) -> Arrays:
    """A set as if these files had been published."""
    known = lambda file: files.get(file.name, File(file.name))
    return _load(name, folder, with_files(data.NAMES[name], known))


def _of_set(name: str, write, files: dict[str, File], exact: bool = False) -> Kind:
    return Kind(write, partial(_load_as, name, files), exact)


# ------------------------------------------------------------------ images
def write_npz(folder: Path, save=np.savez, **changes: Any) -> None:
    """Images in NumPy's format; `changes` replace arrays or add some."""
    arrays = {"x_train": SMALL[TRAIN], "y_train": LABELS[TRAIN]}
    arrays |= {"x_test": SMALL[TEST], "y_test": LABELS[TEST]}
    arrays["classes"] = np.array([f"kind {k}" for k in range(10)])
    save(folder / "cifar10_subset.npz", **(arrays | changes))


def _idx_files() -> dict[str, bytes]:
    arrays = SMALL[TRAIN, ..., 0], LABELS[TRAIN], SMALL[TEST, ..., 0], LABELS[TEST]
    pairs = zip(images.IDX_FILES, arrays, strict=True)
    return {
        name: struct.pack(f">HBB{a.ndim}I", 0, 8, a.ndim, *a.shape) + a.tobytes()
        for name, a in pairs
    }


def _write_idx(folder: Path, packed: bool) -> None:
    for name, content in _idx_files().items():
        path = folder / (name + ".gz" * packed)
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)


IDX = {name: File(name, size=len(content)) for name, content in _idx_files().items()}


def _write_cifar(folder: Path, files: dict[str, range], coarse: bool) -> None:
    for file, rows in files.items():
        records = (
            bytes([3] * coarse + [LABELS[i]]) + IMAGES[i].transpose(2, 0, 1).tobytes()
            for i in rows
        )
        (folder / file).write_bytes(b"".join(records))
    name, count = ("fine_label_names.txt", 100) if coarse else ("batches.meta.txt", 10)
    (folder / name).write_text("".join(f"kind_{k}\n" for k in range(count)))


CIFAR10 = {f"data_batch_{i}.bin": range(i, i + 1) for i in range(1, 6)}
CIFAR10 |= {"test_batch.bin": range(6, 9)}
CIFAR100 = {"train.bin": range(6), "test.bin": range(6, 10)}


def _cifar(name: str, files: dict[str, range], coarse: bool) -> Kind:
    sizes = {n: File(n, size=len(r) * (3073 + coarse)) for n, r in files.items()}
    return _of_set(name, partial(_write_cifar, files=files, coarse=coarse), sizes)


SIZES = {"CLASSES": 2, "TRAIN": 2, "VALIDATION": 2, "TINY_SIZE": (8, 8)}
WNIDS = "n01", "n02"


def _write_tiny_imagenet(folder: Path) -> None:
    def save(path: Path, i: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(IMAGES[i, :8, :8]).save(path, "JPEG")

    for k, wnid in enumerate(WNIDS):
        for i in range(2):
            save(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 2 * k + i)
        save(folder / "val" / "images" / f"val_{k}.JPEG", 4 + k)
    rows = [f"val_{k}.JPEG\t{wnid}\t0\t0\t7\t7\n" for k, wnid in enumerate(WNIDS)]
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    (folder / "wnids.txt").write_text("\n".join(WNIDS))
    (folder / "words.txt").write_text("".join(f"{w}\tgold fish\n" for w in WNIDS))


# ----------------------------------------------------------- numbers, texts

LIBSVM = {n: File(n, lines=k, rows=k) for n, k in (("a9a", 12), ("a9a.t", 5))}


def _write_libsvm(folder: Path, packed: bool) -> None:
    for file, count in (("a9a", 12), ("a9a.t", 5)):
        rows = (f"{'-+'[i % 2]}1 {i + 1}:1 {i + 90}:0.5 \n" for i in range(count))
        content = "".join(rows).encode()
        path = folder / (file + ".bz2" * packed)
        path.write_bytes(bz2.compress(content) if packed else content)


TABLES = {  # of each set: a line of a sentence, another one, and a label
    "sst2": ("sentence\tlabel", "{a}\t{k}"),
    "cola": ("", "gj04\t{k}\t*\t{a}"),
    "mrpc": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{k}\t1\t2\t{a}\t{b}"),
    "qqp": ("id\tquestion1\tquestion2\tis_duplicate", "7\t{a}\t{b}\t{k}"),
    "rte": ("index\tsentence1\tsentence2\tlabel", "7\t{a}\t{b}\t{e}"),
}
FOLDERS = {"sst2": "SST-2", "cola": "CoLA", "mrpc": "MRPC", "qqp": "QQP", "rte": "RTE"}


def _write_glue(folder: Path, name: str) -> None:
    (folder / FOLDERS[name]).mkdir()
    first, row = TABLES[name]
    for file, count in (("train.tsv", 12), ("dev.tsv", 5)):
        lines = [first] if first else []
        for i in range(count):
            entailed = ("entailment", "not_entailment")[i % 2]
            texts = {"a": _sentence(i), "b": _sentence(i + 1)}
            lines.append(row.format(k=i % 2, e=entailed, **texts))
        (folder / FOLDERS[name] / file).write_text("\n".join([*lines, ""]))


GLUE = {"train.tsv": File("train.tsv", rows=12), "dev.tsv": File("dev.tsv", rows=5)}
YELP = "yelp_labelled.txt"


def _write_yelp(folder: Path) -> None:
    lines = [f"{_sentence(i)}\t{i % 2}\n" for i in range(20)]
    (folder / "yelp_labelled_uci").mkdir()
    (folder / "yelp_labelled_uci" / YELP).write_text("".join(lines))


# ----------------------------------------------------- tensorflow-datasets
class HarmedImages(tfds.core.GeneratorBasedBuilder):
    """Images that can be prepared without TensorFlow."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        kinds = tfds.features.ClassLabel(names=[f"kind {k}" for k in range(3)])
        image = tfds.features.Image(shape=(4, 5, 3))
        features = tfds.features.FeaturesDict({"image": image, "label": kinds})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        del dl_manager
        rows = {"train": range(6), "test": range(6, 10)}
        return {split: self._generate_examples(some) for split, some in rows.items()}

    def _generate_examples(self, rows):
        for i in rows:
            file = io.BytesIO()
            Image.fromarray(SMALL[i]).save(file, "PNG")
            file.seek(0)
            yield i, {"image": file, "label": int(LABELS[i])}


class HarmedTexts(HarmedImages):
    """Sentences that can be prepared without TensorFlow."""

    def _info(self):
        kinds = tfds.features.ClassLabel(names=["negative", "positive"])
        known = {"text": tfds.features.Text(), "label": kinds}
        features = tfds.features.FeaturesDict(known)
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _generate_examples(self, rows):
        for i in rows:
            yield i, {"text": _sentence(i), "label": i % 2}


def _prepared(builder: Any) -> Kind:
    def write(folder: Path) -> None:
        tfds.disable_progress_bar()
        builder(data_dir=folder, file_format="array_record").download_and_prepare()

    return Kind(write, partial(_load, f"tfds:{builder.name}"), False)


DEFLATED = partial(write_npz, save=np.savez_compressed)
PACKED = partial(_write_idx, packed=True)
READ_TINY_IMAGENET = mock.patch.multiple(images, **SIZES)(
    partial(_load, "tiny_imagenet")
)
KINDS = {
    "npz": _of_set("cifar10_subset", write_npz, {}, exact=True),
    "npz, deflated": _of_set("cifar10_subset", DEFLATED, {}, exact=True),
    "idx": _of_set("mnist", partial(_write_idx, packed=False), {}),
    "idx, gzip": _of_set("mnist", PACKED, {}, exact=True),
    "idx, published": _of_set("mnist", PACKED, IDX, exact=True),
    "cifar10": _cifar("cifar10", CIFAR10, coarse=False),
    "cifar100": _cifar("cifar100", CIFAR100, coarse=True),
    "tiny_imagenet": Kind(_write_tiny_imagenet, READ_TINY_IMAGENET, False),
    "libsvm": _of_set("a9a", partial(_write_libsvm, packed=False), LIBSVM),
    "libsvm, bzip2": _of_set(
        "a9a", partial(_write_libsvm, packed=True), LIBSVM, exact=True
    ),
    **{name: _of_set(name, partial(_write_glue, name=name), GLUE) for name in TABLES},
    "yelp_labelled": _of_set("yelp_labelled", _write_yelp, {YELP: File(YELP, rows=20)}),
    "prepared images": _prepared(HarmedImages),
    "prepared texts": _prepared(HarmedTexts),
}
