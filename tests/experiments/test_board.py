"""The board: its rules, and its page from kept runs."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from experiments.board import __main__ as command, entries, page, protocol
from experiments.board.tracks import TRACKS

pytestmark = pytest.mark.slow
KEPT = Path("results/board")


def test_every_method_has_six_trials():
    for track in TRACKS.values():
        names = [*entries.entries_of(track)]
        assert len(names) >= 10
        assert "fedavg" in names
        for name in names:
            trials = entries.ENTRIES[name].trials(track)
            assert len({trial.words for trial in trials}) == 6
    odd = entries.Entry("fedavg", "sgd", axis={"server_lr": (1.0, 0.5, 0.3, 0.1)})
    with pytest.raises(ValueError, match="has 4 points"):
        odd.trials(TRACKS["digits"])


@pytest.mark.parametrize("method", ["fedavg", "fedmuon"])
def test_the_page_follows_from_the_kept_runs(method):
    lines = (KEPT / "digits.jsonl").read_text().splitlines()
    final = [row for row in map(json.loads, lines) if row["stage"] == "final"]
    own = [row for row in final if row["method"] == method]
    base = [row["score"] for row in final if row["method"] == "fedavg"]
    scores, first = [100 * row["score"] for row in own], []
    for row in own:  # megabytes up to 95% of FedAvg's score
        pairs = zip(row["scores"], row["bytes"], strict=True)
        first.append(next(b for s, b in pairs if s >= 0.95 * np.mean(base)) / 1e6)
    half = stats.t.ppf(0.975, 4) * np.std(scores, ddof=1) / np.sqrt(5)
    text = page.PAGE.read_text().partition(TRACKS["digits"].title)[2]
    label = entries.ENTRIES[method].label
    (line,) = [t for t in text.splitlines() if t.startswith(f"| {label} | lr")][:1]
    _, _, _, score, _, megabytes, *_ = (cell.strip(" *") for cell in line.split("|"))
    assert score == f"{np.mean(scores):.1f} ± {half:.1f}"
    assert megabytes == f"{np.mean(first):.3g}"


def test_a_row_again_is_bitwise_identical(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(TRACKS, "digits", TRACKS["digits"]._replace(rounds=5))
    monkeypatch.setattr(protocol, "SEEDS", (0, 1))
    for name in ("one", "two"):
        command.main("digits", method="fedavg", output=tmp_path / name)
    command.main("digits", method="fedavg", output=tmp_path / "two")  # is there already
    one, two = ((tmp_path / n / "digits.jsonl").read_text() for n in ("one", "two"))
    assert one == two
    assert len(one.splitlines()) == 6 * 2 + 2
    with pytest.raises(SystemExit):
        command.main("digits", method="stem", output=tmp_path)
    assert (
        "no declared space on the board; add it to ENTRIES" in capsys.readouterr().err
    )
