"""Datasets with natural clients, in files of the format of TensorFlow Federated."""

import numpy as np
import pytest

from fedjax_muon import data
from fedjax_muon.data import natural
from tests.support.packages import needs

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("no_data_directory")


def write_tff(path, clients):
    h5py = needs("h5py")
    with h5py.File(path, "w") as file:
        for client, fields in clients.items():
            for field, values in fields.items():
                text = isinstance(values, list)
                kind = h5py.string_dtype() if text else None
                place = f"examples/{client}/{field}"
                file.create_dataset(place, data=values, dtype=kind)


@pytest.mark.slow
def test_emnist_of_tff(tmp_path):
    def fields(count):
        return {
            "pixels": RNG.uniform(size=(count, 28, 28)).astype(np.float32),
            "label": RNG.integers(0, 62, count).astype(np.int32),
        }

    train, test = {"f0_1": fields(3), "f0_0": fields(2)}, {"f0_0": fields(1)}
    write_tff(tmp_path / "fed_emnist_train.h5", train)
    write_tff(tmp_path / "fed_emnist_test.h5", test)
    raw = data.loading.read("femnist", tmp_path)[0]
    pixels = [train[name]["pixels"] for name in ("f0_0", "f0_1")]
    np.testing.assert_array_equal(raw.x_train[..., 0], np.concatenate(pixels))
    assert (raw.classes[0], raw.classes[10], raw.classes[61]) == ("0", "A", "z")
    assert raw.owners.tolist() == [0, 0, 1, 1, 1]
    assert raw.y_test.tolist() == test["f0_0"]["label"].tolist()


@pytest.mark.slow
def test_shakespeare_of_tff(tmp_path):
    speeches = ["To be, or not to be", "that is the question"]
    own = {"HAMLET": speeches, "OPHELIA": ["My lord"]}
    clients = {name: {"snippets": snippets} for name, snippets in own.items()}
    for part in ("train", "test"):
        write_tff(tmp_path / f"shakespeare_{part}.h5", clients)
    ours = data.load("shakespeare", tmp_path)
    text = "\n".join(speeches)
    expected = [*text[1 :: natural.TFF_STRIDE], *"My lord"[1 :: natural.TFF_STRIDE]]
    assert [natural.LETTERS[label] for label in ours.y_train] == expected
    assert (ours.tokens, ours.x_train.dtype) == (82, np.int32)
    assert ours.standardization is None
    assert np.bincount(ours.owners).tolist() == [len(text[1 :: natural.TFF_STRIDE]), 2]
    assert (ours.x_train[2] > 0).sum() == 1 + 2 * natural.TFF_STRIDE


@pytest.mark.slow
def test_words_of_stackoverflow(tmp_path, monkeypatch):
    monkeypatch.setattr(natural, "CLIENTS", 2)
    monkeypatch.setattr(natural, "SENTENCES", 2)
    said = {"1": ["how do i", "how do you", "never read"], "2": ["do i"]}
    said["3"] = ["never read"]
    train = {client: {"tokens": sentences} for client, sentences in said.items()}
    write_tff(tmp_path / "stackoverflow_train.h5", train)
    test = {"9": {"tokens": ["do you know", "i"]}}
    write_tff(tmp_path / "stackoverflow_test.h5", test)
    ours = data.load("stackoverflow", tmp_path)
    assert ours.classes == ("do", "how", "i", "you")  # by frequency, then by name
    words = np.array(["", "?", *ours.classes])
    found = [" ".join(words[row]).strip() for row in ours.x_train]
    assert found == ["how", "how do", "how", "how do", "do"]
    labels = [ours.classes[label] for label in ours.y_train]
    assert labels == ["do", "i", "do", "you", "i"]
    assert ours.owners.tolist() == [0, 0, 0, 0, 1]
    assert [ours.classes[label] for label in ours.y_test] == ["you"]


@pytest.mark.slow
def test_damaged_files_of_tff_are_named(tmp_path):
    for part in ("train", "test"):
        clients = {"HAMLET": {"snippets": ["To be, or not to be"]}}
        write_tff(tmp_path / f"shakespeare_{part}.h5", clients)
    path = tmp_path / "shakespeare_test.h5"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match="expected an HDF5 file of TensorFlow Fed"):
        data.load("shakespeare", tmp_path)
    write_tff(path, {"HAMLET": {"pixels": np.zeros((1, 2))}})
    with pytest.raises(ValueError, match="expected an HDF5 file of TensorFlow Fed"):
        data.load("shakespeare", tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks shakespeare_test\.h5\)"):
        data.load("shakespeare", tmp_path)
