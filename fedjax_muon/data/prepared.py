"""Image sets that tensorflow-datasets prepared, read without TensorFlow.

Preparing (once: download, convert to array_record) needs TensorFlow for most sets;
reading what is prepared does not.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_muon.data.dataset import Dataset

INFO = "dataset_info.json"  # marks the folder of one version of a prepared set


def read_prepared(name: str, directory: Path) -> Dataset:
    """The prepared set in directory/name, pixels as stored.

    `name` is as in the catalog of tensorflow-datasets, with configuration and version
    where there are several: "cifar10", "emnist/balanced", "cifar10/3.0.2". The set
    needs splits "train" and "test", a feature "image" of one shape and a feature
    "label" with class names.

    Raises:
      FileNotFoundError: if it is not there.
      ValueError: if several versions are, or the set is damaged, not in array_record or
        has other features or splits.
    """
    # Imported here: it takes a while, and no other set needs it.
    import tensorflow_datasets as tfds
    from google.protobuf import json_format  # type: ignore[import-untyped] # no stubs

    folder = _locate(name, directory)
    try:
        builder = tfds.builder_from_directory(folder)
    except (OSError, ValueError, json_format.ParseError) as error:
        raise ValueError(_damaged(folder, error)) from error
    _check_layout(builder, folder, tfds)
    try:
        train, test = _read_split(builder, "train"), _read_split(builder, "test")
    except (OSError, RuntimeError, ValueError) as error:  # of records and of images
        raise ValueError(_damaged(folder, error)) from error
    x_train, y_train = _stack(train, folder)
    x_test, y_test = _stack(test, folder)
    return Dataset(
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        classes=tuple(builder.info.features["label"].names),
    )


def prepare(name: str, directory: Path) -> Path:
    """Downloads and converts a set of tensorflow-datasets; returns its folder.

    Does nothing if it is there already.

    Raises:
      ValueError: without TensorFlow, or if tensorflow-datasets has no such set.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ValueError(
            f"preparing {name!r} needs TensorFlow (reading it afterwards does not): "
            'pip install "fedjax-muon[prepare]", or prepare it on another machine and '
            "copy the folder"
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


def _locate(name: str, directory: Path) -> Path:
    root = directory / name
    found = sorted(
        path.parent
        for depth in ("", "*/", "*/*/")  # itself; version; configuration and version
        for path in root.glob(depth + INFO)
        # A conversion that is running or was interrupted.
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


def _check_layout(builder: Any, folder: Path, tfds: Any):
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
    features = dict(info.features)
    label = features.get("label")
    if "image" not in features or not isinstance(label, tfds.features.ClassLabel):
        raise ValueError(
            f"{folder}: expected features image and label (a ClassLabel), found "
            f"{', '.join(features)}; choose a set for image classification"
        )


def _read_split(builder: Any, split: str) -> list[tuple[np.ndarray, int]]:
    source = builder.as_data_source(split=split)
    return [(example["image"], example["label"]) for example in source]


def _stack(
    examples: list[tuple[np.ndarray, int]], folder: Path
) -> tuple[np.ndarray, np.ndarray]:
    images, labels = zip(*examples, strict=True)
    shapes = sorted({image.shape for image in images})
    if len(shapes) > 1:
        raise ValueError(
            f"{folder}: expected images of one shape, found {len(shapes)}, such as "
            f"{list(shapes[0])} and {list(shapes[1])}; choose a set with equal images"
        )
    return np.stack(images), np.array(labels)


def _damaged(folder: Path, error: Exception) -> str:
    reason = " ".join(str(error).split())
    return (
        f"{folder}: expected a set prepared by tensorflow-datasets, found a damaged "
        f"one ({reason}); delete the folder and run fedjax_muon.data.prepare again"
    )
