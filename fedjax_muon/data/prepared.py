"""Images and texts prepared by tensorflow-datasets, read without TensorFlow.

For most datasets, only the preparation (download and conversion to array_record) needs
TensorFlow.
"""

import contextlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.text import Sentences, tokenized
from fedjax_muon.files import check_size, read_text, reading, visible
from fedjax_muon.versions import check_installed

INFO = "dataset_info.json"  # in the folder of each version of a prepared dataset
CLASS_NAMES = ("pythonClassName", "python_class_name", "type")
TEXTS = ("text", "sentence")  # names of features with sentences


def read_prepared(folder: Path) -> Dataset:
    """Reads a prepared dataset, with pixels as stored or texts as token ids.

    The dataset needs the splits "train" and "test", a feature "image" of one shape or
    else "text" or "sentence", and a feature "label" with class names. If all labels of
    "test" are hidden (-1), as in GLUE, "validation" is read instead. Texts can have a
    "polarity" instead of a label, as in Sentiment140: 0 is negative and 4 positive.
    Neutral texts, 2, are dropped (139 of the 498 test tweets, no training tweets).
    """
    # Imported here, since the import is slow and no other dataset needs it.
    import tensorflow_datasets as tfds
    from google.protobuf import json_format  # type: ignore[import-untyped]  # has no stubs

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
        if y == "polarity":
            polar = [_without_neutral(split, folder) for split in (train, test)]
            return tokenized(polar[0], polar[1], ("negative", "positive"))
        classes = tuple(features[y].names)
        if x in TEXTS:
            return tokenized(Sentences(*train), Sentences(*test), classes)
        return Dataset(*_stack(train, folder), *_stack(test, folder), classes)


def prepare(name: str, directory: Path) -> Path:
    """Downloads and converts a dataset, unless it is present; returns its folder."""
    user = f"preparing {name!r} (here or elsewhere; the folder can be copied)"
    check_installed("tensorflow-cpu", user, module="tensorflow")
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=directory, file_format="array_record")
    except tfds.core.DatasetNotFoundError as error:
        raise ValueError(
            f"tensorflow-datasets has no {name!r}; choose one of "
            "https://www.tensorflow.org/datasets/catalog"
        ) from error
    builder.download_and_prepare(file_format="array_record")
    return Path(builder.data_dir)


def locate(name: str, directory: Path) -> Path:
    """Finds the folder of the only version of a dataset in directory/name.

    Args:
      name: Name in the catalog of tensorflow-datasets, with configuration and version
        if there are several: "cifar10", "emnist/balanced", "cifar10/3.0.2".
    """
    root = directory / name
    folders = sorted(
        path.parent
        for depth in ("", "*/", "*/*/")  # itself; version; configuration and version
        for path in visible(root, depth + INFO)
        # the folder of a conversion that is running or was interrupted
        if "incomplete" not in path.parent.name
    )
    if not folders:
        raise FileNotFoundError(
            f"tfds:{name}: no prepared dataset ({INFO}) in or below {root}; run "
            f"fedjax_muon.data.prepare({name!r}, {str(directory)!r}) once, on a "
            "machine with network and TensorFlow"
        )
    if len(folders) > 1:
        names = [f"tfds:{p.relative_to(directory).as_posix()}" for p in folders]
        raise ValueError(
            f"tfds:{name}: {root} has several versions; choose one of "
            f"{', '.join(names)}"
        )
    return folders[0]


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
                f"a feature of class {value[:60]} is not from tensorflow-datasets"
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
        splits = ", ".join(f"{name} ({size})" for name, size in sizes.items())
        raise ValueError(
            f"{folder}: expected examples in splits train and test, found "
            f"{splits or 'no splits'}; choose a dataset that has both"
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
        f"label or polarity, found {', '.join(features)[:200]}; choose a dataset for "
        "the classification of images or texts"
    )


def _read_split(builder: Any, split: str, x: str, y: str) -> tuple[list, list]:
    from array_record.python import (  # type: ignore[import-untyped]  # has no stubs
        array_record_module,
    )

    for shard in builder.info.splits[split].file_instructions:
        reader = array_record_module.ArrayRecordReader(shard.filename)
        count = reader.num_records()
        reader.close()
        if count != shard.examples_in_shard:
            raise ValueError(
                f"{Path(shard.filename).name} has {count} examples, but {INFO} says "
                f"{shard.examples_in_shard}"
            )
    source = builder.as_data_source(split=split)
    pairs = ((example[x], example[y]) for example in source)
    inputs, labels = zip(*pairs, strict=True)
    if x in TEXTS:
        return [text.decode() for text in inputs], list(labels)
    return list(inputs), list(labels)


def _without_neutral(split: tuple[list, list], folder: Path) -> Sentences:
    other = sorted({int(polarity) for polarity in split[1]} - {0, 2, 4})
    if other:
        raise ValueError(
            f"{folder}: expected polarities 0, 2 and 4, found {other[0]}; choose a "
            "dataset with these"
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
            f"{list(shapes[0])} and {list(shapes[1])}; choose another dataset"
        )
    return np.stack(images), np.array(labels)


@contextlib.contextmanager
def _reading(folder: Path, *errors: type[Exception]) -> Iterator[None]:
    from PIL import Image

    bomb = Image.DecompressionBombError, Image.DecompressionBombWarning
    with (
        reading(
            folder,
            "a dataset prepared by tensorflow-datasets",
            "delete the folder and run fedjax_muon.data.prepare again",
            # A file that is missing, and a feature of another kind without TensorFlow.
            errors=(OSError, ImportError, *bomb, *errors),
        ),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield
