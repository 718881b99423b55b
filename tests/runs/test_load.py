"""Run directories that are read: in Python, and to export parameters."""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from command import SMALL, refused, run
from packages import needs

import fedjax_muon as fm
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs.config import Comparison, Config, Sweep
from fedjax_muon.runs.directory import to_json
from fedjax_muon.runs.load import load_run

safetensors = needs("safetensors.numpy")
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
def test_a_run_that_has_just_begun_says_what_is_missing(copied, capsys):
    needs("pandas")
    (copied / "metrics.csv").unlink()
    shutil.rmtree(copied / "checkpoints")
    loaded = load_run(copied)
    with pytest.raises(ValueError, match=r"metrics.csv does not exist yet; .* resume"):
        _ = loaded.history
    with pytest.raises(ValueError, match=r"has no checkpoint yet; .* resume"):
        _ = loaded.params
    assert "does not exist yet" in refused(capsys, "plot", copied)


def test_pandas_is_needed_for_a_table_alone(trained, monkeypatch):
    loaded = load_run(trained[0])
    assert len(loaded.records) == 4
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'history needs pandas, .* "pandas'):
        _ = loaded.history


@pytest.mark.slow
def test_exported_weights_and_metadata_are_enough_to_classify(trained, tmp_path):
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


@pytest.mark.slow
def test_parameters_of_a_minimax_run_are_a_pair(tmp_path):
    place, path = tmp_path / "run", tmp_path / "m.safetensors"
    run("train", "--problem", "auc", "--rounds", 2, "--hidden", 4, "--output", place)
    run("export", place, path)
    params = load_run(place).params
    found = fm.load_params(path, like=params)
    assert type(found) is type(params)
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_existing_files_are_refused_before_anything_is_read(capsys, copied, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_text("mine")
    (copied / "metrics.csv").unlink()
    said = refused(capsys, "export", copied, path)
    assert said.endswith("choose another name, or replace it (overwrite)")
    assert path.read_text() == "mine"
    run("export", copied, path, "--overwrite")
    assert fm.load_metadata(path)["round"] == 6


def test_what_cannot_be_exported_is_said(capsys, copied, tmp_path):
    path = tmp_path / "m.safetensors"
    said = refused(capsys, "export", tmp_path, path)
    assert said.endswith("is not a run directory: it has no config.json")
    said = refused(capsys, "export", copied, path.with_suffix(".onnx"))
    assert said.startswith("the name of a parameter file must end in .safetensors, ")
    shutil.rmtree(copied / "checkpoints")
    said = refused(capsys, "export", copied, path)
    assert "has no checkpoint yet; train first, with: fedjax-muon resume" in said
    assert {p.name for p in tmp_path.iterdir()} == {"run"}
