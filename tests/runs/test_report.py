"""Reports of run directories: their numbers, what is missing, hostile names."""

import dataclasses
import json
from html.parser import HTMLParser

import numpy as np
import pytest
from command import refused, run

from fedjax_muon.decentralized import ALL as DECENTRALIZED
from fedjax_muon.decentralized.private import PRIVATE
from fedjax_muon.reporting import colors, metrics_csv
from fedjax_muon.runs import directory
from fedjax_muon.runs.config import METHODS, Comparison, Config, Run
from fedjax_muon.runs.report import save_report

CONFIG = Config(rounds=10, evaluate_every=5)
COMPARISON = Comparison(("fedavg", "fedmuon"), {"fedavg": 0.3}, {}, (0, 1, 2), CONFIG)
T_OF_2 = 4.302652729911275  # the 97.5 % quantile of Student's t with 2 degrees


class Page(HTMLParser):
    """The scripts, the texts, the cells and the addresses of a page."""

    def __init__(self, path):
        super().__init__()
        self.stack, self.scripts, self.cells, self.addresses = [], [], [], []
        self.kinds, self.text = set(), ""
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        self.stack.append((tag, dict(attrs)))
        self.kinds.add(tag)
        self.addresses += [v for k, v in attrs if k in ("src", "href")]

    def handle_endtag(self, tag):
        self.stack.pop()

    def handle_startendtag(self, tag, attrs):
        self.kinds.add(tag)

    def handle_data(self, data):
        tag = self.stack[-1][0] if self.stack else ""
        if tag == "script":
            self.scripts.append((self.stack[-1][1].get("id"), data))
        elif tag == "td":
            self.cells.append(data)
        else:
            self.text += data


def data_of(path) -> list[dict]:
    found = Page(path)
    (text,) = (text for id, text in found.scripts if id == "data")
    return json.loads(text)


def rows(seed: int, rounds=(0, 5, 10)):
    rng = np.random.default_rng(seed)
    for r in rounds:
        yield {
            "round": r,
            "bytes_down": 1000 * r,
            "bytes_up": 500 * r,
            "test_accuracy": round(float(rng.uniform()), 6),
            "train_loss": round(float(rng.uniform()), 6),
            "seconds": r / 8,
        }


def write(place, seed, rounds=(0, 5, 10)):
    place.mkdir(parents=True, exist_ok=True)
    for row in rows(seed, rounds):
        metrics_csv.append(place / "metrics.csv", row)


@pytest.fixture
def compared(tmp_path):
    place = tmp_path / "compared"
    directory.create(place, COMPARISON, "compare")
    for number, cell in enumerate(directory.cells(place, COMPARISON)):
        write(cell, number)
    return place


@pytest.mark.slow
def test_curves_are_means_with_intervals_of_students_t(compared, tmp_path):
    path = tmp_path / "report.html"
    assert save_report([compared], path) == []
    entries = data_of(path)
    assert [entry["name"] for entry in entries] == ["FedAvg", "FedMuon"]
    for number, entry in enumerate(entries):
        runs = [list(rows(3 * number + seed)) for seed in range(3)]
        for metric in ("test_accuracy", "train_loss"):
            values = np.array([[row[metric] for row in run] for run in runs])
            mean = values.sum(0) / 3
            spread = np.sqrt(((values - mean) ** 2).sum(0) / 2)
            found = entry["metrics"][metric]
            np.testing.assert_allclose(found["mean"], mean, rtol=1e-12)
            np.testing.assert_allclose(found["half"], T_OF_2 * spread / 3**0.5)
        assert entry["x"]["round"] == [0, 5, 10]
        assert entry["x"]["megabytes"] == [0, 0.0075, 0.015]
        assert entry["seeds"] == 3
    last = [list(rows(seed))[-1]["test_accuracy"] for seed in range(3)]
    assert any(f"{100 * np.mean(last):.2f} ± " in c for c in Page(path).cells)
    assert {"0.3", "fedavg", "fedmuon"} <= set(Page(path).cells)  # what differs


@pytest.mark.slow
def test_a_page_asks_no_other_host_for_anything(compared, tmp_path):
    path = tmp_path / "report.html"
    save_report([compared], path)
    page = Page(path)
    assert page.addresses == []
    assert "default-src 'none'" in path.read_text()
    assert max(len(text) for _, text in page.scripts) > 10**6  # plotly's code


@pytest.mark.slow
def test_hostile_names_are_text(tmp_path):
    name = "<img src=x onerror=alert(1)>"
    hyper = {"lr": 0.1, "</script><b>": 1.0}
    for number, place in enumerate((tmp_path / name, tmp_path / "b")):
        directory.create(place, Run("fedavg", hyper, number, CONFIG))
        write(place, number)
    path = tmp_path / "report.html"
    wrong = dataclasses.replace(CONFIG, dataset="</script><i>.csv")
    directory.create(tmp_path / "c", Run("fedavg", {}, 0, wrong))
    write(tmp_path / "c", 3)
    save_report([tmp_path / name, tmp_path / "b", tmp_path / "c"], path)
    page = Page(path)
    assert not {"img", "b", "i"} & page.kinds
    assert "</script><b>" in page.cells
    first, other = data_of(path)
    assert first["name"] == f"FedAvg, {tmp_path / name}"
    assert (first["seeds"], other["seeds"]) == (2, 1)
    assert first["color"] == other["color"]
    assert first["dash"] != other["dash"]


@pytest.mark.slow
def test_what_is_missing_is_named_and_the_rest_is_shown(compared, tmp_path):
    cells = list(directory.cells(compared, COMPARISON))
    (cells[0] / "metrics.csv").unlink()
    (cells[1] / "metrics.csv").write_text("round,bytes_down\n0,1\n")
    with (cells[2] / "metrics.csv").open("r+") as file:  # cut off in its last line
        file.truncate(len(file.read()) - 3)
    (compared / "versions.json").write_text("{")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    path = tmp_path / "report.html"
    others = [tmp_path / name for name in ("foreign", "broken", "nowhere")]
    said = save_report([compared, *others], path)
    assert [words.split(str(tmp_path))[1] for words in said] == [
        "/compared/fedavg/seed0 has no metrics; continue it with: fedjax-muon resume ",
        "/compared/fedavg/seed1/metrics.csv has no column 'bytes_up'; repair it or "
        "delete it",
        "/compared/fedavg/seed2 has 5 of 10 rounds; continue it with: "
        "fedjax-muon resume ",
        "/compared/versions.json is missing or damaged: versions are unknown",
        "/foreign is not a run directory: it has no config.json",
        "/broken/config.json: not JSON: Expecting property name enclosed in double "
        "quotes: line 1 column 2 (char 1)",
        "/nowhere is not a run directory: it has no config.json",
    ]
    page = Page(path)
    assert all(words in page.text for words in said)
    assert [entry["seeds"] for entry in data_of(path)] == [1, 3]


@pytest.mark.slow
def test_seeds_that_occur_twice_are_two_curves(tmp_path):
    for name in "ab":
        directory.create(tmp_path / name, Run("fedavg", {}, 0, CONFIG))
        write(tmp_path / name, 0)
    path = tmp_path / "report.html"
    save_report([tmp_path / "a", tmp_path / "b"], path)
    assert [entry["seeds"] for entry in data_of(path)] == [1, 1]


@pytest.mark.slow
def test_the_best_of_a_sweep_is_shown(tmp_path, capsys):
    place, path = tmp_path / "sweep", tmp_path / "report.html"
    small = "--rounds 2 --num-clients 4 --cohort-size 2 --hidden 4 --evaluate-every 1"
    words = f"sweep --algorithms fedavg --grid lr=0.1,0.2 --seeds 0,1 {small}"
    run(*words.split(), "--output", place)
    run("report", place, "--output", path)
    assert capsys.readouterr().out.endswith(f"{path}\n")
    (entry,) = data_of(path)
    assert (entry["name"], entry["seeds"]) == ("FedAvg", 2)
    points = (place / "points.csv").read_text()
    assert str(entry["metrics"]["test_accuracy"]["mean"][-1])[:6] in points


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "a report needs at least one run directory"),
        (("nothing",), "nothing is not a run directory: it has no config.json"),
        (("nothing", "--output", "a.pdf"), "a report's name must end in .html, got"),
    ],
)
def test_nothing_to_show_is_refused(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused(capsys, "report", *words).startswith(message)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_existing_file_is_kept(compared, tmp_path, capsys):
    path = tmp_path / "report.html"
    path.write_text("mine")
    words = ("report", compared, "--output", path)
    assert "exists already; choose another name" in refused(capsys, *words)
    assert path.read_text() == "mine"
    run(*words, "--overwrite")
    assert len(data_of(path)) == 2


def test_every_method_has_a_line_of_its_own():
    entries = [*METHODS.values(), *DECENTRALIZED.values(), *PRIVATE.values()]
    labels = {method.label for method in entries}
    assert labels <= {*colors.MUON, *colors.BASELINES}
    assert len(set(colors.MUON.values())) == len(colors.MUON)
    lines = [colors.line_of(label) for label in colors.BASELINES]
    assert {line.color for line in lines} == set(colors.GREYS)
    assert len(set(lines[:24])) == 24  # of all combinations
    for line in lines:
        red, green, blue = (int(line.color[i : i + 2], 16) for i in (1, 3, 5))
        assert red == green == blue
