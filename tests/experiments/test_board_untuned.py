"""Rows without a search: their rates, their runs, and what a search gains."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from experiments.board import __main__ as command, lines as kept, page, tuning, untuned
from experiments.board.candidates import CANDIDATES
from experiments.board.rows import ROWS
from experiments.board.tracks import TRACKS
from fedjax_muon.runs.intervals import half_width
from fedjax_muon.runs.rates import UNSEARCHED, Rate

KEPT = Path("results/board")


def trial(row, lr, seed, validation, *, diverged=False, **other):
    line = {"row": row, "stage": "trial", "hyper": {"lr": lr, **other}, "seed": seed}
    return line | {"validation": validation, "diverged": diverged}


def about(row, **space):
    return {"row": row, "stage": "about", "space": space}


def write(path, *lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_losses_are_points_below_the_best_trial():
    digits, tokens = TRACKS["digits"], TRACKS["tokens"]
    lines = [
        about("x", lr=0.1, mu=0.01),
        trial("x", 0.3, 100, 0.9, mu=0.01),
        trial("x", 0.3, 101, 0.8, mu=0.01),
        trial("x", 0.1, 100, 0.8, mu=0.01),
        trial("x", 0.1, 101, 0.85, mu=0.01, diverged=True),
        trial("x", 0.3, 100, 1.0, mu=0.03),  # another value of the other option
    ]
    found = untuned.losses(lines, digits)
    assert [*found] == [0.1, 0.3]
    assert np.allclose([*found.values()], [45, 0])
    bits = [about("x", lr=0.1), trial("x", 0.1, 0, 3.04), trial("x", 0.3, 0, 3.0)]
    assert np.allclose([*untuned.losses(bits, tokens).values()], [2, 0])


def test_two_tracks_choose_the_rate(tmp_path):
    both = {
        "digits": {0.0333: 0.5, 0.0577: 0.99, 0.1: 0.8, 0.3: 0.7, 0.9: 0.9},
        "fashion": {0.0333: 0.5, 0.0577: 0.99, 0.1: 0.6, 0.3: 0.75, 2.7: 0.99},
        "plays": {0.0333: 0.9, 0.1: 0.1, 0.3: 0.1},
    }
    for track, scores in both.items():
        lines = [trial("fedavg", lr, 100, score) for lr, score in scores.items()]
        write(tmp_path / f"{track}.jsonl", about("fedavg", lr=0.1), *lines)
    # 0.0577 is not 0.1 times a power of 3; 0.9 and 2.7 are tried once; plays has no say
    assert untuned.rates(tmp_path)["fedavg"] == 0.3


def test_the_kept_rates_are_those_of_the_rows():
    rates = untuned.rates(KEPT)
    assert rates["fedmuon"] == 0.03
    for name in TRACKS:
        path = KEPT / untuned.PLACE / f"{name}.jsonl"
        for row in {line["row"] for line in kept.read(path)} if path.exists() else ():
            first, *runs = kept.lines_of(path, row)
            assert first["rules"] == untuned.rules()
            runs = kept.finals(runs)
            assert {x["hyper"]["lr"] for x in runs} <= {rates[untuned.method_of(row)]}
            assert len({run["seed"] for run in runs}) == len(runs)


def test_rows_without_a_rate_are_refused(capsys):
    with pytest.raises(SystemExit):
        command.main("untuned", "ring")
    assert "no method of ring has a rate without a s" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main("untuned", "digits", row="fedexp")
    assert "unknown row 'fedexp'" in capsys.readouterr().err


def test_every_row_of_other_names_has_its_method():
    for row, method in untuned.METHODS.items():
        rows = untuned.EVERY
        if row in rows and row != "fedasync":
            known = rows[method].label.partition(", ")[0]
            assert rows[row].label.partition(", ")[0] == known
        if row in CANDIDATES:
            assert untuned.searched(row) in ROWS


def test_a_row_goes_on_and_keeps_to_its_rules(short, tmp_path, monkeypatch):
    monkeypatch.setattr(untuned, "rates", lambda place: {"fedavg": 0.1})
    problem = TRACKS["digits"].problem(None)
    run = lambda: [
        *untuned.runs_of(tmp_path, "fedavg", ROWS["fedavg"], "digits", problem)
    ]
    slow = untuned.runs_of(tmp_path, "fedavg", ROWS["fedavg"], "digits", problem)
    lines = [next(slow), *run()]
    assert [line["seed"] for line in lines] == [0, 1]
    assert [*slow] == lines[1:]  # which another process has kept
    assert run() == []
    path = tmp_path / "untuned" / "digits.jsonl"
    whole = path.read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[:2]))
    assert run() == lines[1:]
    assert path.read_text() == whole
    monkeypatch.setattr(untuned, "rates", lambda place: {"fedavg": 0.2})
    with pytest.raises(ValueError, match=r"with rate 0.1, now 0.2; delete its lines"):
        run()


def test_a_plateau_ends_where_a_point_is_lost():
    rates = np.array([0.01, 0.1, 1.0, 10.0])
    curve = tuning.Curve(rates, np.array([3.0, 0.0, 0.5, 2.5]))
    low, high = curve.plateau()
    assert np.isclose(low, 10 ** (-1 - 1 / 3))
    assert np.isclose(high, 10 ** (0 + 0.5 / 2))
    flat = tuning.Curve(rates, np.array([0.2, 0.0, 0.5, 0.9]))
    assert flat.plateau() == pytest.approx((0.01, 10.0))


def test_the_track_that_is_left_out_does_not_choose():
    rates = np.array([0.1, 1.0, 10.0])
    low = tuning.Curve(rates, np.array([0.0, 2.0, 9.0]))
    high = tuning.Curve(rates, np.array([7.0, 2.0, 0.0]))
    lost = tuning.left_out({"one": low, "two": low, "three": high})
    assert lost["three"] == pytest.approx(7.0)  # the others want 0.1
    assert 0 < lost["one"] < 2  # between 0.1 and 1


def test_gains_are_paired_by_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(untuned, "rates", lambda place: {"fedavg": 0.1})
    few = TRACKS["digits"]._replace(seeds=2)
    monkeypatch.setattr(tuning, "TRACKS", {"digits": few})
    final = lambda seed, score: {
        "row": "fedavg",
        "stage": "final",
        "seed": seed,
        "score": score,
    }
    write(tmp_path / "digits.jsonl", final(1, 0.9), final(0, 0.8))
    write(tmp_path / "untuned" / "digits.jsonl", final(0, 0.791), final(1, 0.9))
    (found,) = tuning.gains(tmp_path)
    assert np.allclose(found.gains, [0.9, 0])
    assert found.passes
    assert found.words.startswith("**0.4 ± ") or found.words.startswith("**0.5 ± ")


def test_the_rate_of_the_library_is_that_of_the_rows():
    known, found = UNSEARCHED["fedmuon"], tuning.gains(KEPT)
    assert known.rate == Rate(untuned.rates(KEPT)["fedmuon"], "cosine")
    good, tried = tuning.passed([x for x in found if x.track != "private"], "fedmuon")
    assert good >= tuning.ENOUGH
    assert f"on {good} of {tried} tracks" in known.gains
    # the candidates are in the library if they meet the bar on more tracks
    assert all(tuning.passed(found, each)[0] <= good for each in CANDIDATES)
    (plays,) = [x for x in found if (x.track, x.row) == ("plays", "fedmuon")]
    assert f"{plays.gains.mean():.1f} points with an LSTM" in known.gains


def test_the_page_has_what_a_search_gains():
    text = page.PAGE.read_text()
    for line in tuning.gains_table(KEPT):
        assert line in text.splitlines()


def test_the_study_has_numbers_of_the_rows():
    text = Path("results/tuning/README.md").read_text()
    answer = text.partition("**Answer.**")[2].partition("## How wide")[0]
    known = {each.words.strip("*") for each in tuning.gains(KEPT)}
    shown = re.findall(r"-?\d+\.\d+ ± \d+\.\d+", answer.replace("\n", " "))
    assert len(shown) >= 5
    assert set(shown) <= known
    bits = next(x.gains / 50 for x in tuning.gains(KEPT) if x.row == "own_rate_tokens")
    assert f"gains {bits.mean():.3f} ± {half_width(bits):.3f} bits" in " ".join(
        text.split()
    )
    plateaus = (Path("results/tuning") / "plateaus.md").read_text()
    for line in tuning.costs_table(KEPT):
        assert line in plateaus.splitlines()
