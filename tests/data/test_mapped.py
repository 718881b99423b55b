"""Datasets in NumPy files, whose training inputs stay on disk."""

import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon import data
from fedjax_muon.cli import names
from fedjax_muon.data.dataset import CHUNK, OnDisk, digest, subset
from tests.support.error_lines import one_line, refused

RNG = np.random.default_rng(0)
SHAPE = 32, 32, 3  # of which 400 are more than what is converted at a time
IMAGES = RNG.integers(0, 256, (400, *SHAPE), np.uint8)
assert IMAGES.size > 4 * CHUNK
ARRAYS = {
    "x": IMAGES,
    "y": np.arange(400) % 3,
    "owner": np.arange(400)[::-1] // 40 * 7,
    "x_test": RNG.integers(0, 256, (9, *SHAPE), np.uint8),
    "y_test": np.arange(9) % 3,
}
FEATURES = {
    "x": RNG.normal(3, 2, (400, 5)),
    "x_test": RNG.normal(3, 2, (9, 5)),
}


def write(folder, arrays=ARRAYS, **changes):
    folder.mkdir(exist_ok=True)
    for name, array in (arrays | changes).items():
        if array is not None:
            np.save(folder / f"{name}.npy", array)
    return folder


def in_memory(folder, arrays=ARRAYS):
    np.savez(folder / "all.npz", **arrays)
    return data.from_npz(folder / "all.npz")


@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float64, np.int64])
def test_the_numbers_are_those_of_an_archive(tmp_path, kind):
    small = {n: a[..., :2, :2, :] for n, a in ARRAYS.items() if n.startswith("x")}
    arrays = ARRAYS | {n: (3 * a[:300]).astype(kind) for n, a in small.items()}
    arrays |= {"y": ARRAYS["y"][:300], "owner": ARRAYS["owner"][:300]}
    mapped = data.mapped(write(tmp_path / "scans", arrays))
    expected = in_memory(tmp_path, arrays)
    assert isinstance(mapped.x_train, OnDisk)
    assert mapped.x_train.shape == expected.x_train.shape
    assert (mapped.x_train.dtype, mapped.name) == (np.float32, "scans")
    np.testing.assert_array_equal(mapped.x_train[:], expected.x_train)
    for name in ("y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(mapped, name), getattr(expected, name))
    for ours, theirs in zip(
        mapped.standardization, expected.standardization, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    parts, theirs = (fm.partition.by_owner(x.owners) for x in (mapped, expected))
    assert [part.tolist() for part in parts] == [part.tolist() for part in theirs]


def test_images_are_standardized_in_float64_by_all_examples(tmp_path):
    mapped = data.mapped(write(tmp_path / "scans"))
    x = IMAGES.astype(float)
    expected = (x - x.mean((0, 1, 2))) / x.std((0, 1, 2))
    ids = np.array([399, 0, 0, 217])
    np.testing.assert_allclose(mapped.x_train[ids], expected[ids], atol=1e-5)
    np.testing.assert_allclose(mapped.x_train[3:5], expected[3:5], atol=1e-5)


def test_a_given_standardization_is_taken_and_x_is_not_read(tmp_path):
    of_all = data.mapped(write(tmp_path / "scans")).standardization
    folder = write(tmp_path / "scans", mean=of_all.mean, std=of_all.std)
    again = data.mapped(folder)
    assert [a.tolist() for a in again.standardization] == [a.tolist() for a in of_all]
    write(tmp_path / "scans", mean=np.full(3, 100.0), std=np.array([1.0, 2, 4]))
    x = data.mapped(folder).x_train[:2]
    expected = (IMAGES[:2].astype(float) - 100) / [1, 2, 4]
    np.testing.assert_allclose(x, expected)
    for wrong, words in (
        ({"std": np.zeros(3)}, "std is not positive"),
        ({"mean": np.full(3, np.nan)}, "NaN or infinity"),
        ({"mean": np.zeros(2)}, "mean and std must be 3 numbers"),
    ):
        write(folder, mean=of_all.mean, std=of_all.std)
        with one_line(words, folder):
            data.mapped(write(folder, **wrong))


def test_token_ids_stay_as_they_are(tmp_path):
    tokens = np.arange(1200, dtype=np.int32).reshape(400, 3) % 50
    arrays = {"x": tokens, "x_test": tokens[:9] + 7}
    mapped = data.mapped(write(tmp_path / "texts", ARRAYS | arrays))
    assert (mapped.tokens, mapped.x_train.dtype) == (50, np.int32)
    assert mapped.standardization is None
    np.testing.assert_array_equal(mapped.x_train[np.array([5, 1])], tokens[[5, 1]])
    with one_line("token ids must not be negative"):
        data.mapped(write(tmp_path / "texts", ARRAYS | arrays, x=tokens - 1))


def test_classes_have_names(tmp_path):
    folder = write(tmp_path / "scans", classes=np.array(["a", "b", "c", "d"]))
    assert data.mapped(folder).classes == ("a", "b", "c", "d")
    (folder / "classes.npy").unlink()
    assert data.mapped(folder).classes == ("0", "1", "2")
    assert data.mapped(write(folder, owner=None)).owners is not None  # still there
    (folder / "owner.npy").unlink()
    assert data.mapped(folder).owners is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": ARRAYS["y"][:-1]}, "y_train must be 400 integers on one axis"),
        ({"y": ARRAYS["y"] / 2}, "y and y_test must be integers from 0, got float64"),
        ({"y": ARRAYS["y"] - 1}, r"y_train must be in 0..2 .*first in example 0"),
        ({"classes": np.array(["a", "b"])}, r"y_train must be in 0..1 \(the 2 classes"),
        ({"y_test": ARRAYS["y"]}, "y_test must be 9 integers on one axis"),
        ({"owner": ARRAYS["owner"][1:]}, "owners must be 400 integers of 0 or more"),
        ({"owner": ARRAYS["owner"] / 1}, "owners must be 400 integers of 0 or more"),
        ({"x_test": ARRAYS["x_test"][:, :8]}, "of one shape"),
        ({"x": np.arange(400)}, "x and x_test must be numbers"),
        ({"x": IMAGES.astype("S3")}, "x and x_test must be numbers"),
        ({"x": IMAGES * (0, 1, 1)}, "channel 0 is constant"),
        ({"x": np.asfortranarray(IMAGES)}, "its first axis must come first"),
        ({**FEATURES, "x": FEATURES["x"] * (np.nan, 1, 1, 1, 1)}, "NaN or infinity"),
        ({"x": np.array([None] * 400)}, "expected an array that numpy.save wrote"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, changes, words):
    folder = tmp_path / "scans"
    write(folder, **changes)
    refused(words, data.mapped, folder)


def test_missing_and_damaged_files_are_one_line(tmp_path):
    refused(
        "expected x.npy, .* found no x.npy; write it with numpy.save",
        data.mapped,
        tmp_path,
        error=FileNotFoundError,
    )
    folder = write(tmp_path / "scans")
    whole = (folder / "x.npy").read_bytes()
    cuts = {whole[:-1]: "1228927 on disk|mmap", whole + b"1": "1228929 on disk"}
    cuts |= {whole[:50]: "expected an array", b"": "expected an array"}
    for content, words in cuts.items():
        (folder / "x.npy").write_bytes(content)
        with one_line(words, folder / "x.npy", "write it again"):
            data.mapped(folder)


def test_nan_is_found_when_it_is_read(tmp_path):
    x = IMAGES.astype(np.float32)
    x[217, 3, 3, 1] = np.inf
    given = {"mean": np.full(3, 128.0), "std": np.full(3, 74.0)}
    mapped = data.mapped(write(tmp_path / "scans", x=x, **given))
    assert np.isfinite(mapped.x_train[:217]).all()
    with one_line("example 217 of .*NaN or infinity", tmp_path / "scans" / "x.npy"):
        mapped.x_train[np.array([4, 217])]
    kept = subset(mapped, np.arange(216, 230))
    with one_line("example 217 of "):
        kept.x_train[:3]


def test_parts_of_it_stay_on_disk(tmp_path):
    mapped, expected = data.mapped(write(tmp_path / "scans")), in_memory(tmp_path)
    (rest, held), (known, kept) = (data.hold_out(x, 0.1) for x in (mapped, expected))
    assert isinstance(rest.x_train, OnDisk)
    np.testing.assert_array_equal(held[0], kept[0])
    np.testing.assert_array_equal(rest.x_train[50:60], known.x_train[50:60])
    np.testing.assert_array_equal(rest.owners // 7, known.owners)
    less = subset(rest, np.arange(5, 30))
    np.testing.assert_array_equal(less.x_train[:], known.x_train[5:30])
    assert data.standardize(mapped) is mapped
    refused("these examples stay on disk", np.asarray, mapped.x_train)
    assert str(mapped).startswith("Dataset(409 examples (400 to train, 9 to test), 32")


def test_digests_tell_data_apart(tmp_path):
    first = digest(data.mapped(write(tmp_path / "scans")))
    assert digest(data.mapped(tmp_path / "scans")) == first
    other = IMAGES.copy()
    other[17, 0, 0, 0] ^= 1
    assert digest(data.mapped(write(tmp_path / "scans", x=other))) != first
    labels = ARRAYS["y"][::-1]
    assert digest(data.mapped(write(tmp_path / "scans", y=labels))) != first


def test_problems_and_commands_take_it(tmp_path):
    folder = write(tmp_path / "scans")
    problem = fm.problems.classification(data.mapped(folder))
    assert len(problem.parts(0)) == 10
    assert problem.name == "scans, clients by owner"
    words = f"classification:{folder},divide=iid,clients=4"
    made = names.made(names.called(words, "problem"))
    assert isinstance(made.dataset.x_train, OnDisk)
    assert len(made.parts(0)) == 4
    refused(r"data.mapped\(", fm.problems.classification, str(folder))
