"""Run directories that are read: in Python, to export parameters, for a report."""

import base64
import dataclasses
import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import flax.serialization
import jax
import numpy as np
import pytest
from command import SMALL, refused, run
from packages import needs

import fedjax_muon as fm
from fedjax_muon.decentralized import ALL as DECENTRALIZED
from fedjax_muon.decentralized.private import PRIVATE
from fedjax_muon.reporting import metrics_csv, style
from fedjax_muon.runs import directory, load
from fedjax_muon.runs.config import METHODS, Comparison, Config, Run, Sweep
from fedjax_muon.runs.directory import to_json
from fedjax_muon.runs.load import load_run
from fedjax_muon.runs.report import save_report

OPTIONS = (*SMALL, "--hidden", "4", "--rounds", "6", "--partition", "iid")
MODEL = {"name": "mlp", "features": [4], "dtype": "float32"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a table, and the inputs of its test examples as they are in the file."""
    place = tmp_path_factory.mktemp("trained")
    lines = ["age,income,risk,part"]
    people = np.random.default_rng(0).normal((40, 50), (10, 1), size=(120, 2))
    for number, (age, income) in enumerate(people):
        risk = "high" if age + 10 * income > 540 else "low"
        part = "train" if number < 100 else "test"
        lines.append(f"{age:.6f},{income:.6f},{risk},{part}")
    (place / "loans.csv").write_text("\n".join(lines))
    data = ("--dataset", place / "loans.csv", "--label", "risk", "--split", "part")
    run("train", "--algorithm", "fedavg", *OPTIONS, *data, "--output", place / "run")
    rows = [line.split(",")[:2] for line in lines[101:]]
    return place / "run", np.array(rows, np.float32)


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained[0], tmp_path / "run")


@pytest.mark.slow
def test_the_history_is_a_table_of_the_metrics(trained):
    pandas = needs("pandas")
    place, _ = trained
    loaded = fm.load_run(place)
    expected = pandas.read_csv(place / "metrics.csv")
    pandas.testing.assert_frame_equal(loaded.history, expected)
    assert loaded.records == metrics_csv.parsed((place / "metrics.csv").read_text())
    assert [row["round"] for row in loaded.records] == [0, 2, 4, 6]
    assert (loaded.run.algorithm, loaded.run.seed) == ("fedavg", 0)
    assert loaded.config.rounds == 6


def test_parameters_score_as_in_the_last_row(trained):
    loaded = fm.load_run(trained[0])
    last = loaded.records[-1]
    assert loaded.evaluate() == {name: last[name] for name in loaded.evaluate()}
    assert "test_accuracy" in loaded.evaluate()
    data = loaded.dataset
    scores = loaded.task.evaluate(loaded.params, data.x_test, data.y_test)
    assert float(scores["correct"].mean()) == pytest.approx(last["test_accuracy"])


def test_config_and_history_need_no_data(copied):
    text = (copied / "config.json").read_text()
    moved = text.replace("loans.csv", "gone.csv")
    (copied / "config.json").write_text(moved)
    loaded = load_run(str(copied))
    assert Path(loaded.config.dataset).name == "gone.csv"
    assert len(loaded.records) == 4
    with pytest.raises(FileNotFoundError, match=r"gone\.csv"):
        _ = loaded.params


def test_other_directories_are_refused(tmp_path):
    swept = Sweep(("fedavg",), {"fedavg": {}}, (0,), 0.1, None, Config())
    none = "was made by `sweep`, whose runs have no directories; read its CSV files"
    four = "is a comparison of 4 runs; load one of them: .*fedavg/seed0, .*, ..."
    for text, message in (
        (None, "is not a run directory: it has no config.json"),
        ("{", "not JSON"),
        (to_json(Comparison(("fedavg", "fedmuon"), {}, {}, (0, 1), Config())), four),
        (to_json(swept), none),
    ):
        if text is not None:
            (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=message) as error:
            load_run(tmp_path)
        assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_run_that_has_just_begun_says_what_is_missing(copied):
    needs("pandas")
    (copied / "metrics.csv").unlink()
    shutil.rmtree(copied / "checkpoints")
    loaded = load_run(copied)
    with pytest.raises(ValueError, match=r"metrics.csv does not exist yet; .* resume"):
        _ = loaded.history
    with pytest.raises(ValueError, match=r"has no checkpoint yet; .* resume"):
        _ = loaded.params


def test_pandas_is_needed_for_a_table_alone(trained, monkeypatch):
    loaded = load_run(trained[0])
    assert len(loaded.records) == 4
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'history needs pandas, .* "pandas'):
        _ = loaded.history


@pytest.mark.slow
def test_exported_weights_and_metadata_are_enough_to_classify(trained, tmp_path):
    safetensors = needs("safetensors.numpy")
    place, raw = trained
    loaded, path = load_run(place), tmp_path / "loans.safetensors"
    run("export", place, path)
    about = fm.load_metadata(path)
    weights = safetensors.load_file(path)
    x = (raw - about["standardization"]["mean"]) / about["standardization"]["std"]
    hidden = np.maximum(x @ weights["Dense_0.kernel"] + weights["Dense_0.bias"], 0)
    logits = hidden @ weights["Dense_1.kernel"] + weights["Dense_1.bias"]
    model = fm.models.MLP(2, (4,))
    ours = model.apply({"params": loaded.params}, loaded.dataset.x_test)
    np.testing.assert_allclose(logits, ours, rtol=1e-4, atol=1e-5)
    right = logits.argmax(1) == loaded.dataset.y_test
    assert right.mean() == pytest.approx(loaded.records[-1]["test_accuracy"])
    assert about["classes"] == ["high", "low"]
    assert about["model"] | MODEL == about["model"]
    assert about["input_shape"] == [2]
    assert (about["algorithm"], about["round"]) == ("fedavg", 6)


def test_flax_reads_what_was_exported(trained, tmp_path):
    path, params = tmp_path / "m.msgpack", load_run(trained[0]).params
    run("export", trained[0], path)
    found = flax.serialization.from_bytes(params, path.read_bytes())
    jax.tree.map(np.testing.assert_array_equal, found, params)


@pytest.mark.slow
def test_parameters_of_a_minimax_run_are_a_pair(tmp_path):
    place, path = tmp_path / "run", tmp_path / "m.msgpack"
    run("train", "--problem", "auc", "--rounds", 2, "--hidden", 4, "--output", place)
    run("export", place, path)
    params = load_run(place).params
    found = fm.load_params(path, like=params)
    assert type(found) is type(params)
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_existing_files_are_refused_before_anything_is_read(capsys, copied, tmp_path):
    path = tmp_path / "m.msgpack"
    path.write_text("mine")
    (copied / "metrics.csv").unlink()
    said = refused(capsys, "export", copied, path)
    assert said.endswith("choose another name, or replace it (overwrite)")
    assert path.read_text() == "mine"
    run("export", copied, path, "--overwrite")
    assert fm.load_metadata(path)["round"] == 6


def test_what_cannot_be_exported_is_said(capsys, copied, tmp_path):
    path = tmp_path / "m.msgpack"
    said = refused(capsys, "export", tmp_path, path)
    assert said.endswith("is not a run directory: it has no config.json")
    said = refused(capsys, "export", copied, path.with_suffix(".onnx"))
    assert said.startswith("the name of a parameter file must end in .safetensors or ")
    shutil.rmtree(copied / "checkpoints")
    said = refused(capsys, "export", copied, path)
    assert "has no checkpoint yet; train first, with: fedjax-muon resume" in said
    assert {p.name for p in tmp_path.iterdir()} == {"run"}


def test_a_model_that_starts_at_a_checkpoint_names_it():
    config = Config(model="roberta", checkpoint=Path("base"), lora_rank=4)
    found = load._model(config, fm.data.load("digits"))
    assert found == {"name": "roberta", "checkpoint": "base", "lora_rank": 4}


CONFIG = Config(rounds=10, evaluate_every=5)
COMPARISON = Comparison(("fedavg", "fedmuon"), {"fedavg": 0.3}, {}, (0, 1, 2), CONFIG)
SCORES = "test_accuracy", "train_loss"
RESUME = "continue it with: fedjax-muon resume "
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
            self.scripts.append(data)
        elif tag in ("td", "strong"):  # bold cells
            self.cells.append(data)
        else:
            self.text += data


def figure_of(path) -> tuple[list[dict], dict]:
    """The traces and the layout that plotly gets."""
    text = re.split(r"Plotly\.newPlot\(\s*\"[-\w]+\",", Page(path).scripts[-1])[1]
    traces, end = json.JSONDecoder().raw_decode(text.strip())
    layout, _ = json.JSONDecoder().raw_decode(text.strip()[end:].lstrip(", "))
    return traces, layout


def data_of(path) -> list[dict]:
    """The lines that are shown at first, without bands."""
    return [t for t in figure_of(path)[0] if t["visible"] and "fill" not in t]


def seeds_of(path) -> list[str]:
    cells = Page(path).cells
    return [cells[i - 1] for i, cell in enumerate(cells) if cell == "test accuracy"]


def rows(seed: int):
    rng = np.random.default_rng(seed)
    for r in (0, 5, 10):
        scores = dict(zip(SCORES, rng.uniform(size=2).round(6).tolist(), strict=True))
        sent = {"bytes_down": 1000 * r, "bytes_up": 500 * r}
        yield {"round": r, **sent, **scores, "seconds": r / 8}


def write(place, seed):
    place.mkdir(parents=True, exist_ok=True)
    for row in rows(seed):
        metrics_csv.append(place / "metrics.csv", row)


def create(place, hyper, seed, config=CONFIG):
    directory.create(place, Run("fedavg", hyper, seed, config))
    write(place, seed)
    return place


@pytest.fixture
def path(tmp_path):
    return tmp_path / "report.html"


@pytest.fixture
def compared(tmp_path):
    place = tmp_path / "compared"
    directory.create(place, COMPARISON, "compare")
    for number, cell in enumerate(directory.cells(place, COMPARISON)):
        write(cell, number)
    return place


@pytest.mark.slow
def test_curves_are_means_with_intervals_of_students_t(compared, path):
    assert save_report([compared], path) == []
    traces, layout = figure_of(path)
    metrics, axes, scales = (menu["buttons"] for menu in layout["updatemenus"])
    megabytes, logarithmic = axes[1]["args"][0]["x"], scales[1]["args"][0]["y"]
    for metric in SCORES:
        words = metric.replace("_", " ")
        (button,) = (one for one in metrics if one["label"] == words)
        (shown, title) = button["args"]
        assert title == {"yaxis.title.text": words, "yaxis.autorange": True}
        places = np.flatnonzero(shown["visible"])
        assert [traces[i]["name"] for i in places] == 2 * ["FedAvg"] + 2 * ["FedMuon"]
        for number, (band, line) in enumerate(places.reshape(2, 2)):
            runs = [list(rows(3 * number + seed)) for seed in range(3)]
            values = np.array([[row[metric] for row in run] for run in runs])
            mean = values.sum(0) / 3
            half = T_OF_2 * np.sqrt(((values - mean) ** 2).sum(0) / 2) / 3**0.5
            np.testing.assert_allclose(traces[line]["y"], mean, rtol=1e-12)
            ends = [*(mean + half), *(mean - half)[::-1]]
            np.testing.assert_allclose(traces[band]["y"], ends)
            positive = np.maximum(ends, [-1] * 3 + [mean.min()] * 3)
            np.testing.assert_allclose(logarithmic[band], positive)
            assert traces[line]["x"] == [0, 5, 10]
            assert megabytes[line] == [0, 0.0075, 0.015]
            assert megabytes[band] == [0, 0.0075, 0.015, 0.015, 0.0075, 0]
    assert [traces[i]["visible"] for i in range(len(traces))] == [
        metric == "test_accuracy" for metric in 2 * SCORES for _ in range(2)
    ]
    assert seeds_of(path) == ["3", "3"]
    last = [list(rows(seed))[-1]["test_accuracy"] for seed in range(3)]
    page = Page(path)
    assert any(f"{100 * np.mean(last):.2f} ± " in cell for cell in page.cells)
    assert {"0.3", "fedavg", "fedmuon"} <= set(page.cells)  # what differs
    strong = re.findall("<strong>(.*?)</strong>", path.read_text())
    means = [float(cell.split(" ± ")[0]) for cell in page.cells if " ± " in cell]
    assert means == sorted(means, reverse=True)
    assert strong[0].startswith(f"{means[0]:.2f} ± ")
    low, high = layout["yaxis"]["range"]  # of the later half
    later = np.array([t["y"][1:] for t in traces if t["visible"] and len(t["y"]) == 3])
    assert 0 < later.min() - low < 0.2
    assert 0 < high - later.max() < 0.2
    (data,) = [a for a in page.addresses if a.startswith("data:")]
    lines = base64.b64decode(data.partition(",")[2]).decode().splitlines()
    assert len(lines) == 1 + 2 * len(SCORES) * 3
    # no other host is asked for anything
    assert [a for a in page.addresses if not a.startswith("data:")] == []
    assert "default-src 'none'" in path.read_text()
    assert max(map(len, page.scripts)) > 10**6  # plotly's code


@pytest.mark.slow
def test_runs_that_diverged_are_last_and_do_not_scale_the_figure(tmp_path, path):
    gone, kept = (
        create(tmp_path / n, {"lr": r}, 0) for n, r in (("a", 9.0), ("b", 1.0))
    )
    metrics = gone / "metrics.csv"
    header, first, *rest = metrics.read_text().splitlines()
    score = header.split(",").index("test_accuracy")
    lost = [",".join(["nan" if i == score else w for i, w in enumerate(row.split(","))])
            for row in rest]  # fmt: skip
    metrics.write_text("\n".join([header, first, *lost, ""]))
    save_report([gone, kept], path)
    assert figure_of(path)[1]["yaxis"]["range"]
    strong = re.findall("<strong>(.*?)</strong>", path.read_text())
    assert len(strong) == 2
    assert "nan" not in strong[0]
    save_report([gone], path, overwrite=True)
    assert "range" not in figure_of(path)[1]["yaxis"]


@pytest.mark.slow
def test_hostile_names_are_text(tmp_path, path):
    name = "<img src=x onerror=alert(1)>"
    hyper = {"lr": 0.1, "</script><b>": 1.0}
    wrong = dataclasses.replace(CONFIG, dataset="</script><i>.csv")
    places = [create(tmp_path / name, hyper, 0), create(tmp_path / "b", hyper, 1)]
    save_report([*places, create(tmp_path / "c", {}, 3, wrong)], path)
    page = Page(path)
    assert not {"img", "b", "i"} & page.kinds
    assert "</script><b>" in page.cells
    first, other = data_of(path)
    # plotly reads some tags in names
    assert first["name"] == f"FedAvg, {html.escape(str(tmp_path / name))}"
    assert seeds_of(path) == ["2", "1"]
    assert first["line"]["color"] == other["line"]["color"]
    assert first["line"]["dash"] != other["line"]["dash"]


@pytest.mark.slow
def test_what_is_missing_is_named(compared, tmp_path, path):
    """And the rest is shown."""
    cells = list(directory.cells(compared, COMPARISON))
    (cells[0] / "metrics.csv").unlink()
    (cells[1] / "metrics.csv").write_text("round,bytes_down\n0,1\n")
    with (cells[2] / "metrics.csv").open("r+") as file:  # cut off in its last line
        file.truncate(len(file.read()) - 3)
    (compared / "versions.json").write_text("{")
    others = [tmp_path / name for name in ("foreign", "broken", "nowhere")]
    for place in others[:2]:
        place.mkdir()
    (others[1] / "config.json").write_text("{")
    said = save_report([compared, *others], path)
    assert [words.split(str(tmp_path))[1] for words in said] == [
        f"/compared/fedavg/seed0 has no metrics; {RESUME}",
        "/compared/fedavg/seed1/metrics.csv has no column 'bytes_up': it is damaged, "
        "or was made by `deploy`, whose runs do not count bytes",
        f"/compared/fedavg/seed2 has 5 of 10 rounds; {RESUME}",
        "/compared/versions.json is missing or damaged: versions are unknown",
        "/foreign is not a run directory: it has no config.json",
        "/broken/config.json: not JSON: Expecting property name enclosed in double "
        "quotes: line 1 column 2 (char 1)",
        "/nowhere is not a run directory: it has no config.json",
    ]
    page = Page(path)
    assert all(words in page.text for words in said)
    assert seeds_of(path) == ["1", "3"]


@pytest.mark.slow
def test_seeds_that_occur_twice_are_two_curves(tmp_path, path):
    save_report([create(tmp_path / name, {}, 0) for name in "ab"], path)
    assert seeds_of(path) == ["1", "1"]
    assert len({line["name"] for line in data_of(path)}) == 2


@pytest.mark.slow
def test_the_best_of_a_sweep_is_shown(tmp_path, capsys, path):
    place = tmp_path / "sweep"
    small = "--rounds 2 --num-clients 4 --cohort-size 2 --hidden 4 --evaluate-every 1"
    words = f"sweep --algorithms fedavg --grid lr=0.1,0.2 --seeds 0,1 {small}"
    run(*words.split(), "--output", place)
    run("report", place, "--output", path)
    assert capsys.readouterr().out.endswith(f"{path}\n")
    (entry,) = data_of(path)
    assert (entry["name"], seeds_of(path)) == ("FedAvg", ["2"])
    assert str(entry["y"][-1])[:6] in (place / "points.csv").read_text()


@pytest.mark.slow
def test_nothing_to_show_is_refused(capsys, tmp_path, monkeypatch):
    needs("plotly")
    monkeypatch.chdir(tmp_path)
    for words, message in {
        "": "a report needs at least one run directory",
        "nothing": "nothing is not a run directory: it has no config.json",
        "nothing --output a.pdf": "a report's name must end in .html, got",
    }.items():
        assert refused(capsys, "report", *words.split()).startswith(message)
        assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_existing_file_is_kept(compared, path, capsys):
    path.write_text("mine")
    words = ("report", compared, "--output", path)
    assert "exists already; choose another name" in refused(capsys, *words)
    assert path.read_text() == "mine"
    run(*words, "--overwrite")
    assert len(data_of(path)) == 2


def test_every_method_has_a_line_of_its_own():
    entries = [*METHODS.values(), *DECENTRALIZED.values(), *PRIVATE.values()]
    labels = {method.label for method in entries}
    assert labels <= {*style.MUON, *style.BASELINES}
    assert len(set(style.MUON.values())) == len(style.MUON)
    lines = [style.line_of(label) for label in style.BASELINES]
    assert {line.color for line in lines} == set(style.GREYS)
    assert len(set(lines[:24])) == 24  # of all combinations
    for line in lines:
        red, green, blue = (int(line.color[i : i + 2], 16) for i in (1, 3, 5))
        assert red == green == blue
