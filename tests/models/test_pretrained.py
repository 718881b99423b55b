"""`--checkpoint`: tiny random ones, run by the command and refused."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from packages import needs
from published import allow_small

from fedjax_muon import data, models
from fedjax_muon.cli import main
from fedjax_muon.data.byte_pairs import roberta_encoder
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs.build import simulation_of
from fedjax_muon.runs.config import Config, Run
from fedjax_muon.runs.config_json import from_json, to_json
from fedjax_muon.runs.pretrained import dataset_of

checkpoints = needs("experiments.studies.tiny_checkpoints")
pytestmark = pytest.mark.slow

WIDTH, RANK = 16, 2
WORDS = ("the hand", "on the sand", "a thing", "in the end", "red and round")
ROWS = [(WORDS[i % 5] + " " + WORDS[i % 3], i % 2) for i in range(40)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Checkpoints, and a tiny CoLA."""
    place = tmp_path_factory.mktemp("pretrained")
    checkpoints.write_roberta(place / "roberta", width=WIDTH)
    checkpoints.write_swin(place / "swin")
    cola = place / "CoLA"
    cola.mkdir()
    text = "".join(f"gj04\t{label}\t\t{sentence}\n" for sentence, label in ROWS)
    for file in ("train.tsv", "dev.tsv"):
        (cola / file).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        allow_small(patch, "cola")
        yield place


def config_of(place, **changes) -> Config:
    options = {
        "dataset": "cola",
        "data_dir": place,
        "model": "roberta",
        "checkpoint": place / "roberta",
        "lora_rank": RANK,
        "max_tokens": 8,
        "num_clients": 2,
        "partition": "iid",
        "cohort_size": 2,
        "local_steps": 2,
        "batch_size": 4,
        "rounds": 2,
        "evaluate_every": 2,
    }
    return Config(**(options | changes))


def words(config: Config) -> list[str]:
    """As options of the command."""
    chosen = dataclasses.asdict(config).items()
    usual = dataclasses.asdict(Config())
    found = []
    for name, value in chosen:
        if value != usual[name]:
            found += [f"--{name.replace('_', '-')}", str(value)]
    return found


def test_adapters_and_head_are_trained_by_a_sweep(place, tmp_path):
    """Tokens, frozen weights, Matthews' correlation, and what is left behind."""
    output = tmp_path / "sweep"
    config = config_of(place)
    arguments = ["--algorithms", "fedavg", "--grid", "lr=0.1", "--seeds", "0"]
    given = ["--validation", "0.25", "--output", str(output)]
    main(["sweep", *arguments, *words(config), *given])
    rows = metrics_csv.read(output / "cells" / "fedavg.csv")
    for column in ("test_mcc", "validation_mcc"):
        assert np.all(np.abs(rows[column]) <= 1)
    points = (output / "points.csv").read_text()
    assert "validation_mcc_mean" in points.splitlines()[0]
    assert "MCC, %" in (output / "summary.md").read_text()
    # adapters of two projections, and the head
    matrices = 2 * (2 * WIDTH * RANK) + WIDTH * WIDTH + 2 * WIDTH
    assert rows["bytes_up"][-1] == 2 * 2 * 4 * (matrices + WIDTH + 2)
    assert from_json((output / "config.json").read_text()).config == config


def test_the_task_holds_the_checkpoint_and_the_ids_are_its(place):
    config = config_of(place)
    run = Run("fedavg", {}, 0, config)
    assert from_json(to_json(run)) == run
    dataset = dataset_of(config)
    folder = place / "roberta"
    encoder = roberta_encoder(folder / "vocab.json", folder / "merges.txt", 8)
    expected = encoder.encode([sentence for sentence, _ in ROWS])
    np.testing.assert_array_equal(dataset.x_train, expected)
    assert dataset.tokens == 270
    task = simulation_of(run, dataset).setup.task
    model = models.roberta_of(folder)
    frozen = models.load_roberta(folder / "model.safetensors", model)
    (logits,) = task.grad.args
    jax.tree.map(np.testing.assert_array_equal, logits.args[0], frozen)
    # by the file alone, which lies beside the others
    beside = config_of(place, checkpoint=folder / "model.safetensors")
    np.testing.assert_array_equal(dataset_of(beside).x_train, expected)


def test_swin_starts_at_its_checkpoint(place):
    """In all of its parameters, for images of another size and other classes."""
    swin = {"dataset": "digits", "model": "swin_tiny", "checkpoint": place / "swin"}
    config = config_of(place, **swin, compute_dtype="bfloat16")
    x = np.random.default_rng(0).normal(size=(40, 4, 4, 3)).astype(np.float32)
    y = np.arange(40) % 3
    images = data.check(data.Dataset(x, y, x, y, ("a", "b", "c")))
    setup = simulation_of(Run("fedavg", {}, 0, config), images).setup
    params = setup.task.init(jax.random.key(0))
    _, expected = models.load_swin(place / "swin")
    assert params["head"]["kernel"].shape == (12, 3)
    del params["head"], expected["head"]
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    digits = dataset_of(config)
    with pytest.raises(ValueError, match="must match the task's: patches is not one"):
        simulation_of(Run("fedavg", {}, 0, config), digits)  # of one channel


# ------------------------------------------------------------------- refusals

REFUSED = {
    "the model roberta is not trained from scratch; give --checkpoint the directory": {
        "checkpoint": None
    },
    "the model rnn has no checkpoint; leave it out, or choose one of roberta, swin_": {
        "model": "rnn"
    },
    "a checkpoint is for classification; leave it out": {"problem": "auc"},
    "checkpoint nowhere does not exist; give the directory of roberta-base, from ht": {
        "checkpoint": Path("nowhere")
    },
    "digits does not take an encoder": {"dataset": "digits"},
    "roberta computes in float32; leave out compute_dtype": {
        "compute_dtype": "bfloat16"
    },
    "length must be at least 5 tokens, got 3": {"max_tokens": 3},
    "rank must be at least 1, got 0": {"lora_rank": 0},
    "N from 1 to 2, got shape": {"checkpoint": "short"},
    "has the padding 1, config.json 0; take both from the same model": {
        "checkpoint": "padding"
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals(place, tmp_path, message):
    changes = dict(REFUSED[message])
    broken = {"short": {"max_position_embeddings": 4}, "padding": {"pad_token_id": 0}}
    if changes.get("checkpoint") in broken:
        values = broken[changes["checkpoint"]]
        positions = values.get("max_position_embeddings", 66)
        changes["checkpoint"] = checkpoints.write_roberta(tmp_path, positions=positions)
        rewrite(tmp_path, **values)
    config = config_of(place, **changes)
    with pytest.raises(ValueError, match=message):
        simulation_of(Run("fedavg", {}, 0, config), dataset_of(config))


def test_packages_that_are_not_there(place, monkeypatch):
    absent = lambda name: None if name == "tokenizers" else name
    monkeypatch.setattr("fedjax_muon.runs.pretrained.find_spec", absent)
    message = r'a checkpoint needs tokenizers: pip install "tokenizers<0\.24,>=0\.23"'
    with pytest.raises(ValueError, match=message):
        dataset_of(config_of(place))


def rewrite(folder, **values):
    file = folder / "config.json"
    found = json.loads(file.read_text()) | values
    found = {name: value for name, value in found.items() if value is not None}
    file.write_text(json.dumps(found))


def test_tokens_are_in_files(place, tmp_path):
    folder = Path(shutil.copytree(place / "roberta", tmp_path / "roberta"))
    (folder / "merges.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"merges\.txt does not exist; downl"):
        dataset_of(config_of(place, checkpoint=folder))


def test_sizes_of_a_checkpoint(place, tmp_path):
    folder = Path(shutil.copytree(place / "roberta", tmp_path / "roberta"))
    assert models.roberta_of(folder, 3).hidden == 32
    rewrite(folder, hidden_act="relu")
    with pytest.raises(ValueError, match=r"config\.json must say .*'hidden_act': 'gel"):
        models.roberta_of(folder)
    rewrite(folder, hidden_act="gelu", attention_probs_dropout_prob=0.2)
    with pytest.raises(ValueError, match="one dropout for hidden layers and attention"):
        models.roberta_of(folder)
    rewrite(folder, hidden_size=None)
    with pytest.raises(ValueError, match=r"expected the sizes of a RoBERTa \(KeyErro"):
        models.roberta_of(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="expected the sizes of a RoBERTa"):
        models.roberta_of(folder)
    (folder / "config.json").unlink()
    assert models.roberta_of(folder, 3) == models.RoBERTa(3)  # roberta-base
