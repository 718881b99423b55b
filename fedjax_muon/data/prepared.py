"""Images and texts prepared by tensorflow-datasets, read without TensorFlow.

For most data sets, only the preparation (download and conversion to array_record)
needs TensorFlow.
"""

import contextlib
import importlib.util
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.core.reading import check_size, read_text, reading
from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.source import Source
from fedjax_muon.data.text import Sentences, tokenized
from fedjax_muon.versions import install_command

INFO = "dataset_info.json"  # a file in the folder of each version of a prepared set
CLASS_NAMES = ("pythonClassName", "python_class_name", "type")
TEXTS = ("text", "sentence")  # names of features with sentences


def _source(
    name: str, example: str, examples: tuple[int, int], classes: int, license: str
) -> Source:
    return Source(example, examples, classes, license, prepared=name)


# Data sets of papers on federated optimization; others can be read too.
GLUE_LICENSE = "its own for each task, see gluebenchmark.com"
SETS = {
    source.prepared: source
    for source in (
        _source("cifar10", "32 x 32 x 3", (50_000, 10_000), 10, "none stated"),
        _source("cifar100", "32 x 32 x 3", (50_000, 10_000), 100, "none stated"),
        _source("sentiment140", "text", (1_600_000, 359), 2, "none stated"),
        _source("yelp_polarity_reviews", "text", (560_000, 38_000), 2, "Yelp's terms"),
        _source("glue/sst2", "text", (67_349, 872), 2, GLUE_LICENSE),
        _source("glue/cola", "text", (8_551, 1_043), 2, GLUE_LICENSE),
    )
}


def read_prepared(name: str, directory: Path) -> Dataset:
    """Reads a prepared data set from directory/name.

    The data set needs the splits "train" and "test", a feature "image" of one shape or
    else "text" or "sentence", and a feature "label" with class names. If all labels of
    "test" are hidden (-1), as in GLUE, "validation" is read instead. Texts can have a
    "polarity" instead of a label, as in Sentiment140: 0 is negative and 4 positive.
    Neutral texts, 2, are dropped (139 of the 498 test tweets, no training tweets).

    Args:
      name: Name in the catalog of tensorflow-datasets, with configuration and version
        if there are several: "cifar10", "emnist/balanced", "cifar10/3.0.2".

    Returns:
      The data set, with pixels as stored or texts as token ids (see `tokenized`).

    Raises:
      FileNotFoundError: If the data set is missing.
    """
    # Imported here, since the import is slow and no other data set needs it.
    import tensorflow_datasets as tfds
    from google.protobuf import json_format  # type: ignore[import-untyped] # no stubs

    folder = locate(name, directory)
    with _reading(folder, json_format.ParseError):
        _check_files(folder)
        builder = tfds.builder_from_directory(folder)
        features = dict(builder.info.features)
        _check_layout(builder, folder, tfds)
        x, y = _features(features, folder, tfds)
    with _reading(folder):  # errors of records, images, texts
        train = _read_split(builder, "train", x, y)
        test = _read_split(builder, "test", x, y)
        if "validation" in builder.info.splits and set(test[1]) == {-1}:
            test = _read_split(builder, "validation", x, y)
        return _dataset(train, test, features[y], (x, y), folder)


def prepare(name: str, directory: Path) -> Path:
    """Downloads and converts a data set of tensorflow-datasets, unless it is present.

    Args:
      name: Name in the catalog of tensorflow-datasets.

    Returns:
      The folder of the data set.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ValueError(
            f"preparing {name!r} needs TensorFlow (reading it afterwards does not): "
            f"{install_command('tensorflow-cpu')}, or prepare it on another machine "
            "and copy the folder"
        )
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=directory, file_format="array_record")
    except tfds.core.DatasetNotFoundError as error:
        raise ValueError(
            f"tensorflow-datasets has no set {name!r}; choose one of "
            "https://www.tensorflow.org/datasets/catalog"
        ) from error
    builder.download_and_prepare(file_format="array_record")
    return Path(builder.data_dir)


def locate(name: str, directory: Path) -> Path:
    """Finds the folder of a prepared data set.

    Args:
      name: Name in the catalog of tensorflow-datasets.

    Returns:
      The folder of its only version.

    Raises:
      FileNotFoundError: If the data set is missing.
    """
    root = directory / name
    found = sorted(
        path.parent
        for depth in ("", "*/", "*/*/")  # itself; version; configuration and version
        for path in root.glob(depth + INFO)
        # the folder of a conversion that is running or was interrupted
        if "incomplete" not in path.parent.name
    )
    if not found:
        raise FileNotFoundError(
            f"tfds:{name}: no prepared set ({INFO}) in or below {root}; run "
            f"fedjax_muon.data.prepare({name!r}, {str(directory)!r}) once, on a "
            "machine with network and TensorFlow"
        )
    if len(found) > 1:
        names = ", ".join(f"tfds:{p.relative_to(directory).as_posix()}" for p in found)
        raise ValueError(f"tfds:{name}: {root} has several sets; choose one of {names}")
    return found[0]


def check(folder: Path) -> None:
    """Checks a prepared data set without reading its examples.

    Args:
      folder: Folder of the data set.
    """
    with _reading(folder):
        info = json.loads(read_text(folder / INFO))
        for split in info["splits"]:
            expected = len(split["shardLengths"])
            found = len([*folder.glob(f"*-{split['name']}.*-of-*")])
            if found != expected:
                raise ValueError(
                    f"{found} of {expected} files of split {split['name']}"
                )
        _check_files(folder)


def _check_files(folder: Path) -> None:
    """Checks what tensorflow-datasets reads in whole: all but the records."""
    for path in folder.iterdir():
        if not path.match("*-of-*"):
            check_size(path)
    features = json.loads(read_text(folder / "features.json"))
    if not isinstance(features, dict):
        raise ValueError("features.json has no features")
    _check_classes(features)


def _check_classes(features: Any) -> None:
    """Rejects features with classes of other packages.

    tensorflow-datasets would import, and so execute, these packages. It takes several
    spellings of the name, and texts with features inside of features.
    """
    if isinstance(features, list):
        features = dict(enumerate(features))
    if not isinstance(features, dict):
        return
    for key, value in features.items():
        named = key in CLASS_NAMES and isinstance(value, str)
        if named and not value.startswith("tensorflow_datasets."):
            raise ValueError(
                f"a feature of class {value[:60]} is not tensorflow-datasets'"
            )
        if isinstance(value, str):
            with contextlib.suppress(json.JSONDecodeError):
                _check_classes(json.loads(value))
        _check_classes(value)


def _check_layout(builder: Any, folder: Path, tfds: Any) -> None:
    info = builder.info
    if info.file_format is not tfds.core.FileFormat.ARRAY_RECORD:
        raise ValueError(
            f"{folder}: expected array_record files, found {info.file_format.value}; "
            "run fedjax_muon.data.prepare with another directory"
        )
    sizes = {name: split.num_examples for name, split in info.splits.items()}
    if not (sizes.get("train") and sizes.get("test")):
        found = ", ".join(f"{name} ({size})" for name, size in sizes.items())
        raise ValueError(
            f"{folder}: expected examples in splits train and test, found "
            f"{found or 'no splits'}; choose a set that has both"
        )


def _features(features: dict[str, Any], folder: Path, tfds: Any) -> tuple[str, str]:
    """The names of the inputs and of the labels."""
    is_text = lambda name: isinstance(features.get(name), tfds.features.Text)
    text = next(filter(is_text, TEXTS), None)
    if isinstance(features.get("label"), tfds.features.ClassLabel):
        if "image" in features:
            return "image", "label"
        if text:
            return text, "label"
    if text and "polarity" in features:
        return text, "polarity"
    raise ValueError(
        f"{folder}: expected features image and label (a ClassLabel), or text and "
        f"label or polarity, found {', '.join(features)[:200]}; choose a set for the "
        "classification of images or texts"
    )


def _read_split(builder: Any, split: str, x: str, y: str) -> tuple[list, list]:
    from array_record.python import (  # type: ignore[import-untyped] # no stubs
        array_record_module,
    )

    for shard in builder.info.splits[split].file_instructions:
        reader = array_record_module.ArrayRecordReader(shard.filename)
        count = reader.num_records()
        reader.close()
        if count != shard.examples_in_shard:
            raise ValueError(
                f"{Path(shard.filename).name} has {count} examples, by {INFO} it had "
                f"{shard.examples_in_shard}"
            )
    source = builder.as_data_source(split=split)
    pairs = ((example[x], example[y]) for example in source)
    inputs, labels = zip(*pairs, strict=True)
    if x in TEXTS:
        return [text.decode() for text in inputs], list(labels)
    return list(inputs), list(labels)


def _dataset(
    train: tuple[list, list],
    test: tuple[list, list],
    kinds: Any,
    names: tuple[str, str],
    folder: Path,
) -> Dataset:
    x, y = names
    if y == "polarity":
        return tokenized(
            _without_neutral(train, folder),
            _without_neutral(test, folder),
            ("negative", "positive"),
        )
    classes = tuple(kinds.names)
    if x in TEXTS:
        return tokenized(Sentences(*train), Sentences(*test), classes)
    x_train, y_train = _stack(train, folder)
    x_test, y_test = _stack(test, folder)
    return Dataset(
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=classes,
    )


def _without_neutral(split: tuple[list, list], folder: Path) -> Sentences:
    other = sorted({int(polarity) for polarity in split[1]} - {0, 2, 4})
    if other:
        raise ValueError(
            f"{folder}: expected polarities 0, 2 and 4, found {other[0]}; choose a set "
            "with these"
        )
    kept = [
        (text, label // 4) for text, label in zip(*split, strict=True) if label != 2
    ]
    return Sentences([text for text, _ in kept], [label for _, label in kept])


def _stack(split: tuple[list, list], folder: Path) -> tuple[np.ndarray, np.ndarray]:
    images, labels = split
    shapes = sorted({image.shape for image in images})
    if len(shapes) > 1:
        raise ValueError(
            f"{folder}: expected images of one shape, found {len(shapes)}, such as "
            f"{list(shapes[0])} and {list(shapes[1])}; choose a set with equal images"
        )
    return np.stack(images), np.array(labels)


@contextlib.contextmanager
def _reading(folder: Path, *errors: type[Exception]) -> Iterator[None]:
    from PIL import Image

    bomb = Image.DecompressionBombError, Image.DecompressionBombWarning
    with (
        reading(
            folder,
            "a set prepared by tensorflow-datasets",
            "delete the folder and run fedjax_muon.data.prepare again",
            # A file that is missing, and a feature of another kind without TensorFlow.
            errors=(OSError, ImportError, *bomb, *errors),
        ),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield
