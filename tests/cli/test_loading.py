"""Run directories that are read: in Python, and to export parameters."""

import functools
import hashlib
import json
import shutil

import jax
import numpy as np
import pytest

import fedjax_muon as fm
from fedjax_muon.runs import metrics_csv
from tests.support.command import SMALL, refused, run
from tests.support.packages import needs

safetensors = needs("safetensors.numpy")
OPTIONS = (*SMALL, "--rounds", "6")
DATA = "clients=6,model=mlp:4,divide=iid"
MODEL = {"name": "MLP", "features": [4], "classes": 2}


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
    data = ("--problem", f"loans.csv:label=risk,split=part,{DATA}")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        run("train", "fedavg:lr=0.2", *OPTIONS, *data, "--directory", "run")
    rows = [line.split(",")[:2] for line in lines[101:]]
    return place / "run", np.array(rows, np.float32)


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained[0], tmp_path / "run")


def test_a_run_is_read_without_its_data(copied, monkeypatch):
    (copied.parent / "loans.csv").unlink(missing_ok=True)
    loaded = fm.load_run(str(copied))
    rows = metrics_csv.parsed((copied / "metrics.csv").read_text())
    assert loaded.records == loaded.rows == rows
    assert [row["round"] for row in rows] == [0, 2, 4, 6]
    assert (loaded.seed, loaded.words["method.lr"]) == (0, "0.2")
    assert loaded.params["Dense_0"]["kernel"].shape == (2, 4)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'frame needs pandas, .* "pandas'):
        loaded.frame()


def test_several_runs_are_not_exported_at_once(tmp_path, capsys):
    place, words = tmp_path / "both", ("--problem", f"digits:{DATA}", *OPTIONS[:-1], 2)
    run("compare", "fedavg:lr=0.1", *words, "--seeds", "0,1", "--directory", place)
    capsys.readouterr()
    said = refused(capsys, "export", place, tmp_path / "m.safetensors")
    assert "has several runs; name one of them: FedAvg/seed0, FedAvg" in said
    with pytest.raises(ValueError, match="is not the directory of a run"):
        fm.load_run(tmp_path / "none")


@pytest.mark.slow
def test_exported_weights_and_metadata_are_enough_to_classify(trained, tmp_path):
    place, raw = trained
    path = tmp_path / "loans.safetensors"
    run("export", place, path)
    about, weights = fm.load_metadata(path), safetensors.load_file(path)
    x = (raw - about["standardization"]["mean"]) / about["standardization"]["std"]
    hidden = np.maximum(x @ weights["Dense_0.kernel"] + weights["Dense_0.bias"], 0)
    logits = hidden @ weights["head.kernel"] + weights["head.bias"]
    loaded = fm.load_run(place)
    path = place.parent / "loans.csv"
    loans = fm.data.from_csv(path, label="risk", split="part")
    right = logits.argmax(1) == loans.y_test
    assert right.mean() == pytest.approx(loaded.records[-1]["test_accuracy"])
    assert about["classes"] == ["high", "low"]
    assert about["model"] | MODEL == about["model"]
    assert about["input_shape"] == [2]
    assert (about["algorithm"], about["round"]) == ("fedavg", 6)


TEXT = "text:letters,window=16,clients=2,model=gpt(width=16,depth=1,heads=2)"


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "own.json"])
def test_exported_language_models_say_what_their_tokens_are(
    tokenizer, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters").mkdir()
    for name, text in {"ann": "to be or not, ", "bob": "that is it. "}.items():
        (tmp_path / "letters" / f"{name}.txt").write_text(60 * text)
    if tokenizer == "own.json":
        own = needs("tokenizers")
        letters = {letter: i for i, letter in enumerate(" ,.abehinorst")}
        made = own.Tokenizer(own.models.BPE(letters, []))
        made.decoder = own.decoders.Fuse()
        made.save(tokenizer)
    words = ("--problem", f"{TEXT},tokenizer={tokenizer}", "--local-steps", 1)
    run("train", "fedavg", *words, "--rounds", 1, "--directory", "run")
    monkeypatch.chdir("/")
    run("export", tmp_path / "run", tmp_path / "m.safetensors")
    about = fm.load_metadata(tmp_path / "m.safetensors")
    assert about["tokenizer"]["name"] == tokenizer
    assert (about["window"], about["input_shape"]) == (16, [16])
    assert about["dataset"] == "letters"
    assert "classes" not in about
    if tokenizer == "characters":
        assert about["tokenizer"]["letters"] == list(" ,.abehinorst")
    if tokenizer == "own.json":
        digest = hashlib.sha256((tmp_path / tokenizer).read_bytes()).hexdigest()
        assert about["tokenizer"]["sha256"] == digest
        assert about["tokenizer"]["path"] == tokenizer


@pytest.mark.slow
def test_parameters_of_a_minimax_run_are_a_pair(tmp_path):
    place, path = tmp_path / "run", tmp_path / "m.safetensors"
    problem = fm.problems.auc(model=functools.partial(fm.problems.mlp, hidden=(4,)))
    like = fm.train(fm.minimax.fed_nsgda_m, problem, rounds=2, directory=place)
    run("export", place, path)
    params = like.state.params
    found = fm.load_params(path, like=params)
    assert type(found) is type(params)
    jax.tree.map(np.testing.assert_array_equal, found, params)


def damaged(text):
    """What damage, or somebody, may make of a file."""
    words = json.loads(text) if text.startswith("{") else {}
    for name in words:
        yield json.dumps({k: v for k, v in words.items() if k != name})
        yield json.dumps({**words, name: []})
    yield from ("", "[1]", '"a"', text[: len(text) // 2], 10**5 * "[", f"{text}1,2\r\n")
    yield from (text.replace("0.", "x"), text + 200_000 * "a", text.replace(",", ",,"))


@pytest.mark.parametrize("name", ["identity.json", "metrics.csv", "about.json"])
def test_a_damaged_run_is_a_value_error(name, copied):
    whole, refusals = (copied / name).read_text(), []
    for text in damaged(whole):
        (copied / name).write_text(text)
        for read in ("seed", "records", "metadata"):
            try:
                getattr(fm.load_run(copied), read)
            except ValueError as error:
                refusals.append(str(error))
    assert len(refusals) >= 5
    assert not [text for text in refusals if "\n" in text]


def test_what_cannot_be_exported_is_said(capsys, copied, tmp_path):
    path = tmp_path / "m.safetensors"
    for words, said in {
        (tmp_path / "no", path): "is not the directory of a run",
        (copied, path.with_suffix(".onnx")): "must end in .safetensors",
        (copied,): "export needs file; export --help shows more",
    }.items():
        assert said in refused(capsys, "export", *words)
    path.write_text("mine")
    said = refused(capsys, "export", copied, path)
    assert said.endswith("choose another name, or replace it (overwrite)")
    assert path.read_text() == "mine"
    run("export", copied, path, "--overwrite")
    assert fm.load_metadata(path)["round"] == 6
    path.unlink()
    shutil.rmtree(copied / "checkpoints")
    assert "has no checkpoint yet; train" in refused(capsys, "export", copied, path)
