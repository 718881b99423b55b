"""Datasets and loaders of PyTorch become datasets."""

import numpy as np
import pytest

from fedjax_muon import data
from tests.support.error_lines import one_line
from tests.support.packages import needs

torch = needs("torch")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3, 8, 6)).astype(np.float32)
Y = np.arange(40) % 2


class Images(torch.utils.data.Dataset):
    classes = ("cat", "dog")

    def __init__(self, x=X):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):  # never raises IndexError
        return torch.tensor(self.x[i % len(self.x)]), int(Y[i % len(self.x)])


def test_images_get_their_channels_last():
    names = np.array(["cat", "dog"])[Y]
    wanted = data.from_arrays(X.transpose(0, 2, 3, 1), names, owners=Y)
    found = data.from_torch(Images(), owners=Y)
    np.testing.assert_equal(found, wanted)
    loader = torch.utils.data.DataLoader(Images(), batch_size=7)
    np.testing.assert_equal(
        data.from_torch(loader, owners=Y, classes=("cat", "dog")), wanted
    )


def test_rows_and_tests_of_their_own():
    tensors = torch.utils.data.TensorDataset
    rows, labels = torch.tensor(X[:, 0, 0]), torch.tensor(Y)
    found = data.from_torch(tensors(rows, labels), test=tensors(rows[:5], labels[:5]))
    wanted = data.from_arrays(X[:, 0, 0], Y, test=(X[:5, 0, 0], Y[:5]))
    np.testing.assert_equal(found, wanted)


REFUSED = {
    r"of one shape, got \[3, 8, 6\] in place 0 and \[3, 7, 6\] in place 1; resize": (
        [(X[0], 0), (X[1, :, :7], 1)]
    ),
    "examples must be pairs of an input and a label, got ndarray in place 0": [X[0]],
    "examples must be pairs of an input and a label, got tuple in place 1": (
        [(X[0], 0), (X[1], 1, 2)]
    ),
    "examples has no examples": [],
}


@pytest.mark.parametrize("said", REFUSED)
def test_other_examples_are_refused(said):
    with one_line(said):
        data.from_torch(REFUSED[said])
