"""Tables with texts and blanks, compared with scikit-learn, and as sums of sites."""

import numpy as np
import pytest

from fedjax_muon import data
from tests.support.error_lines import one_line

RNG = np.random.default_rng(0)
N = 120
AGE = RNG.normal(60, 10, N).round(1)
PRESSURE = [
    None if i % 7 == 3 else round(v, 1) for i, v in enumerate(RNG.normal(120, 15, N))
]
SEX = RNG.choice(["F", "M"], N).tolist()
SMOKER = RNG.choice(["yes", "no", ""], N).tolist()
WARD = [("north", "south", "east")[i % 3] for i in range(N)]
ILL = np.where(RNG.random(N) < 0.5, "ill", "well").tolist()
HEAD = ["age", "pressure", "sex", "smoker", "ward", "outcome", "part"]
MIXED = {"categories": "one_hot", "missing": "mean"}


def rows():
    parts = ["test" if i % 4 == 0 else "train" for i in range(N)]
    columns = AGE, PRESSURE, SEX, SMOKER, WARD, ILL, parts
    return [
        ["" if v is None else str(v) for v in row] for row in zip(*columns, strict=True)
    ]


def read(path, table, head=HEAD, *, reader=data.from_csv, **options):
    path.write_text("\n".join(",".join(row) for row in [head, *table]) + "\n")
    usual = {"label": "outcome", "owner": "ward", "split": "part"}
    return reader(path, **{**usual, **options})


def summed(path, table, head=HEAD):
    return read(path, table, head, reader=data.sum_columns, **MIXED)


def by_scikit_learn():
    """Inputs of training and test rows; a blank text is a category, the last."""
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    test = np.arange(N) % 4 == 0
    numbers = np.stack([AGE, np.array(PRESSURE, float)], axis=1)
    filled = SimpleImputer(add_indicator=True).fit(numbers[~test])
    texts = np.array([SEX, [word or "~" for word in SMOKER]]).T
    hot = OneHotEncoder(sparse_output=False).fit(texts[~test])
    x = np.concatenate([filled.transform(numbers), hot.transform(texts)], axis=1)
    x = x[:, [0, 1, 2, 3, 4, 5, 6, 7]]
    scaled = StandardScaler().fit(x[~test]).transform(x)
    return scaled[~test], scaled[test]


def test_inputs_are_those_of_scikit_learn(tmp_path):
    ours = read(tmp_path / "a.csv", rows(), **MIXED)
    x_train, x_test = by_scikit_learn()
    np.testing.assert_allclose(ours.x_train, x_train, atol=1e-6)
    np.testing.assert_allclose(ours.x_test, x_test, atol=1e-6)
    assert [c.name for c in ours.columns.columns] == [
        "age",
        "pressure",
        "sex",
        "smoker",
    ]
    assert ours.columns.columns[3].categories == ("no", "yes", "")


def test_numbers_stay_as_they_were(tmp_path):
    plain = [[row[0], row[4], row[5], row[6]] for row in rows()]
    head = ["age", "ward", "outcome", "part"]
    one = read(tmp_path / "a.csv", plain, head)
    other = read(tmp_path / "a.csv", plain, head, **MIXED)
    np.testing.assert_equal(one._replace(columns=None), other._replace(columns=None))
    assert one.columns == other.columns


def test_sums_of_sites_are_those_of_all_rows(tmp_path):
    """Sites with different numbers of rows, and categories that some of them lack."""
    all_yes = lambda ward: {"east": "yes", "north": ""}.get(ward)
    of = lambda ward: [
        [*row[:3], row[3] if all_yes(ward) is None else all_yes(ward), *row[4:]]
        for row in rows()
        if row[4] == ward and (ward != "south" or float(row[0]) > 55)
    ]
    sites = [of(ward) for ward in ("north", "south", "east")]
    whole = read(tmp_path / "a.csv", [row for site in sites for row in site], **MIXED)
    parts = [summed(tmp_path / f"{i}.csv", site) for i, site in enumerate(sites)]
    files = [
        data.save_columns(tmp_path / f"{i}.json", part) for i, part in enumerate(parts)
    ]
    joined = data.join_columns([*map(data.load_columns, files)], files)
    for one, other in zip(joined.columns, whole.columns.columns, strict=True):
        assert one._replace(mean=0, squares=0) == other._replace(mean=0, squares=0)
        assert (one.mean, one.squares) == pytest.approx((other.mean, other.squares))
    place = data.save_columns(tmp_path / "all.json", joined)
    alike = [
        read(tmp_path / f"{i}.csv", site, columns=place) for i, site in enumerate(sites)
    ]
    x = np.concatenate([each.x_train for each in alike])
    np.testing.assert_allclose(x, whole.x_train, atol=1e-6)
    np.testing.assert_allclose(
        alike[0].standardization, whole.standardization, rtol=1e-12, atol=1e-12
    )
    assert {each.classes for each in alike} == {("ill", "well")}


def test_a_site_may_have_one_class_if_the_others_are_known(tmp_path):
    whole = read(tmp_path / "a.csv", rows(), **MIXED)
    place = data.save_columns(tmp_path / "c.json", whole.columns)
    ill = [row for row in rows() if row[5] == "ill"]
    site = read(tmp_path / "b.csv", ill, columns=place)
    assert site.classes == ("ill", "well")
    assert {*site.y_train.tolist()} == {0}


def at(column, value, every=1):
    """The rows with a value in a column."""
    i = HEAD.index(column)
    change = lambda n, row: [
        *row[:i],
        value(n) if callable(value) else value,
        *row[i + 1 :],
    ]
    return [change(n, row) if n % every == 0 else row for n, row in enumerate(rows())]


REFUSED = {
    "line 2: 'F' in column 'sex' is not a number; exclude the column, or give": (
        at("sex", "F"),
        {"missing": "mean"},
    ),
    "line 5: column 'pressure' is blank; fill it in, .* missing='mean'": (
        rows(),
        {"categories": "one_hot"},
    ),
    "line 2: 'old' in column 'age' is not a number; most cells are numbers: corr": (
        at("age", "old", 10),
        MIXED,
    ),
    "column 'sex' has 90 different texts in 90 training .* exclude it": (
        at("sex", lambda n: f"P{n:03}"),
        MIXED,
    ),
    "column 'sex' has 30 different texts in 90 training .* exclude it": (
        at("sex", lambda n: f"P{n // 4:03}"),
        MIXED,
    ),
    "column 'smoker' is blank in all rows; exclude it": (at("smoker", "NA"), MIXED),
    "column 'sex', 'F', is constant in the training examples": (at("sex", "F"), MIXED),
}


@pytest.mark.parametrize("said", REFUSED)
def test_columns_that_are_no_features_are_refused(said, tmp_path):
    table, options = REFUSED[said]
    with one_line(said, tmp_path / "a.csv"):
        read(tmp_path / "a.csv", table, **options)


def test_sites_whose_columns_differ_are_refused(tmp_path):
    one = read(tmp_path / "a.csv", rows(), **MIXED)
    place = data.save_columns(tmp_path / "c.json", one.columns)
    head = ["AGE", *HEAD[1:]]
    with one_line("lacks age and has AGE too, compared with", tmp_path):
        read(tmp_path / "b.csv", rows(), head, columns=place)
    other = summed(tmp_path / "b.csv", rows(), head)
    with one_line("east lacks age and has AGE too, compared with west"):
        data.join_columns([one.columns, other], ["west", "east"])
    texts = summed(tmp_path / "b.csv", at("age", lambda n: "ab"[n % 2]))
    with one_line("column 'age' has numbers in one table, but texts in another"):
        data.join_columns([one.columns, texts])
    with one_line("line 2: 'a' in column 'age' is not a number", tmp_path):
        read(tmp_path / "b.csv", at("age", "a"), columns=place)
    with one_line("has the label 'dead', which is not one of", tmp_path):
        read(tmp_path / "b.csv", at("outcome", "dead", 9), columns=place)
    with one_line("columns says what becomes of texts and blanks; leave out"):
        read(tmp_path / "b.csv", rows(), columns=place, missing="mean")
    place.write_text("{}")
    with one_line("expected sums that .* write it again", tmp_path):
        read(tmp_path / "b.csv", rows(), columns=place)


def test_the_order_of_columns_is_free(tmp_path):
    one = read(tmp_path / "a.csv", rows(), **MIXED)
    place = data.save_columns(tmp_path / "c.json", one.columns)
    turned = [row[::-1] for row in at("pressure", lambda n: str(n))]
    with pytest.warns(UserWarning, match="column 'pressure' numbers the rows"):
        other = read(tmp_path / "b.csv", turned, HEAD[::-1], columns=place)
    np.testing.assert_allclose(other.x_train[:, 0], one.x_train[:, 0], atol=1e-6)


def test_what_no_training_example_has_is_warned_of(tmp_path):
    table = [
        [*row[:2], "X" if row[6] == "test" else row[2], *row[3:]] for row in rows()
    ]
    with pytest.warns(
        UserWarning, match="'sex' has 'X', which no training example has"
    ):
        ours = read(tmp_path / "a.csv", table, **MIXED)
    mean, std = ours.standardization
    np.testing.assert_allclose(
        ours.x_test[:, 3:5], (-mean / std)[3:5] + 0 * ours.x_test[:, 3:5], rtol=1e-6
    )
    table = [
        [*row[:1], "" if row[6] == "test" else "1" + row[0], *row[2:]] for row in rows()
    ]
    with pytest.warns(UserWarning, match="column 'pressure' has a blank, which no tr"):
        ours = read(tmp_path / "a.csv", table, **MIXED)
    np.testing.assert_allclose(ours.x_test[:, 1], 0, atol=1e-6)


@pytest.mark.parametrize(
    "options", [MIXED, {"exclude": ["sex", "smoker"], "missing": "mean"}]
)
def test_numbers_of_rows_are_warned_of(options, tmp_path):
    with pytest.warns(
        UserWarning, match="column 'age' numbers the rows, .* exclude it"
    ):
        read(tmp_path / "a.csv", at("age", lambda n: str(1 + n)), **options)
