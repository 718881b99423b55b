"""The vectors are those that `make` writes, and the library conforms to all of them."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from conformance import check, make
from conformance.adapters.fedjax_muon import IMPLEMENTATIONS
from conformance.family import SAME, lines, setting
from conformance.variants import alone, variant
from tests.conformance import (
    planted,
    planted_compositions,
    planted_systems,
    planted_votes,
)
from tests.conformance.mistakes import CHOICES, KNOWN, UNSEEN
from tests.support.packages import needs

VECTORS = Path(make.FOLDER)
NAMES = sorted(path.stem for path in VECTORS.glob("*.json"))
ROUNDED = {"muon_rank": 2e-5}  # tiny matrices feel the 1e-7 that guards the division
FAMILIES = make.families()


def spec(name):
    return json.loads((VECTORS / f"{name}.json").read_text())


def assert_same(made, kept):
    """The same up to rounding: float32 of sketches, float64 of all else."""
    assert type(made) is type(kept)
    if isinstance(made, dict) and "dtype" in made:
        assert made["dtype"] == kept["dtype"]
        atol = 1e-12 if made["dtype"] == "<f8" else 1e-5
        same = np.testing.assert_allclose
        same(check.arrays(made), check.arrays(kept), rtol=0, atol=atol)
    elif isinstance(made, dict):
        assert made.keys() == kept.keys()
        for key in made:
            assert_same(made[key], kept[key])
    elif isinstance(made, list):
        assert len(made) == len(kept)
        for a, b in zip(made, kept, strict=True):
            assert_same(a, b)
    else:
        assert made == kept


def as_json(value):
    return json.loads(json.dumps(value))


def test_every_file_is_made_and_no_other_is_there():
    assert [*make.specs()] == [*dict.fromkeys(make.specs())]
    assert {*make.specs()} == {*NAMES}
    sizes = [(VECTORS / f"{name}.json").stat().st_size for name in NAMES]
    assert max(sizes) < 150e3
    assert sum(sizes) < 4e6


@pytest.mark.parametrize("name", FAMILIES)
def test_references_and_single_departures_are_those_of_the_oracles(name):
    """Thus every departure still has its place in its oracle."""
    family, kept = FAMILIES[name](), spec(name)
    assert_same(as_json(make.head(family)), {k: kept[k] for k in make.head(family)})
    want = check.arrays(kept["reference"])
    np.testing.assert_allclose(variant(family, {}), want, rtol=0, atol=1e-12)
    axes, sketches = kept["axes"], check.arrays(kept["sketches"])
    for choice in alone(family):
        ((axis, word),) = choice.items()
        row = [axes[axis].index(word) if a == axis else 0 for a in axes]
        made = check.sketch(variant(family, choice), family.problem.shapes)
        found = sketches[:, kept["variants"].index(row)]
        np.testing.assert_allclose(made, found, rtol=1e-5, atol=1e-5)


def test_a_departure_that_cannot_be_seen_fails_the_build():
    family = FAMILIES["fedavg"]()
    no_change = lines("fedavg_weighted", "history = []", "history = list()")
    hidden = {**family.axes, "list": {"[]": SAME, "list()": no_change}}
    with pytest.raises(ValueError, match=r"list.*seen already"):
        make.build(family._replace(axes=hidden))
    tiny = {"lr": {"lr": SAME, "a little more": setting(lr=0.2001)}}
    with pytest.raises(ValueError, match="does not show"):
        make.build(family._replace(axes=tiny))
    gone = {"line": {"is": SAME, "is not there": lines("fedavg", "a line", "another")}}
    with pytest.raises(ValueError, match="has not once the line: 'a line'"):
        make.build(family._replace(axes=gone))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_variants_are_made_again(name):
    assert_same(as_json(make.specs()[name]()), spec(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_library_conforms(name):
    report = check.judge(spec(name), IMPLEMENTATIONS[name])
    assert report["conforms"], report
    assert report["error"] < ROUNDED.get(name, 1e-6)


# ------------------------------------------------------------------------ the checker
MISTAKEN = sorted({name for name, *_ in KNOWN + UNSEEN})


def planted_in(name, wrong=""):
    name = "muon" if name == "muon_decay" else name
    places = planted, planted_systems, planted_compositions, planted_votes
    method = next(getattr(place, name) for place in places if hasattr(place, name))
    return lambda task: method(task, wrong)


def in_float32(implementation):
    """The same with all that it is given in float32."""
    cast = lambda node: (
        {k: cast(v) for k, v in node.items()}
        if isinstance(node, dict)
        else [*map(cast, node)]
        if isinstance(node, list)
        else node.astype(np.float32)
        if isinstance(node, np.ndarray)
        else node
    )

    def run(task):
        vars(task).update(cast(vars(task)))
        return implementation(task)

    return run


@pytest.mark.parametrize("name", MISTAKEN)
def test_right_implementations_conform_in_both_precisions(name):
    right = planted_in(name)
    for implementation in (right, in_float32(right)):
        report = check.judge(spec(name), implementation)
        assert report["conforms"], report


def test_mistakes_are_found_and_named():
    specs = {name: spec(name) for name in MISTAKEN}
    named = []
    for name, wrong, said in KNOWN + UNSEEN:
        report = check.judge(specs[name], planted_in(name, wrong))
        assert not report["conforms"], (name, wrong)
        if said:
            assert said in report["verdict"], (name, wrong, report)
        named.append(bool(said))
    assert len(UNSEEN) > len(named) / 2 > 30
    assert np.mean(named) > 0.8


@pytest.mark.parametrize(("name", "choice", "said"), CHOICES)
def test_what_sources_leave_open_conforms(name, choice, said):
    report = check.judge(spec(name), planted_in(name, choice))
    assert report["conforms"], report
    assert report["verdict"].endswith(said)


def with_polars(monkeypatch, change):
    """FedMuon whose polar factors are changed."""
    right = planted.polar
    with monkeypatch.context() as patch:
        patch.setattr(planted, "polar", lambda m: change(right, m))
        return check.judge(spec("fedmuon"), planted.fedmuon)


def test_coarse_is_what_half_precision_makes(monkeypatch):
    """Errors of a few percent in float64 are departures, and not rounding."""
    half = lambda v: v.astype(np.float16).astype(float)
    rounded = with_polars(monkeypatch, lambda polar, m: half(polar(half(m))))
    assert rounded["verdict"].startswith("COARSE: conforms, to a few percent")
    assert rounded["level"] == "bfloat16"
    longer = with_polars(monkeypatch, lambda polar, m: 1.03 * polar(m))
    bent = with_polars(monkeypatch, lambda polar, m: polar(m) - 0.02 * m)
    uneven = with_polars(monkeypatch, lambda polar, m: polar(m) * (1 + 0.02 * m))
    for report in (longer, bent, uneven):
        assert report["verdict"].startswith("DIFFERS")
        assert report["level"] is None
        assert 1e-3 < report["error"] < check.LEVELS["bfloat16"]
    assert "step of w: 1.03 times" in longer["verdict"]
    report = check.judge(spec("signmuon"), planted_in("signmuon", "rate of Moonlight"))
    assert report["verdict"].startswith("DIFFERS")  # a sign that flips is no rounding
    uploads = check.judge(spec("fedavg"), planted_in("fedavg", "uploads in float16"))
    assert uploads["verdict"].startswith("COARSE")


FAULTS = {
    "raises": (lambda x: 1 / 0, "round 2: ZeroDivisionError: division by zero"),
    "NaN": (lambda x: {**x, "w": x["w"] * np.nan}, "round 2: ValueError: w has NaN"),
    "shape": (lambda x: {**x, "w": x["w"].T}, r"w is float64 of shape \[4, 6\]"),
    "type": (lambda x: {**x, "b": ["a"] * 6}, "b is <U1 of shape"),
    "key": (lambda x: {"w": x["w"]}, r"gave \['w'\], not a dictionary of w, b"),
    "nothing": (lambda x: None, "round 2: ValueError: gave NoneType"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_say_where_they_are(fault):
    change, said = FAULTS[fault]

    def method(task):
        for number, x in enumerate(planted.fedavg(task)):
            yield change(x) if number == 1 else x

    report = check.judge(spec("fedavg"), method)
    assert not report["conforms"]
    assert re.search(said, report["verdict"])
    assert report["verdict"].endswith("the others: conforms")


def test_a_fault_in_a_case_leaves_the_others():
    def method(task):
        return planted.krum(task) if len(task.messages) == 7 else None

    report = check.judge(spec("krum"), method)
    assert report["verdict"].startswith("FAILS at case ")
    assert report["verdict"].endswith("the others: conforms")
    assert not report["conforms"]
    assert check.judge(spec("fedavg"), lambda task: None)["error"] is None


def test_other_versions_are_refused():
    report = check.judge({**spec("fedavg"), "version": 2}, planted.fedavg)
    assert report["verdict"].startswith("REFUSED: vectors of version 2")
    assert not report["conforms"]


def test_damaged_files_are_refused_and_the_others_judged(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text(CODE % "")
    whole = {
        name: (VECTORS / f"{name}.json").read_text() for name in ("fedavg", "krum")
    }
    (tmp_path / "krum.json").write_text(whole["krum"])
    damaged = {
        "truncated": whole["fedavg"][:5000],
        "an array": whole["fedavg"].replace('"data": "', '"data": "AAAA', 1),
        "an entry": whole["fedavg"].replace('"given":', '"gave":'),
        "a list": "[1, 2]",
        "empty": "",
    }
    for text in damaged.values():
        (tmp_path / "fedavg.json").write_text(text)
        assert check.main([str(mine), "--vectors", str(tmp_path)]) == 1
        refused, *others = capsys.readouterr().out.splitlines()
        place = tmp_path / "fedavg.json"
        assert refused.startswith(f"fedavg: REFUSED: {place} is damaged (")
        assert refused.endswith("; take it again from a release")
        assert others[0].startswith("krum: conforms")


CODE = """
from tests.conformance import planted
from tests.support.packages import needs
def fedavg(task): return planted.fedavg(task, "%s")
def krum(task): return planted.krum(task)
"""


def test_the_command(tmp_path, capsys):
    mine, found = tmp_path / "mine.py", tmp_path / "report.json"
    mine.write_text(CODE % "")
    assert check.main([str(mine), "--json", str(found)]) == 0
    reports = json.loads(found.read_text())["reports"]
    assert [r["vectors"] for r in reports] == ["fedavg", "krum"]
    assert capsys.readouterr().out.count("conforms") == 2
    mine.write_text(CODE % "uniform")
    assert check.main([str(mine)]) == 1
    assert "fedavg: DEPARTS: weights: uniform [error" in capsys.readouterr().out
    assert check.main([str(mine), "--free", "weights"]) == 0
    for text in ("", "IMPLEMENTATIONS = {'fedsomething': print}"):
        mine.write_text(text)
        with pytest.raises(SystemExit) as stop:
            check.main([str(mine)])
        assert stop.value.code == 2


def test_the_checker_needs_numpy_alone_and_is_short():
    text = Path(check.__file__).read_text()
    assert len(text.splitlines()) <= 300
    imports = [
        line.split()[1]
        for line in text.splitlines()
        if re.match("(import|from) ", line)
    ]
    assert {*imports} <= {*sys.stdlib_module_names, "numpy"}


@pytest.mark.slow
def test_the_example_has_its_verdict(tmp_path, capsys):
    needs("torch")
    readme = (VECTORS.parent / "README.md").read_text()
    code = re.findall(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)[1]
    said = re.findall(r"^(fedmuon: .*) \[error", readme, re.MULTILINE)
    assert len(code.splitlines()) < 40
    mine = tmp_path / "mine.py"
    inner = re.search(r"^ +g = .*\n +m = .*\n +y = .*\n", code, re.MULTILINE).group()
    g, m, y = inner.splitlines(keepends=True)
    for text, verdict in zip((code, code.replace(inner, y + g + m)), said, strict=True):
        mine.write_text(text)
        assert check.main([str(mine)]) == (verdict != "fedmuon: conforms")
        assert verdict in capsys.readouterr().out
