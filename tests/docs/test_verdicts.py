"""Verdicts: what several pages say of the methods follows from the kept rows."""

import csv
import functools
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import fedjax_muon as fm
from benchmarks import table
from experiments.board import standings, tuning
from experiments.board.page import WEIGHTS
from fedjax_muon.runs.intervals import half_width
from fedjax_muon.runs.rates import UNSEARCHED

pytestmark = pytest.mark.slow

KEPT = Path(__file__).parents[2] / "results"
COUNTS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")


def spread(values: np.ndarray) -> str:
    return f"{abs(values.mean()):.1f} ± {half_width(values):.1f}"


def clear(values: np.ndarray) -> float:
    """The sign of a mean whose interval has no 0."""
    return np.sign(values.mean()) * (abs(values.mean()) > half_width(values))


def rows(path: str) -> list[dict[str, str]]:
    return [*csv.DictReader((KEPT / path).read_text().splitlines())]


def slower(file: str, one: str, other: str, key: str = "wall_seconds") -> dict:
    """How many times as long a round of one method takes, by workload."""
    kept = table.read([KEPT / "benchmarks" / f"{file}.jsonl"])
    own = [r for r in kept if r.get("contender") == table.OURS and "algorithm" in r]
    times = {(row["workload"], row["algorithm"]): row[key] for row in own}
    return {w: t / times[w, other] for (w, name), t in times.items() if name == one}


def board() -> dict[str, object]:
    """Scores; the size; alignment; rates; private clients."""
    found = {each.name: each for each in standings.tables(KEPT / "board")}
    score = lambda t, label: found[t].spread(found[t].find(label).scores)
    facts = {}
    for name in "fashion", "digits", "stragglers":
        assert clear(found[name].find("FedMuon").apart) > 0
        facts[name] = f"{score(name, 'FedAvg')} | **{score(name, 'FedMuon')}**"
    assert clear(found["private"].find("FedMuon").apart) < 0
    first, second, *_ = found["private"].rows
    assert (first.label, second.label) == ("DP-FedMuon", "FedAvg(momentum)")
    assert first.wins and second.wins  # noqa: PT018
    best, next_best = score("private", first.label), score("private", second.label)
    pair = score("private", "FedAvg"), score("private", "FedMuon")
    facts |= {"private": f"**{pair[0]}** | {pair[1]}; use `dp_fedmuon`: {best}"}
    facts |= {"best": best, "next_best": next_best}
    own = [x for x in found["digits"].rows if not x.resized and not x.twins]
    facts["methods"] = len({row.label.partition(", weight")[0] for row in own})
    shown = standings.alignment(found.values(), WEIGHTS)
    assert not any(clear(x) > 0 for _, *others in shown.values() for x in others)
    facts["tracks"] = COUNTS[len(shown)]
    facts["behind"] = COUNTS[sum(clear(last) < 0 for *_, last in shown.values())]
    facts |= {f"lost_{name}": spread(100 * x[-1]) for name, x in shown.items()}
    for name in "digits", "fashion", "fashion_classes":
        same = "FedMuon(alignment), weight 0", "Local Muon(averaged momentum)"
        assert len({score(name, label) for label in same}) == 1
    gains = [x for x in tuning.gains(KEPT / "board") if x.track != "private"]
    good, tried = tuning.passed(gains, "fedmuon")
    (plays,) = [x for x in gains if (x.track, x.row) == ("plays", "fedmuon")]
    assert UNSEARCHED["fedmuon"].rate.schedule == "cosine"
    constant = inspect.signature(fm.fedmuon).parameters["lr"].default
    facts |= {"good": f"{COUNTS[good]} of {COUNTS[tried]} tracks", "plays": plays.words}
    return facts | {"rate": UNSEARCHED["fedmuon"].rate.lr, "constant": constant}


@functools.cache
def facts() -> dict[str, object]:
    found = board()
    digits = [r for r in rows("newton_schulz/digits.csv") if r["lr"] == "0.01"]
    ends = {(r["variant"], r["seed"]): float(r["accuracy"]) for r in digits}
    last = lambda n: [ends[f"Frobenius, {n} steps", seed] for seed in "01234"]
    assert clear(np.subtract(last(3), last(5))) == 0
    figure = [
        r for r in rows("papers/fedmuon_001/figure_2.csv") if "(0.1)" in r["setting"]
    ]
    runs = {r["method"]: np.array(r["by_seed"].split(), float) for r in figure}
    assert clear(runs["T = 5"] - runs["T = 3"]) > 0
    found["lenet"] = spread(runs["T = 5"] - runs["T = 3"])
    how = "fedmuon", "fedavg"
    epyc = slower("workloads_cpu", *how).values()
    xeon = slower("workloads_xeon", *how, "wall_seconds_min").values()
    gpus = [t for file in ("h100", "h200") for t in slower(file, *how).values()]
    found |= {"low": f"{min(xeon):.1f}", "epyc": f"{min(epyc):.1f}"}
    found |= {"high": f"{max(epyc):.0f}", "gpu": f"{max(gpus):.0f}"}
    left = slower("workloads_cpu", "fedmuon_blocks", "fedmuon")
    assert round(left.pop("w2"), 1) == 0.5
    for name, one in ("least", max(left.values())), ("most", min(left.values())):
        found[name] = f"{100 * (1 - one):.0f}"
    tuned = {"method": "fedavg", "weighting": "examples", "lr": "0.003"}
    heart = [r for r in rows("natural/heart_disease.csv") if tuned.items() <= r.items()]
    tests = [float(row["test"]) for row in heart]
    mean, deviation = np.mean(tests), np.std(tests, ddof=1)
    found["heart"] = f"{mean:.3f} ± {deviation:.3f}"
    return found | {"heart_percent": f"{100 * mean:.1f} ± {100 * deviation:.1f}"}


SENTENCES = re.findall(
    r"^(\S+): (.*)$", (Path(__file__).parent / "verdicts.txt").read_text(), re.M
)


@pytest.mark.parametrize(("page", "sentence"), SENTENCES)
def test_a_page_has_the_verdict_of_the_rows(page, sentence):
    text = " ".join((KEPT.parent / page).read_text().split())
    assert sentence.format(**facts()) in text
