"""A user's own arrays, tables, archives and folders of images."""

import csv

import numpy as np
import pytest
from PIL import Image

from fedjax_muon import data, partition
from tests.support.error_lines import one_line

RNG = np.random.default_rng(0)
X = RNG.normal(3, 2, size=(60, 4))
Y = np.array(["low", "high", "high"] * 20)
OWNERS = np.array(["b", "a", "c", "a"] * 15)


# ---------------------------------------------------------------- arrays
def test_arrays_are_standardized_by_their_training_part():
    dataset = data.from_arrays(X, Y, owners=OWNERS, test_share=0.25)
    assert dataset.classes == ("high", "low")
    assert (len(dataset.x_train), len(dataset.x_test)) == (45, 15)
    assert np.bincount(dataset.y_test).tolist() == [10, 5]  # stratified
    np.testing.assert_allclose(dataset.x_train.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(dataset.x_train.std(0), 1, atol=1e-6)
    # every training example is one that was given, with its label and its owner
    kept, _ = data.dataset.stratified(np.unique(Y, return_inverse=True)[1], 0.25)
    assert len(set(kept)) == 45
    raw = dataset.x_train * X[kept].std(0) + X[kept].mean(0)
    np.testing.assert_allclose(raw, X[kept], rtol=1e-4, atol=1e-4)
    assert np.unique(Y)[dataset.y_train].tolist() == Y[kept].tolist()
    assert np.unique(OWNERS)[dataset.owners].tolist() == OWNERS[kept].tolist()


def test_every_owner_keeps_a_training_example():
    few = np.where(np.arange(60) < 50, 0, np.arange(60))
    dataset = data.from_arrays(X, Y, owners=few)
    assert np.unique(dataset.owners).tolist() == list(range(11))
    assert len(dataset.x_train) + len(dataset.x_test) == 60
    assert 1 <= len(dataset.x_test) <= 12


def test_given_test_examples_are_the_only_ones():
    test = X[:6] + 1, Y[:6]
    dataset = data.from_arrays(X, Y, test=test)
    assert (len(dataset.x_train), len(dataset.x_test)) == (60, 6)
    expected = (test[0] - X.mean(0)) / X.std(0)
    np.testing.assert_allclose(dataset.x_test, expected, rtol=1e-4, atol=1e-5)
    assert dataset.y_test.tolist() == [1, 0, 0, 1, 0, 0]
    assert dataset.owners is None


@pytest.mark.parametrize(
    ("labels", "classes", "names", "numbers"),
    [
        ([2, 10, 2, 10], None, ("2", "10"), [0, 1, 0, 1]),
        ([0, 1, 1, 0], ("cat", "dog"), ("cat", "dog"), [0, 1, 1, 0]),
        (["dog", "cat"] * 2, ("cat", "dog"), ("cat", "dog"), [1, 0, 1, 0]),
        ([1, 0, 1, 0], ("1", "0"), ("1", "0"), [0, 1, 0, 1]),
    ],
)
def test_labels_are_names_or_numbers(labels, classes, names, numbers):
    test = np.eye(4), labels
    dataset = data.from_arrays(np.eye(4), labels, test=test, classes=classes)
    assert (dataset.classes, dataset.y_train.tolist()) == (names, numbers)


def test_token_ids_stay_as_they_are():
    ids = np.arange(40).reshape(10, 4)
    dataset = data.from_arrays(ids, [0, 1] * 5, text=True)
    assert dataset.x_train.dtype == np.int32
    assert (dataset.tokens, dataset.standardization) == (40, None)


# ---------------------------------------------------------------- owners
def test_every_owner_is_a_client():
    for owners in (OWNERS, [5, 2, 9, 2] * 15):
        parts = partition.by_owner(owners)
        assert len(parts) == 3
        for owner, part in zip(np.unique(owners), parts, strict=True):
            expected = [i for i, one in enumerate(owners) if one == owner]
            assert part.tolist() == expected
            assert part.dtype == np.int32


def test_owners_of_a_data_set_are_checked_and_kept():
    dataset = data.from_arrays(X, Y, owners=OWNERS)
    for wrong in (dataset.owners[:3], dataset.owners - 1, dataset.owners * 0.5):
        with pytest.raises(ValueError, match="owners must be 48 integers of 0 or more"):
            data.check(dataset._replace(owners=wrong))
    rest, (x, _) = data.hold_out(dataset, 0.25)
    assert len(rest.owners) == len(rest.x_train) == 48 - len(x)
    owned = zip(dataset.x_train, dataset.owners, strict=True)
    rows = {row.tobytes(): owner for row, owner in owned}
    assert [rows[row.tobytes()] for row in rest.x_train] == rest.owners.tolist()


# ---------------------------------------------------------------- files
def written(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def table(rows=range(60)):
    yield ["age", "bank", "risk", "note", "part", "income"]
    for i in rows:
        part = "Test " if i % 4 == 3 else "train"
        yield [X[i, 0], OWNERS[i], Y[i], "x, y", part, X[i, 1]]


def test_a_table_is_its_arrays(tmp_path):
    path = written(tmp_path / "a.csv", table())
    given = {"label": "risk", "owner": "bank", "exclude": ["note", "part"]}
    expected = data.from_arrays(X[:, :2], Y, owners=OWNERS)._replace(name="a.csv")
    ours = data.from_csv(path, **given)._replace(columns=None)
    np.testing.assert_equal(ours, expected)


def test_a_column_divides_a_table(tmp_path):
    path = written(tmp_path / "a.csv", table())
    ours = data.from_csv(path, label="risk", exclude=["note", "bank"], split="part")
    rows = np.arange(60) % 4 == 3
    expected = data.from_arrays(X[~rows, :2], Y[~rows], test=(X[rows, :2], Y[rows]))
    np.testing.assert_equal(
        ours._replace(columns=None), expected._replace(name="a.csv")
    )


def test_integer_labels_are_in_the_order_of_numbers(tmp_path):
    for names in (("1", "10"), ("00", "01")):
        rows = [["a", "n"], *([i, names[i % 2]] for i in range(20))]
        dataset = data.from_csv(written(tmp_path / "a.csv", rows), label="n")
        assert dataset.classes == names


def test_wrong_columns_are_refused(tmp_path):
    path = written(tmp_path / "a.csv", table())
    every = ["age", "bank", "note", "part", "income"]
    neither = "a.csv, line 2: 'b' in column 'bank' is neither train nor test"
    for given, said in (
        ({"owner": "bnk"}, "no column 'bnk' for owner; its columns are age, bank, "),
        ({"exclude": ["no"]}, "no column 'no' for exclude"),
        ({"split": "bank", "exclude": ["note", "part"]}, neither),
        ({"exclude": every}, "no column is left"),
    ):
        with pytest.raises(ValueError, match=said):
            data.from_csv(path, label="risk", **given)
    written(path, table(range(3)))
    with pytest.raises(ValueError, match="no row has test in column 'part'"):
        data.from_csv(path, label="risk", exclude=["note", "bank"], split="part")


def test_an_archive_is_its_arrays(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=X, y=Y, owner=OWNERS)
    expected = data.from_arrays(X, Y, owners=OWNERS)._replace(name="a.npz")
    np.testing.assert_equal(data.from_npz(path), expected)
    names = np.array(["high", "low", "none"])
    np.savez(path, x=X, y=Y, x_test=X[:3], y_test=Y[:3], classes=names)
    dataset = data.from_npz(str(path))
    assert (len(dataset.x_test), dataset.classes) == (3, ("high", "low", "none"))
    np.savez(path, x=np.arange(40, dtype=np.int32).reshape(10, 4), y=[0, 1] * 5)
    assert data.from_npz(path).tokens == 40


def test_arrays_that_are_not_read_are_named(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 2))
    arrays = {"x": x, "y": np.arange(20) % 2, "owners": np.ones(20), "x_val": x}
    np.savez(tmp_path / "some.npz", **arrays)
    with pytest.warns(
        UserWarning, match=r"owners, x_val will not be .* are x, y, owner, x_"
    ):
        data.from_npz(tmp_path / "some.npz")


def test_wrong_archives_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    for arrays, said in (
        ({"x": X}, "expected the arrays x, y .* found no y, but x; save them und"),
        ({"z": X}, "found no x, y, but z; save them under these names"),
        ({"x": X, "y": Y, "x_test": X}, "x_test and y_test belong together"),
        ({"x": X, "y": Y, "classes": np.arange(2)}, "expected classes as strings"),
        ({"x": X, "y": Y[:4]}, "y must be 60 integers or strings"),
        ({"x": X, "y": Y.astype(object)}, "y has Python objects: save texts as y.ast"),
    ):
        np.savez(path, allow_pickle=True, **arrays)
        with one_line(said, path):
            data.from_npz(path)


def test_a_missing_file_is_named(tmp_path):
    for read, given in ((data.from_npz, {}), (data.from_csv, {"label": "y"})):
        for path, said in (
            (tmp_path / "none", "there is no file .*none"),
            (tmp_path, "there is no file"),
        ):
            with pytest.raises(FileNotFoundError, match=said):
                read(path, **given)


# ---------------------------------------------------------- folders of images

COLORS = RNG.integers(0, 255, size=(24, 6, 5, 3), dtype=np.uint8)
CLASSES = ("cat", "dog")


def painted(root, images, suffix=".png"):
    """Images of both classes in turns, each of one of three owners."""
    for i, image in enumerate(images):
        place = root / CLASSES[i % 2] / f"owner{i % 3}_{i:02}{suffix}"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place)
    return root


def order(count):
    """The numbers of images in the order of their paths."""
    return sorted(range(count), key=lambda i: (i % 2, i % 3, i))


@pytest.mark.parametrize("images", [COLORS, COLORS[..., 0]])
def test_images_are_their_arrays(images, tmp_path):
    owner = lambda image: image.stem.partition("_")[0]
    ours = data.from_folder(painted(tmp_path, images), owner=owner)
    places = order(24)
    x = images.reshape(24, 6, 5, -1)[places]
    labels, owners = [CLASSES[i % 2] for i in places], [i % 3 for i in places]
    expected = data.from_arrays(x, labels, owners=owners)
    expected = expected._replace(name=tmp_path.name)
    names = tuple(f"owner{i}" for i in range(3))
    np.testing.assert_equal(ours, expected._replace(owner_names=names))
    by_pattern = data.from_folder(tmp_path, owner="^(.*)_")
    np.testing.assert_equal(by_pattern, ours)
    assert ours.classes == CLASSES


def test_training_and_test_folders_are_kept(tmp_path):
    painted(tmp_path / "train", COLORS[:18])
    painted(tmp_path / "test", COLORS[18:])
    ours = data.from_folder(tmp_path)
    assert (len(ours.x_train), len(ours.x_test)) == (18, 6)
    train, test = order(18), [18 + i for i in order(6)]
    label = lambda places: [CLASSES[i % 2] for i in places]
    held = COLORS[test], label(test)
    expected = data.from_arrays(COLORS[train], label(train), test=held)
    np.testing.assert_equal(ours, expected._replace(name=tmp_path.name))
    assert ours.owners is None


def test_images_of_several_sizes_are_resized(tmp_path, monkeypatch):
    painted(tmp_path, [*COLORS[:22], *RNG.integers(0, 255, (2, 9, 9), np.uint8)])
    with one_line("expected 6 x 5 pixels as in .* found 9 x 9; "):
        data.from_folder(tmp_path)
    dataset = data.from_folder(tmp_path, size=(4, 8))
    assert dataset.x_train.shape[1:] == (4, 8, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # so all are bombs
    with pytest.raises(ValueError, match=r"owner.*: expected a PNG image"):
        data.from_folder(tmp_path)


def test_other_formats_and_damaged_images(tmp_path):
    for suffix in (".JPG", ".bmp", ".tiff", ".webp"):
        dataset = data.from_folder(painted(tmp_path / suffix[1:], COLORS, suffix))
        assert len(dataset.x_train) + len(dataset.x_test) == 24
    painted(tmp_path / "png", COLORS)
    spoilt = tmp_path / "png/cat/owner0_00.png"
    start, eps = b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0\n"
    for content in (b"", b"not an image", start, eps, spoilt.read_bytes()[:99]):
        spoilt.write_bytes(content)
        with one_line("expected a PNG image, found a damaged file", spoilt):
            data.from_folder(tmp_path / "png")


def test_wrong_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*none"):
        data.from_folder(tmp_path / "none")
    with pytest.raises(ValueError, match="found none; it must have CLASS/IMAGE, or"):
        data.from_folder(tmp_path)
    Image.fromarray(COLORS[0]).save(tmp_path / "a.png")  # in no class
    painted(tmp_path, COLORS[::2][:1])
    with pytest.raises(ValueError, match="each a class, found cat; it must have"):
        data.from_folder(tmp_path)
    (tmp_path / "a.png").unlink()
    painted(tmp_path, COLORS[:3])
    with one_line("a test share of 0.2 leaves one side without the class"):
        data.from_folder(tmp_path)
