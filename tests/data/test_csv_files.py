"""Tables as programs write them, and as people do: one meaning is read, or refused."""

import bz2
import gzip

import numpy as np
import pytest

from fedjax_muon import data, models, tasks
from fedjax_muon.data import cleaning
from tests.support.error_lines import one_line

RNG = np.random.default_rng(0)
X = RNG.normal(40, 10, size=(60, 2)).round(2)
BANKS = ("north", "south", "west")
RISKS = ("high", "low")
HEAD = ["age", "income", "bank", "risk"]


def rows(change=lambda i, row: row):
    for i, (age, income) in enumerate(X.tolist()):
        yield change(i, [str(age), str(income), BANKS[i % 3], RISKS[i % 2]])


def text(change=lambda i, row: row, head=HEAD, separator=",", end="\n"):
    return end.join(separator.join(row) for row in (head, *rows(change))) + end


def at(column, value, every=6):
    """Puts a value into a column of every sixth row."""

    def change(i, row):
        return [
            value if j == column and i % every == 0 else v for j, v in enumerate(row)
        ]

    return change


def read(path, content, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return data.from_csv(path, **({"label": "risk", "owner": "bank"} | options))


RISK = [RISKS[i % 2] for i in range(60)]
PLAIN = data.from_arrays(X, RISK, owners=[*BANKS] * 20)
NEW_LINES = lambda i, row: [*row[:3], f'"{row[3]}"', f'"a, ""b""\n{i}"']
COMMA = lambda i, row: [row[0].replace(".", ","), row[1].replace(".", ","), *row[2:]]
TITLE = "Loans of 2024\n\n# exported\n"
SPACED = lambda i, row: [f" {row[0]} ", f'"{row[1]}"', f" {row[2]}", f"{row[3]} "]
EMPTY = lambda i, row: [*row, ""]


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (text(), {}),
        (text(separator=";"), {"separator": ";"}),
        (text(separator="\t"), {"separator": "\t"}),
        (text(separator=" "), {"separator": " "}),
        (text(COMMA, separator=";"), {"separator": ";", "decimal": ","}),
        (text(end="\r\n"), {}),
        (text(end="\r"), {}),
        ("\ufeff" + text(), {}),
        (text().encode("utf-16"), {"encoding": "utf-16"}),
        (text().encode("cp1252"), {"encoding": "cp1252"}),
        (TITLE + text(), {"header": 4}),
        ("sep=;\n" + text(separator=";"), {"separator": ";", "header": 2}),
        (text() + "\n\n", {}),
        (text().rstrip(), {}),
        (text(head=[" age ", "income", '"bank"', " risk"]), {}),
        (text(SPACED), {}),
        (text(EMPTY, [*HEAD, ""]), {"exclude": [""]}),
        (text(EMPTY, [*HEAD, "Unnamed: 4"]), {"exclude": ["Unnamed: 4"]}),
    ],
)
def test_one_table_in_many_forms(content, options, tmp_path):
    ours = read(tmp_path / "a.csv", content, **options)
    np.testing.assert_equal(ours._replace(columns=None), PLAIN._replace(name="a.csv"))


@pytest.mark.parametrize("end", ["gz", "bz2"])
def test_packed_tables(end, tmp_path):
    path = tmp_path / f"a.csv.{end}"
    packed = {"gz": gzip, "bz2": bz2}[end].compress(text().encode())
    ours = read(path, packed)._replace(columns=None)
    np.testing.assert_equal(ours, PLAIN._replace(name=path.name))
    with one_line("expected a table in utf-8 with ',' between columns, found", path):
        read(path, packed[:-20])


def test_cells_of_several_lines_and_columns_that_are_left_out(tmp_path):
    head = [*HEAD, "note"]
    given = {"exclude": ["note "], "label": " risk"}
    ours = read(tmp_path / "a.csv", text(NEW_LINES, head), **given)
    np.testing.assert_equal(ours._replace(columns=None), PLAIN._replace(name="a.csv"))
    swallowed = text(lambda i, row: [*row, '"x' if i in (3, 6) else "x"], head)
    for broken in (text(NEW_LINES, head)[:-2], swallowed):  # quotes are not closed
        with one_line("found a damaged one .(unexpected end|',' expected after)"):
            read(tmp_path / "a.csv", broken, **given)


LATE = lambda i, row: ["old" if i == 50 else row[0], *row[1:]]
NOTED = lambda i, row: NEW_LINES(i, LATE(i, row))
REFUSED = [  # what the error says, the table, and options
    (
        "line 1: expected different .* 'age' twice",
        text(head=["age", *HEAD[:1], *HEAD[2:]]),
        {},
    ),
    ("line 1: column 2 has no name; name it", text(head=["age", "", *HEAD[2:]]), {}),
    ("exclude 'Unnamed: 0'", text(head=["Unnamed: 0", *HEAD[1:]]), {}),
    ("line 1: expected rows below the names", ",".join(HEAD), {}),
    ("line 52: 'old' in column 'age' is not", text(LATE), {}),
    ("line 103: 'old' in column", text(NOTED, [*HEAD, "note"]), {"exclude": ["note"]}),
    ("line 103: 'old' in column 'age' is", text(LATE, end="\n\n"), {}),
    (r"line 2: 'x' .*number \(nor in 'inc", text(lambda i, r: [*"xy", *r[2:]]), {}),
    ("line 2: expected 4 columns as in line 1, found 5", text(at(3, "low,high")), {}),
    ("line 62: expected 4 columns as in line 1, found 1", text() + "   \n", {}),
    ("with ',' between columns, found .*'utf-8' codec", text().encode("utf-16"), {}),
    ("can't decode byte 0xfc .*; give sep", text().encode() + b"1,2,\xfc,low\n", {}),
    ("its columns are age;.*; give separator, encoding, or", text(separator=";"), {}),
    ("its columns are none; give separator", "\n\n", {}),
    ("and save other formats, as of Excel, as CSV", b"PK\3\4rest", {}),
    ("columns are a\0g\0e", text().encode("utf-16-le"), {}),
    (r"with '\|\|' between columns", text(), {"separator": "||"}),
    ("give another decimal than ',,'", text(), {"decimal": ",,"}),
    ("give another decimal than ','", text(), {"decimal": ","}),
    ("unknown encoding: utf-88", text(), {"encoding": "utf-88"}),
    ("its columns are 46.4, 41.05, south, low; give", text(), {"header": 3}),
]


@pytest.mark.parametrize(("said", "content", "options"), REFUSED)
def test_what_has_no_one_meaning_is_refused(said, content, options, tmp_path):
    with one_line(said, tmp_path / "a.csv"):
        read(tmp_path / "a.csv", content, **options)


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("cell", ["", "NaN", "inf", "1e300", "1_0", "True", "1,234.5"])
def test_cells_that_are_no_finite_numbers_are_refused(cell, column, tmp_path):
    said = (
        f"line 2: '{cell}' in column '{HEAD[column]}' is not a finite number; correct"
    )
    with one_line(said, tmp_path / "a.csv"):
        read(tmp_path / "a.csv", text(at(column, f'"{cell}"')))


# ---------------------------------------------------------------- names
@pytest.mark.parametrize("column", [2, 3])
@pytest.mark.parametrize("word", ["", " ", *cleaning.MISSING, "nan", "NULL", " na "])
def test_missing_labels_and_owners_are_refused_with_their_line(word, column, tmp_path):
    name = HEAD[column]
    shown = repr(word.strip()) + ", which stands for" if word.strip() else "empty"
    said = rf"line 2: column '{name}' is {shown}.*.10 of 60 are missing".replace(
        "?", r"\?"
    )
    with one_line(said, tmp_path / "a.csv"):
        read(tmp_path / "a.csv", text(at(column, word)))
    if word.strip():
        ours = read(tmp_path / "a.csv", text(at(column, word)), na_values=["--"])
        assert len(ours.classes) + len(np.unique(ours.owners)) == 6
        assert column == 2 or word.strip() in ours.classes


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["1", "1.0", " 1", "2", "10", "10.00"], ("1", "2", "10")),
        (["1.0", "2.0"], ("1", "2")),
        (["00", "01"], ("00", "01")),
        (["True", "False"], ("False", "True")),
        (["a", " a", "a ", "A"], ("A", "a")),
        (["é", "e\u0301", "b"], ("b", "é")),
        (["1.10", "1.2"], ("1.10", "1.2")),
    ],
)
def test_what_means_one_thing_is_one_class_and_one_owner(values, classes, tmp_path):
    change = lambda i, row: [*row[:2], *[values[i // 2 % len(values)]] * 2]
    ours = read(tmp_path / "a.csv", text(change))
    assert ours.classes == classes
    assert len(np.unique(ours.owners)) == len(classes)
    labels = [values[i // 2 % len(values)] for i in range(60)]
    expected = data.from_arrays(X, labels, owners=labels)
    np.testing.assert_equal(
        expected._replace(name="a.csv"), ours._replace(columns=None)
    )


@pytest.mark.parametrize("values", [("High", "high"), ("01", "1"), ("a  b", "a b")])
def test_names_that_may_be_one_are_warned_of(values, tmp_path):
    change = lambda i, row: [*row[:3], values[i % 2]]
    with pytest.warns(UserWarning, match="column 'risk' '.*' and '.*' count as two"):
        assert len(read(tmp_path / "a.csv", text(change)).classes) == 2


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        (("train", " Test "), 30),
        (("Training", "VALIDATION"), 30),
        (("train", "train", "dev"), 20),
    ],
)
def test_a_column_of_parts_in_usual_words(parts, count, tmp_path):
    change = lambda i, row: [*row, parts[i // 2 % len(parts)]]
    ours = read(tmp_path / "a.csv", text(change, [*HEAD, "part"]), split="part")
    assert len(ours.x_test) == count == len(ours.test_owners)
    three = lambda i, row: [*row, ("train", "val", "test")[i % 3]]
    with one_line("line 3: 'val' in column 'part' is neither train nor test; change"):
        read(tmp_path / "a.csv", text(three, [*HEAD, "part"]), split="part")


def test_classes_without_training_examples_are_warned_of(tmp_path):
    change = lambda i, row: [
        *row[:3],
        "rare" if i == 59 else row[3],
        "train" if i < 50 else "test",
    ]
    with pytest.warns(UserWarning, match="the class 'rare' has test examples, but"):
        read(tmp_path / "a.csv", text(change, [*HEAD, "part"]), split="part")


# ---------------------------------------------------------------- large numbers
@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_times_keep_their_digits(unit, tmp_path):
    change = lambda i, row: [str((1_700_000_000 + i) * unit), *row[1:]]
    ours = read(tmp_path / "a.csv", text(change))
    assert len(np.unique([*ours.x_train[:, 0], *ours.x_test[:, 0]])) == 60
    mean = ours.standardization.mean[0] / unit
    assert 1_700_000_000 < mean < 1_700_000_060


def test_digits_that_are_lost_are_named(tmp_path):
    times = 1_700_000_000 + 3600 * np.arange(60)
    x = np.stack([times, X[:, 0]], axis=1)
    with pytest.warns(UserWarning, match="channel 0: numbers around 1.7.*e.09 lose"):
        data.from_arrays(x.astype(np.float32), [0, 1] * 30)
    whole = data.from_arrays(x.astype(int), [0, 1] * 30)
    assert len(np.unique(whole.x_train[:, 0])) == 48
    x[:, 0] = 1_700_000_000 + np.arange(60)
    with one_line("channel 0 is constant .* subtract the smallest first if they diff"):
        data.from_arrays(x.astype(np.float32), [0, 1] * 30)
    change = lambda i, row: [str(10**18 + i), *row[1:]]
    with one_line("column 'age' is constant .* subtract the smallest first if they"):
        read(tmp_path / "a.csv", text(change))
    same = lambda i, row: ["0.1", "7", *row[2:]]
    with one_line("column 'age', column 'income' are constant in the training"):
        read(tmp_path / "a.csv", text(same))


# ---------------------------------------------------------------- arrays
OBJECTS = np.array(["cat", "dog"] * 30, object)
GAPS = np.where(np.arange(60) % 6 == 0, None, OBJECTS)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (OBJECTS, ("cat", "dog")),
        (OBJECTS.astype("S"), ("cat", "dog")),
        ([b"cat", "dog"] * 30, ("cat", "dog")),
        (np.array([True, False] * 30), ("False", "True")),
        (np.array([1.0, 2.0] * 30), ("1", "2")),
        (np.array([1, 2.0] * 30, object), ("1", "2")),
        (np.array(["2", 10] * 30, object), ("2", "10")),
        (np.array(["2", 10] * 30, np.dtypes.StringDType()), ("2", "10")),
    ],
)
def test_names_in_all_types_of_arrays(labels, classes):
    dataset = data.from_arrays(X, labels, owners=labels)
    assert (dataset.classes, len(np.unique(dataset.owners))) == (classes, 2)
    test = X[:4], np.asarray(labels)[:4].tolist()
    assert data.from_arrays(X, labels, test=test).classes == classes


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (GAPS, "example 0: y is empty .10 of 60 are missing.; fill it in, or leave"),
        (np.where(GAPS == None, np.nan, GAPS), "example 0: y is empty"),  # noqa: E711 - by element
        (GAPS.astype("U").astype("U3") != "dog", None),
        (np.array(["nan", "a", "b"] * 20), "example 0: y is 'nan', which stands for a"),
        (np.array([0.5, 1] * 30), "y must be integers or strings, got 0.5 in example"),
        (np.eye(60, dtype=int), r"one per example, got int64.60, 60.; give"),
        (np.arange(60), "there are 60 different labels; numbers that are not classes"),
    ],
)
def test_labels_of_arrays_that_are_refused(labels, said):
    if said is None:
        assert data.from_arrays(X, labels).classes == ("False", "True")
        return
    with one_line(said):
        data.from_arrays(X, labels)


IMAGES = RNG.integers(0, 255, size=(60, 8, 8), dtype=np.uint8)
COLORS = RNG.integers(0, 255, size=(60, 3, 8, 9), dtype=np.uint8)


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("reader", ["arrays", "npz", "check"])
def test_images_without_channels_on_the_last_axis_are_refused(kind, reader, tmp_path):
    def read(x):
        y = [0, 1] * 30
        if reader == "arrays":
            return data.from_arrays(x, y)
        if reader == "npz":
            np.savez(tmp_path / "a.npz", x=x, y=y)
            return data.from_npz(tmp_path / "a.npz")
        x = x.astype(kind if kind is np.uint8 else np.float32)
        return data.check(data.Dataset(x, np.array(y), x, np.array(y), ("a", "b")))

    x = IMAGES.astype(kind)
    with one_line(r"an axis of channels, x.*\[..., None\]; if its last axis has chann"):
        read(x)
    with one_line(r"channels come last: x.*.transpose.0, 2, 3, 1."):
        read(COLORS.astype(kind))
    for fine in (
        x[..., None],
        x[:, :, None],
        COLORS.transpose(0, 2, 3, 1).astype(kind),
    ):
        assert read(fine).x_train.shape[1:] == fine.shape[1:]
    series = RNG.normal(size=(60, 32, 9)).astype(np.float32)
    assert kind is np.uint8 or read(series).x_train.shape[1:] == (32, 9)


def test_models_of_images_with_channels_first_are_refused():
    for shape in ((3, 32, 32), [1, 28, 28]):
        with one_line(r"channels come last: x.transpose\(0, 2, 3, 1\)"):
            tasks.classification(models.MLP(10), shape)


IRIS = "5.1,3.5,1.4,0.2,setosa\n6.2,2.2,4.5,1.5,versicolor\n"
CARS = "vhigh,2,more,2,small,low,acc\nhigh,3,4,more,big,high,unacc\n"


WITHOUT_NAMES = [  # lines, and their label
    (IRIS, "setosa"),
    (IRIS, "species"),
    ("1,14.2,1.7,15.6\n2,13.2,1.8,11.2\n", "1"),
    ("1,2,spam\n4,1,ham\n", "spam"),
    ("1,2,1.0\n4,1,2.0\n", "1.0"),
    (CARS, "acc"),
]


@pytest.mark.parametrize(("lines", "label"), WITHOUT_NAMES)
def test_a_line_of_names_that_is_missing_is_asked_for(lines, label, tmp_path):
    with one_line("the line with the names; add such a line if there is none"):
        read(tmp_path / "x.data", 9 * lines, label=label, owner=None)


NUMBERS = ("0,1,2,label", "1,2,3,4", "2019,2021,2020,spam", "400.5,401,402,kind")


@pytest.mark.parametrize("names", [*NUMBERS, "x,y,z,a"])
def test_names_may_be_numbers(names, tmp_path):
    rows = [f"{i},{i * i},{-i},{'ab'[i % 2]}\n" for i in range(20)]
    content, label = "".join([f"{names}\n", *rows]), names.split(",")[-1]
    table = read(tmp_path / "x.csv", content, label=label, owner=None)
    assert len(table.y_train) + len(table.y_test) == 20


def test_lines_may_end_in_several_ways(tmp_path):
    lines = ["a,b,label", *(f"{i},{i * i},{'xy'[i % 2]}" for i in range(20))]
    how = {"label": "label", "owner": None}
    plain = read(tmp_path / "x.csv", "\n".join(lines), **how)
    for ends in (("\n", "\r"), ("\r\n", "\n", "\r"), ("\n",) * 20 + ("\r",)):
        mixed = "".join(line + ends[i % len(ends)] for i, line in enumerate(lines))
        np.testing.assert_equal(read(tmp_path / "x.csv", mixed, **how), plain)
