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
SAID = (Path(__file__).parent / "verdicts.txt").read_text()
COUNTS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")


def spread(values: np.ndarray) -> str:
    return f"{abs(values.mean()):.1f} ± {half_width(values):.1f}"


def clear(values: np.ndarray) -> float:
    """The sign of a mean whose interval has no 0."""
    return np.sign(values.mean()) * (abs(values.mean()) > half_width(values))


def rows(path: str) -> list[dict[str, str]]:
    return [*csv.DictReader((KEPT / path).read_text().splitlines())]


def scores(found: dict[str, standings.Table]) -> dict[str, object]:
    score = lambda t, label: found[t].spread(found[t].find(label).scores)
    said = {}
    for name in "fashion", "digits", "stragglers":
        assert clear(found[name].find("FedMuon").apart) > 0
        said[name] = f"{score(name, 'FedAvg')} | **{score(name, 'FedMuon')}**"
    assert clear(found["private"].find("FedMuon").apart) < 0
    ranked = [x.label for x in found["private"].rows if x.wins]
    assert ranked[:2] == ["DP-FedMuon", "FedAvg(momentum)"]
    names = *ranked[:2], "FedAvg", "FedMuon"
    best, next_best, base, muon = (score("private", name) for name in names)
    said["private"] = f"**{base}** | {muon}; use `dp_fedmuon`: {best}"
    own = [x for x in found["digits"].rows if not x.resized and not x.twins]
    said["methods"] = len({x.label.partition(", weight")[0] for x in own})
    return said | {"best": best, "next_best": next_best}


def alignment(found: dict[str, standings.Table]) -> dict[str, object]:
    shown = standings.alignment(found.values(), WEIGHTS)
    assert not any(clear(x) > 0 for _, *others in shown.values() for x in others)
    for name in "digits", "fashion", "fashion_classes":
        start = found[name].find("FedMuon(alignment), weight 0").scores
        assert (start == found[name].find("Local Muon(averaged momentum)").scores).all()
    behind = sum(clear(last) < 0 for *_, last in shown.values())
    lost = {f"lost_{name}": spread(100 * last) for name, (*_, last) in shown.items()}
    return lost | {"tracks": COUNTS[len(shown)], "behind": COUNTS[behind]}


def rates() -> dict[str, object]:
    gains = [x for x in tuning.gains(KEPT / "board") if x.track != "private"]
    good, tried = map(COUNTS.__getitem__, tuning.passed(gains, "fedmuon"))
    (plays,) = [x.words for x in gains if (x.track, x.row) == ("plays", "fedmuon")]
    constant = inspect.signature(fm.fedmuon).parameters["lr"].default
    said = {"good": f"{good} of {tried} tracks", "plays": plays, "bar": tuning.BAR}
    return said | {"rate": UNSEARCHED["fedmuon"].rate.lr, "constant": constant}


def times_as_long(file: str, one="fedmuon", other="fedavg", key="wall_seconds") -> dict:
    kept = table.read([KEPT / "benchmarks" / f"{file}.jsonl"])
    own = [r for r in kept if r.get("contender") == table.OURS and "algorithm" in r]
    times = {(row["workload"], row["algorithm"]): row[key] for row in own}
    return {w: t / times[w, other] for (w, name), t in times.items() if name == one}


def costs() -> dict[str, object]:
    epyc = times_as_long("workloads_cpu").values()
    xeon = times_as_long("workloads_xeon", key="wall_seconds_min").values()
    gpus = [t for file in ("h100", "h200") for t in times_as_long(file).values()]
    left = times_as_long("workloads_cpu", "fedmuon_blocks", "fedmuon")
    assert round(left.pop("w2"), 1) == 0.5
    least, most = (f"{100 * (1 - f(left.values())):.0f}" for f in (max, min))
    said = {"low": f"{min(xeon):.1f}", "epyc": f"{min(epyc):.1f}", "least": least}
    return said | {"high": f"{max(epyc):.0f}", "gpu": f"{max(gpus):.0f}", "most": most}


def studies() -> dict[str, object]:
    digits = [r for r in rows("newton_schulz/digits.csv") if r["lr"] == "0.01"]
    ends = {(r["variant"], r["seed"]): float(r["accuracy"]) for r in digits}
    last = lambda n: [ends[f"Frobenius, {n} steps", seed] for seed in "01234"]
    assert clear(np.subtract(last(3), last(5))) == 0
    figure = rows("papers/fedmuon_001/figure_2.csv")
    far = {r["method"]: r["by_seed"] for r in figure if "(0.1)" in r["setting"]}
    lost = np.subtract(*(np.array(far[f"T = {n}"].split(), float) for n in "53"))
    assert clear(lost) > 0
    best = {"method": "fedavg", "weighting": "examples", "lr": "0.003"}
    heart = [r for r in rows("natural/heart_disease.csv") if best.items() <= r.items()]
    tests = [float(row["test"]) for row in heart]
    mean, deviation = np.mean(tests), np.std(tests, ddof=1)
    said = {"heart": f"{mean:.3f} ± {deviation:.3f}", "lenet": spread(lost)}
    return said | {"heart_percent": f"{100 * mean:.1f} ± {100 * deviation:.1f}"}


@functools.cache
def facts() -> dict[str, object]:
    found = {each.name: each for each in standings.tables(KEPT / "board")}
    return scores(found) | alignment(found) | rates() | costs() | studies()


@pytest.mark.parametrize(("page", "said"), re.findall(r"^(\S+): (.*)$", SAID, re.M))
def test_a_page_has_the_verdict_of_the_rows(page, said):
    assert said.format(**facts()) in " ".join((KEPT.parent / page).read_text().split())
