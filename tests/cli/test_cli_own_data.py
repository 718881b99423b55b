"""`--dataset FILE.csv` and FILE.npz: a user's own clients."""

import csv
from pathlib import Path

import numpy as np
import pytest
from command import refused, run
from packages import needs
from PIL import Image

from fedjax_muon import data
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs.build import parts_of
from fedjax_muon.runs.config import Config, Sweep
from fedjax_muon.runs.directory import read
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.runs.sweep import with_owners_counted

SMALL = ("--cohort-size", "2", "--local-steps", "1", "--batch-size", "4")
TRAIN = ("train", "--algorithm", "fedavg", "--rounds", "2", *SMALL)
COLUMNS = ("--label", "risk", "--owner", "bank", "--partition", "by_owner")


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        [f"{rng.normal():.4f}", "note", "north" if i % 3 else "south", "ab"[i % 2]]
        for i in range(40)
    ]
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["age", "note", "bank", "risk"], *rows])
    return path


def test_owners_of_a_table_are_the_clients(table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(table.parent)
    place = tmp_path / "run"
    given = ("--dataset", table.name, "--exclude", "note")
    run(*TRAIN, *COLUMNS, *given, "--output", place)
    assert "test accuracy" in capsys.readouterr().out
    config = read(place).config
    assert config.dataset == str(table)  # wherever the run is resumed
    assert config.title.startswith("table.csv, clients by owner, 2 a round")
    dataset = dataset_of(config)
    sizes = [len(part) for part in parts_of(config, dataset, 0)]
    assert sizes == np.bincount(dataset.owners).tolist()
    monkeypatch.chdir("/")
    run("resume", place)
    assert metrics_csv.read(place / "metrics.csv")["round"][-1] == 2


def test_a_sweep_gives_methods_that_need_them_all_clients(table):
    columns = {"label": "risk", "owner": "bank", "exclude": ("note",)}
    config = Config(dataset=str(table), **columns, partition="by_owner", cohort_size=1)
    config = with_owners_counted(config)
    grids = {"fedavg": {}, "stem": {}}
    job = Sweep(tuple(grids), grids, (0,), 0.2, 1, config)
    assert [job.config_of(name).cohort_size for name in job.algorithms] == [1, 2]


@pytest.mark.slow
def test_owners_of_an_archive_are_the_clients(tmp_path):
    rng = np.random.default_rng(0)
    path, place = tmp_path / "mine.npz", tmp_path / "run"
    np.savez(path, x=rng.normal(size=(40, 3)), y=[0, 1] * 20, owner=[0, 0, 1, 2] * 10)
    run(*TRAIN, "--partition", "by_owner", "--dataset", path, "--output", place)
    config = read(place).config
    assert len(parts_of(config, dataset_of(config), 0)) == 3


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(20):
        place = tmp_path / "scans" / ("ill", "healthy")[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, size=(6, 6 + i % 2), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"clinic{i % 3}_{i}.png")
    return tmp_path / "scans"


@pytest.mark.slow
def test_images_of_a_directory_and_their_owners(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.parent)
    place = folder.parent / "run"
    given = ("--dataset", "scans", "--image-size", "4", "5", "--owner", "(.*)_")
    run(*TRAIN, *given, "--partition", "by_owner", "--output", place)
    config = read(place).config
    assert config.dataset == str(folder)
    dataset = dataset_of(config)
    assert dataset.x_train.shape[1:] == (4, 5, 1)
    assert len(parts_of(config, dataset, 0)) == 3
    said = refused(capsys, *TRAIN, "--dataset", "scans")
    assert "expected 6 x 7 pixels as in" in said
    owner = ("--image-size", "4", "4", "--partition", "by_owner", "--owner")
    said = refused(capsys, *TRAIN, "--dataset", "./scans", *owner, "bank(.)")
    assert "owner 'bank(.)' finds nothing in this path" in said
    said = refused(capsys, *TRAIN, "--dataset", "scans/", *owner, "(")
    assert said.startswith("owner '(' is no regular expression: missing )")
    said = refused(capsys, *TRAIN, "--dataset", "scans", "--label", "risk")
    assert said.startswith("label is for tables")
    said = refused(capsys, *TRAIN, "--image-size", "4", "4")
    assert said.startswith("image_size is for directories of images, and digits is no")
    said = refused(capsys, *TRAIN, "--dataset", "scams/")
    assert said == f"there is no folder {folder.parent / 'scams'}"
    assert "unknown data set 'scams'" in refused(capsys, *TRAIN, "--dataset", "scams")


@pytest.mark.slow
def test_a_data_set_of_hugging_face(tmp_path):
    datasets = needs("datasets")
    datasets.disable_progress_bars()
    rng = np.random.default_rng(0)
    banks = ["north", "south", "west", "south"] * 10
    columns = {"age": rng.normal(size=40), "bank": banks, "risk": ["a", "b"] * 20}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "loans")
    place = tmp_path / "run"
    run(*TRAIN, *COLUMNS, "--dataset", tmp_path / "loans", "--output", place)
    config = read(place).config
    sizes = [len(part) for part in parts_of(config, dataset_of(config), 0)]
    assert sizes == np.bincount(dataset_of(config).owners).tolist()
    assert len(sizes) == 3


def test_a_share_of_the_examples_keeps_its_owners(table):
    given = data.from_csv(table, label="risk", owner="bank", exclude=["note"])
    half, _ = data.hold_out(given, 0.5)
    assert len(half.owners) == len(half.y_train)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--owner", "bank"), "add --partition by_owner"),
        (("--partition", "by_owner"), "name the column by --owner, or choose another"),
        (("--owner", "bnk", "--partition", "by_owner"), "no column 'bnk' for owner"),
        (("--cohort-size", "99", "--partition", "iid"), "cohort_size"),
        (("--model", "rnn"), "the model rnn does not fit"),
        (("--model", "lenet"), "LeNet takes images"),
    ],
)
def test_wrong_options_are_refused(options, said, table, capsys):
    given = ("--dataset", table, "--label", "risk", "--exclude", "note")
    if "--owner" not in options:
        given = (*given, "bank")
    assert said in refused(capsys, *TRAIN, *given, *options)


@pytest.mark.slow
def test_files_that_are_not_there_and_options_without_columns(tmp_path, capsys):
    missing = tmp_path / "none.csv"
    assert (
        refused(capsys, *TRAIN, "--dataset", missing) == f"there is no file {missing}"
    )
    archive = tmp_path / "a.npz"
    np.savez(archive, x=np.eye(8), y=[0, 1] * 4)
    said = refused(capsys, *TRAIN, "--dataset", archive, "--label", "risk")
    assert said == (
        "label is for tables (a CSV file, or a data set of Hugging Face), and "
        f"{archive} is none; leave it out"
    )
    said = refused(capsys, *TRAIN, "--exclude", "risk")
    assert said.startswith("exclude is for tables (a CSV file, or ")
    assert "and digits is none" in said
    said = refused(capsys, *TRAIN, "--partition", "by_owner")
    assert said.startswith("digits does not say whose its examples are")
    assert not Path("runs").exists()
