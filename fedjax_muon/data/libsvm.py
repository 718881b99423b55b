"""Two-class data sets in the format of LIBSVM: lines `label index:value ...`.

a8a and a9a (UCI Adult, 123 binary features) and ijcnn1 (22 features), as distributed at
https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html. The features in the
files are already scaled. Label -1 becomes 0.
"""

import io
from functools import partial
from pathlib import Path

import numpy as np

from fedjax_muon.data.dataset import Dataset
from fedjax_muon.data.source import File, Layout, Source, unpacked

URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
INCOME = ("at most 50K", "above 50K")


def read_libsvm(
    paths: list[Path], *, features: int, classes: tuple[str, str]
) -> Dataset:
    """Reads a data set from a training and a test file.

    Args:
      paths: Paths of the training and the test file.
      features: Number of features.
      classes: Names of the classes with labels -1 and 1.

    Returns:
      The data set, in float32.

    Raises:
      ValueError: If a file is damaged, or has other features or labels.
    """
    # Imported here, since importing scikit-learn takes a second.
    from sklearn.datasets import load_svmlight_file

    found = []
    for path in paths:
        content = io.BytesIO(unpacked(path))
        try:
            x, y = load_svmlight_file(content, n_features=features, dtype=np.float32)
        except ValueError as error:
            raise ValueError(
                f"{path}: not in LIBSVM's format with {features} features "
                f"({error}); download it again from {URL}"
            ) from error
        labels = np.unique(y)
        if not np.isin(labels, (-1, 1)).all():
            raise ValueError(f"{path}: expected labels -1 and 1, found {labels[:5]}")
        found.append((x.toarray(), (y > 0).astype(np.int32)))
    (x_train, y_train), (x_test, y_test) = found
    return Dataset(x_train, y_train, x_test, y_test, classes)


def _source(
    name: str,
    files: tuple[str, str],
    examples: tuple[int, int],
    features: int,
    classes: tuple[str, str],
    license: str,
) -> Source:
    layout = Layout(
        # The numbers of examples are published; each is a line.
        files=tuple(
            File(f, lines=lines) for f, lines in zip(files, examples, strict=True)
        ),
        folders=("libsvm", name, ""),
        read=partial(read_libsvm, features=features, classes=classes),
        url=URL,
        packed=(".bz2", ".gz", ".xz"),
    )
    return Source(
        example=f"{features} numbers",
        examples=examples,
        classes=2,
        license=license,
        layouts=(layout,),
        scaled=True,
    )


ADULT = "CC BY 4.0 (UCI Adult)"
SETS = {
    "a8a": _source("a8a", ("a8a", "a8a.t"), (22_696, 9_865), 123, INCOME, ADULT),
    "a9a": _source("a9a", ("a9a", "a9a.t"), (32_561, 16_281), 123, INCOME, ADULT),
    "ijcnn1": _source(
        "ijcnn1",
        ("ijcnn1.trn", "ijcnn1.tst"),
        (49_990, 91_701),
        22,
        ("-1", "1"),
        "none stated",
    ),
}
