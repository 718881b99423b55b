"""Datasets: embedded ones, checks, standardization, where files come from."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
from sklearn import model_selection
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import StandardScaler

from fedjax_muon import data
from fedjax_muon.data import Dataset, loading
from fedjax_muon.data.dataset import digest, stratified, summary
from fedjax_muon.data.source import File, Layout, Source, located, verify
from tests.support.error_lines import one_line
from tests.support.tiny_images import (
    IMAGES,
    LABELS,
    TEST,
    TRAIN,
    assert_standardized,
    write_npz,
)

pytestmark = pytest.mark.usefixtures("no_data_directory")


# ------------------------------------------------------------------- summaries
@pytest.mark.parametrize(
    ("shape", "classes", "more", "said"),
    [
        ((4,), 3, {}, "60 examples (48 to train, 12 to test), 4 features, 3 classes:"),
        ((28, 28, 1), 10, {}, "28 x 28 x 1, 10 classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"),
        ((1,), 1, {}, "1 feature, 1 class: 0"),
        ((128, 9), 40, {}, "128 x 9, 40 classes: 0, 1, 2, 3, 4, ..."),
        ((4,), 2, {"owners": np.arange(48) % 5}, "2 classes: 0, 1; 5 owners"),
    ],
)
def test_a_dataset_says_what_it_has(shape, classes, more, said):
    x, y = np.zeros((60, *shape), np.float32), np.zeros(60, np.int32)
    names = tuple(map(str, range(classes)))
    dataset = Dataset(x[:48], y[:48], x[48:], y[48:], names, **more)
    assert said in repr(dataset)
    assert summary(dataset, [9, 20, 12, 7]).endswith("; 4 clients with 7 to 20")
    assert summary(dataset, [9], members="agent").endswith("; 1 agent with 9 each")
    texts = dataset._replace(x_train=np.zeros((48, 3), np.int32))
    assert ", 3 tokens each, " in repr(texts)
    windows = data.from_text({"a": "to be or not"}, window=2)
    assert ", 3 tokens each, 1 document: a" in repr(windows)


def test_every_array_is_in_the_digest():
    x, y = np.zeros((4, 2), np.float32), np.zeros(4, np.int32)
    dataset = Dataset(x, y, x, y, ("a", "b"), owners=y, test_owners=y)
    whole = dataset._asdict() | {"classes": ("a", "c")}
    for name in ("x_train", "y_train", "x_test", "y_test", "owners", "test_owners"):
        whole[name] = whole[name].copy()
        whole[name].flat[0] = 1
    digests = {digest(dataset._replace(**{k: v})) for k, v in whole.items()}
    assert len(digests) == 1 + 7  # tokens and standardization follow from the others


# -------------------------------------------------------------- embedded sets
def by_bytes(x, y):
    return {row.tobytes(): label for row, label in zip(x, y, strict=True)}


def whole(raw):
    x, y = (raw.x_train, raw.x_test), (raw.y_train, raw.y_test)
    return np.concatenate(x), np.concatenate(y)


def test_digits_are_scikit_learns():
    raw, source = loading.read("digits")[0], load_digits()
    owners = by_bytes(source.images, source.target)
    assert len(owners) == len(source.target) == 1797  # no image occurs twice
    images, labels = whole(raw)
    assert by_bytes(16 * images.astype(np.float64)[..., 0], labels) == owners


def test_digits_are_split_in_a_fixed_stratified_way_and_standardized():
    raw, loaded, again = (
        loading.read("digits")[0],
        data.load("digits"),
        data.load("digits"),
    )
    assert (len(loaded.x_train), len(loaded.x_test)) == (1437, 360)
    np.testing.assert_array_equal(loaded.x_test, again.x_test)
    everyone = np.bincount(load_digits().target)
    assert np.all(abs(np.bincount(loaded.y_test) - 0.2 * everyone) < 1)
    assert loaded.classes == tuple("0123456789")
    assert_standardized(loaded, raw.x_train, raw.x_test)
    for one in (loaded, again):
        np.testing.assert_array_equal(one.y_train, raw.y_train)
    assert loaded.y_train.dtype == loaded.y_test.dtype == np.int32


def test_breast_cancer_is_scikit_learns_with_1_for_malignant():
    raw, source = loading.read("breast_cancer")[0], load_breast_cancer()
    malignant = source.target == list(source.target_names).index("malignant")
    rows = by_bytes(source.data.astype(np.float32), malignant)
    assert len(rows) == len(source.target) == 569  # no tumour occurs twice
    x, y = whole(raw)
    assert by_bytes(x, y == 1) == rows
    assert y.sum() == 212  # as published
    assert raw.classes == ("benign", "malignant")


def test_breast_cancer_is_split_and_standardized():
    loaded, again = data.load("breast_cancer"), data.load("breast_cancer")
    assert (loaded.x_train.shape, loaded.x_test.shape) == ((455, 30), (114, 30))
    np.testing.assert_array_equal(loaded.x_test, again.x_test)
    assert abs(loaded.y_test.sum() - 0.2 * 212) < 1
    raw = loading.read("breast_cancer")[0]
    scaler = StandardScaler().fit(raw.x_train.astype(np.float64))
    for got, x in ((loaded.x_train, raw.x_train), (loaded.x_test, raw.x_test)):
        assert got.dtype == np.float32
        expected = scaler.transform(x.astype(np.float64))
        # x, mean, their difference and the quotient: each rounds once, in float32
        error = 4 * np.finfo(np.float32).eps * (abs(x) + scaler.mean_) / scaler.scale_
        assert np.all(abs(got - expected) <= error)


# --------------------------------------------------- any dataset at the edge

HALVES = (IMAGES[TRAIN], LABELS[TRAIN], IMAGES[TEST], LABELS[TEST])
SOUND = Dataset(*HALVES, classes=tuple("abcdefghij"))
IDS = np.arange(120, dtype=np.int32).reshape(40, 3)


def halves(x):
    return {"x_train": x[TRAIN], "x_test": x[TEST]}


def test_check_returns_the_same_data_with_int32_labels():
    checked = data.check(SOUND._replace(y_test=LABELS[TEST].astype(np.int64)))
    np.testing.assert_array_equal(checked.x_train, IMAGES[TRAIN])
    np.testing.assert_array_equal(checked.y_test, LABELS[TEST])
    assert checked.y_train.dtype == checked.y_test.dtype == np.int32
    assert checked.classes == tuple("abcdefghij")
    texts = data.standardize(data.check(SOUND._replace(**halves(IDS))))
    for x, expected in ((texts.x_train, IDS[TRAIN]), (texts.x_test, IDS[TEST])):
        assert x.dtype == np.int32
        np.testing.assert_array_equal(x, expected)  # as they are


def poisoned(value):
    x = IMAGES.astype(np.float32)
    x[4, 0, 0, 1] = x[9, 2, 2, 2] = value
    return halves(x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": IMAGES[TEST, :4]}, r"one shape and dtype.*\[10, 4, 5, 3\]"),
        (halves(IMAGES * 1.0), "x_train must be non-empty float32 or uint8.*float64"),
        ({"x_train": IMAGES[:0], "y_train": LABELS[:0]}, "x_train must be non-empty"),
        (poisoned(np.nan), "x_train has NaN or infinity in 2 of 30.*example 4"),
        ({"y_train": LABELS[:29]}, r"y_train must be 30 integers.*uint8\[29\]"),
        ({"y_test": LABELS[TEST] * 1.0}, r"y_test must be 10 integers.*float64\[10\]"),
        ({"classes": tuple("abcdefghi")}, r"must be in 0\.\.8 \(the 9 classes\)"),
        ({"y_test": LABELS[TEST] - np.int64(3)}, r"y_test must be in 0\.\.9.*got -"),
        ({"y_train": LABELS[TRAIN] + np.int64(2**32)}, "y_train must be in .*429496"),
        (halves(IDS - 1), "x_train: token ids must not be negative, got -1"),
        (halves(IDS[:, None]), r"int32\[30, 1, 3\]; or int32 token ids \[n, length\]"),
    ],
)
def test_check_says_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        data.check(SOUND._replace(**change))


def test_standardize_leaves_its_input_alone_and_refuses_a_constant_channel():
    before = poisoned(3.0)
    kept = {name: x.copy() for name, x in before.items()}
    data.standardize(SOUND._replace(**before))
    np.testing.assert_equal(before, kept)
    x = IMAGES[TRAIN].copy()
    x[..., 1] = 7
    with pytest.raises(ValueError, match="channel 1 is constant in the training"):
        data.standardize(SOUND._replace(x_train=x))


# ------------------------------------------------------------- names, folders
def test_unknown_names_tell_the_nearest():
    for typo, nearest in (
        ("fashon_mnist", "; did you mean 'fashion_mnist'?"),
        ("Fashion-MNIST", "; did you mean 'fashion_mnist'?"),
        ("cifar-10", "; did you mean 'cifar10'?"),
        ("digit", "; did you mean 'digits'?"),
        ("zebra", "."),
    ):
        with pytest.raises(ValueError, match="unknown dataset") as caught:
            data.load(typo)
        asked, listed = str(caught.value).split(" Choose one of ")
        assert asked == f"unknown dataset {typo!r}{nearest}"
        assert listed.split(", ")[:-1] == sorted(data.NAMES)


EMBEDDED = ("digits", "breast_cancer", "plays")
FROM_FILES = [*(n for n in data.NAMES if n not in EMBEDDED), "tfds:tiny_images"]


@pytest.mark.parametrize("name", FROM_FILES)
def test_sets_in_files_need_a_directory_and_name_paths_and_remedy(name, tmp_path):
    message = f"{name} is stored in files.*FEDJAX_MUON_DATA"
    with pytest.raises(ValueError, match=message):
        data.load(name)
    if loading.source_of(name).prepared:
        offer = "" if name.startswith("tfds:") else "'tfds:"
        command = r"fedjax_muon\.data\.prepare\("
        with one_line(command, tmp_path, offer, error=FileNotFoundError):
            data.load(name, tmp_path)


def test_the_environment_names_the_directory(tmp_path, monkeypatch):
    write_npz(tmp_path / "cifar10.npz")
    monkeypatch.setenv("FEDJAX_MUON_DATA", str(tmp_path))
    np.testing.assert_array_equal(data.load("cifar10").y_train, LABELS[TRAIN])
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        data.load("cifar10", tmp_path / "elsewhere")  # the argument has precedence


# ---------------------------- mean and deviation that a dataset remembers

RNG = np.random.default_rng(0)
X = RNG.normal(3, 2, size=(30, 4)).astype(np.float32)
Y = [0, 1, 1] * 10


def test_new_inputs_get_the_form_of_the_test_examples():
    for x in (X, X.astype(np.float64), RNG.integers(0, 255, (30, 5, 5, 3), np.uint8)):
        dataset = data.from_arrays(x, Y, test=(x[:7], Y[:7]))
        found = dataset.standardization
        np.testing.assert_array_equal(found.apply(x[:7]), dataset.x_test)
        np.testing.assert_array_equal(found.apply(x), dataset.x_train)
        axes = tuple(range(x.ndim - 1))
        mean, std = x.mean(axes, np.float64), x.std(axes, np.float64)
        np.testing.assert_allclose(found.mean, mean, rtol=1e-6)
        np.testing.assert_allclose(found.std, std, rtol=1e-6)


def test_pixels_of_a_named_set_are_standardized_by_it():
    digits, raw = data.load("digits"), data.loading.read("digits")[0]
    found = digits.standardization.apply(raw.x_test)
    np.testing.assert_array_equal(found, digits.x_test)
    rest, _ = data.hold_out(digits, 0.1)
    assert rest.standardization is digits.standardization


def test_two_standardizations_become_one():
    once = data.from_arrays(X, Y, test=(X[:7], Y[:7]))
    half = data.dataset.subset(once, np.arange(9))
    twice = data.standardize(half)
    np.testing.assert_allclose(twice.standardization.apply(X[:7]), twice.x_test, 1e-4)
    assert abs(twice.standardization.mean - once.standardization.mean).max() > 0.01
    for x in (X[:, :3], np.float32(1), np.array(["a"] * 4)):
        with pytest.raises(ValueError, match=r"x must be numbers \[\.\.\., 4\], got "):
            once.standardization.apply(x)


ONE = data.Standardization(np.float32([1, 2]), np.float32([3, 4]))


def test_another_normalization_is_named():
    for saved, loaded, said in (
        (ONE, None, "trained on standardized inputs, and the dataset is not standard"),
        (None, ONE, "not trained on standardized inputs, and the dataset is st"),
        (ONE, data.Standardization(ONE.mean[:1], ONE.std[:1]), "2 channels, .* has 1;"),
        (ONE, ONE._replace(mean=np.float32([1, 2.01])), "mean of channel 1 is 2 in th"),
        (ONE, ONE._replace(std=np.float32([3.1, 4])), "std of channel 0 is 3 in the m"),
    ):
        whole = f"the dataset was normalized differently: .*{said}"
        with pytest.raises(ValueError, match=whole):
            data.check_standardization(saved, loaded)
    near = data.Standardization(ONE.mean * np.float32(1 + 1e-6), ONE.std)
    data.check_standardization(ONE, near)  # which is rounding
    data.check_standardization(None, None)


# ------------------ files that are missing, cut off or others than published

CONTENT = b"one\ntwo\nthree"
PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
KIND = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}


def source(*files, folders=("inner", ""), **rest):
    read = lambda paths: Dataset(*[np.zeros((2, 1), np.float32)] * 4, ("a", "b"))
    layout = Layout(files, folders, read, url="https://x.org", packed=tuple(PACKED))
    return Source("1 number", None, 2, "none", (layout,), **rest)


KNOWN = File("a", size=13, lines=3)


def put(path, content=CONTENT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", ["", *PACKED])
def test_whole_files_are_what_was_published(tmp_path, suffix):
    content = PACKED[suffix](CONTENT) if suffix else CONTENT
    put(tmp_path / f"a{suffix}", content)
    found = located("toy", source(KNOWN), tmp_path)
    assert found.paths == [tmp_path / f"a{suffix}"]
    verify(found)


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("known", [File("a", lines=3), File("a", size=13)])
def test_damaged_packed_files(tmp_path, suffix, known):
    path, whole = tmp_path / f"a{suffix}", PACKED[suffix](CONTENT)
    message = f"a complete {KIND[suffix]} file, found.* cut off after .* bytes .*delete"
    flipped = whole[:14] + bytes([whole[14] ^ 255]) + whole[15:]
    for content in (whole[:-6], whole[: len(whole) // 2], b"not packed", flipped):
        put(path, content)
        with one_line(message, path):
            verify(located("toy", source(known), tmp_path))


@pytest.mark.parametrize(
    ("known", "content", "message"),
    [
        (File("a", size=13), CONTENT[:-1], "expected 13 bytes as published, found 12"),
        (File("a", lines=3), CONTENT[:8], "expected 3 lines as published, found 2"),
        (File("a", lines=3), CONTENT[:9] + b"\n\n", "expected 3 lines .* found 4"),
        (File("a", lines=3), b"", "expected 3 lines as published, found 0"),
    ],
)
def test_other_files_are_refused_with_the_remedy(tmp_path, known, content, message):
    put(tmp_path / "a", content)
    remedy = "delete it and download from https://x.org"
    with one_line(message, tmp_path / "a", remedy):
        verify(located("toy", source(known), tmp_path))


def test_files_come_from_the_first_folder_that_has_all(tmp_path):
    both = source(File("a"), File("b"), prepared="toy")
    with pytest.raises(FileNotFoundError) as caught:
        located("toy", both, tmp_path)
    inner = tmp_path / "inner"
    assert str(caught.value) == (
        f"toy: no a, b (or with .gz, .bz2, .xz) in {inner} or {tmp_path}; "
        "download from https://x.org; or run fedjax_muon.data.prepare('toy', "
        f"'{tmp_path}') once and load 'tfds:toy'"
    )
    put(inner / "a.gz")
    put(tmp_path / "b")
    lacks = f"({inner} lacks b) ({tmp_path} lacks a); or run"
    with one_line("^toy", lacks, error=FileNotFoundError):
        located("toy", both, tmp_path)
    put(tmp_path / "a")
    assert located("toy", both, tmp_path).paths == [tmp_path / "a", tmp_path / "b"]
    put(inner / "b")
    found = located("toy", both, tmp_path)
    assert found.paths == [inner / "a.gz", inner / "b"]
    assert found.folder == inner
    put(inner / "a")
    assert located("toy", both, tmp_path).paths[0] == inner / "a"


@pytest.mark.parametrize("seed", range(5))
def test_examples_are_divided_as_by_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    counts, share = rng.integers(5, 60, size=seed + 2), (0.2, 0.25, 1 / 3)[seed % 3]
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    parts = model_selection.train_test_split(
        np.arange(len(labels)), test_size=share, stratify=labels, random_state=0
    )
    for found, expected in zip(stratified(labels, share), parts, strict=True):
        np.testing.assert_array_equal(found, expected)
