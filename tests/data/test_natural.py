"""Datasets with natural clients, in files of the formats of LEAF and TFF."""

import json

import numpy as np
import pytest
from packages import needs

from fedjax_muon import data
from fedjax_muon.data import natural

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("no_data_directory")


def write_leaf(folder, part, files):
    """Writes the users of one file or several, as LEAF's scripts do."""
    place = folder / part
    place.mkdir(parents=True, exist_ok=True)
    for i, users in enumerate(files):
        content = {
            "users": [*users],
            "num_samples": [len(x) for x, _ in users.values()],
            "user_data": {u: {"x": x, "y": y} for u, (x, y) in users.items()},
        }
        (place / f"all_data_{i}_{part}_9.json").write_text(json.dumps(content))


def writer(count):
    """Images by one writer of FEMNIST."""
    pixels = RNG.uniform(size=(count, 784)).round(3).tolist()
    return pixels, RNG.integers(0, 62, count).tolist()


def test_femnist_of_leaf(tmp_path):
    ann, bob, eve = writer(4), writer(3), writer(5)
    place = tmp_path / "femnist" / "data"
    write_leaf(place, "train", [{"ann": ann, "none": ([], [])}, {"bob": bob}])
    write_leaf(place, "test", [{"eve": eve}])
    raw = data.loading.read("femnist", tmp_path)[0]
    x = np.array([*ann[0], *bob[0]], np.float32).reshape(7, 28, 28, 1)
    np.testing.assert_array_equal(raw.x_train, x)
    assert raw.y_train.tolist() == [*ann[1], *bob[1]]
    assert raw.y_test.tolist() == eve[1]
    assert raw.owners.tolist() == [0] * 4 + [1] * 3
    assert (raw.classes[0], raw.classes[10], raw.classes[61]) == ("0", "A", "z")
    loaded = data.load("femnist", tmp_path)
    np.testing.assert_allclose(loaded.standardization.mean, x.mean(), rtol=1e-5)


def test_a_writer_in_several_files_is_one_owner(tmp_path):
    ann, bob, more = writer(2), writer(3), writer(2)
    place = tmp_path / "femnist" / "data"
    write_leaf(place, "train", [{"ann": ann}, {"bob": bob}, {" ann": more}])
    write_leaf(place, "test", [{"eve": writer(1)}])
    for part in ("train", "test"):  # macOS writes such files; the first one is sorted
        (place / part / f"._all_data_0_{part}_9.json").write_bytes(b"\0\5\26\7")
    raw = data.loading.read("femnist", tmp_path)[0]
    assert raw.owners.tolist() == [0] * 4 + [1] * 3
    assert raw.y_train.tolist() == [*ann[1], *more[1], *bob[1]]


def test_shakespeare_of_leaf(tmp_path):
    text = "to be, or not to be: that is the question; whether 'tis nobler in the mind"
    contexts = [(text * 2)[i : i + 80] for i in range(5)]
    nexts = [(text * 2)[i + 80] for i in range(5)]
    place = tmp_path / "shakespeare"
    write_leaf(place, "train", [{"hamlet": (contexts, nexts)}])
    write_leaf(place, "test", [{"ros": (["#" * 80] * 2, ["a", "#"])}])
    ours = data.load("shakespeare", tmp_path)
    letters = np.array(["", *natural.LETTERS])
    assert ["".join(letters[row]) for row in ours.x_train] == contexts
    assert [natural.LETTERS[label] for label in ours.y_train] == nexts
    assert (ours.tokens, ours.x_train.dtype) == (82, np.int32)
    assert ours.x_test.tolist() == [[81] * 80]  # "#" is unknown, and not predicted
    assert ours.standardization is None


def test_damaged_and_missing_files_of_leaf_are_named(tmp_path):
    for part in ("train", "test"):
        write_leaf(tmp_path / "femnist", part, [{"a": writer(2)}])
    path = tmp_path / "femnist" / "test" / "all_data_0_test_9.json"
    user = '{"users": ["a"], "num_samples": [%d], '
    user += '"user_data": {"a": {"x": %s, "y": [1]}}}'
    more = "user 'a' has 1 inputs and 1 labels, and num_samples says 2"
    for content, said in (
        ("{", "expected users, num_samples and user_data of LEAF"),
        ("[]", "expected users, num_samples and user_data of LEAF"),
        ('{"users": ["a"], "num_samples": [1]}', "KeyError 'user_data'"),
        (user % (2, [[0]]), more),
        (user % (1, [[0, 1]]), "cannot reshape array of size 2"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=f"^{path}.*{said}"):
            data.load("femnist", tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks test/\*\.json\)"):
        data.load("femnist", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"stackoverflow_train\.h5"):
        data.load("stackoverflow", tmp_path)


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
