"""Data on the command line: which there are, a user's own, and those of clients."""

import csv
import json
import re

import numpy as np
import pytest
from command import refused, run
from packages import needs
from PIL import Image
from tiny_images import write_npz

from fedjax_muon import data
from fedjax_muon.cli import main
from fedjax_muon.data import catalog, client_tests, loading
from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import build
from fedjax_muon.runs.build import parts_of, simulation_of
from fedjax_muon.runs.config import Config, Run, Sweep
from fedjax_muon.runs.directory import read
from fedjax_muon.runs.load import load_run
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.runs.sweep import with_owners_counted


@pytest.fixture(autouse=True)
def no_data_directory(monkeypatch):
    monkeypatch.delenv(loading.DATA_DIR_VARIABLE, raising=False)
    monkeypatch.setenv("COLUMNS", "120")


def listed(capsys, *arguments):
    """What there is and what is to get, by the names of datasets."""
    main(["list", *map(str, arguments)])
    text = capsys.readouterr().out
    _, _, text = text.partition("\ndatasets\n")
    here, _, rest = text.partition("\ndatasets to get\n")
    pairs = lambda text: dict(re.findall(r"^([\w:/]+): (.*)$", text, re.MULTILINE))
    return pairs(here), pairs(rest.partition("\nmodels: ")[0])


def test_without_a_directory_all_but_the_embedded_are_to_get(capsys):
    here, rest = listed(capsys)
    tfds = {f"tfds:{name}" for name in catalog.PREPARED}
    assert {*here, *rest} == {*data.NAMES, *tfds}
    for name, package in here.items():
        assert package == loading.source_of(name).package
    assert here["digits"] == "scikit-learn"
    assert rest["tfds:glue/sst2"] == "fedjax-muon prepare glue/sst2"
    assert rest["tiny_imagenet"].startswith("download http://cs231n.stanford.edu/tiny")
    assert rest["cifar10"].startswith("write it with numpy.savez")
    assert rest["cifar10"].endswith("or fedjax-muon prepare cifar10")


def test_the_list_of_a_directory(capsys, tmp_path, monkeypatch):
    write_npz(tmp_path / "cifar10_subset.npz")
    here, rest = listed(capsys, "--data-dir", tmp_path)
    assert here["cifar10_subset"] == str(tmp_path / "cifar10_subset.npz")
    assert "cifar10" in rest
    monkeypatch.setenv(loading.DATA_DIR_VARIABLE, str(tmp_path))
    assert listed(capsys) == (here, rest)


SMALL = ("--cohort-size", "2", "--local-steps", "1", "--batch-size", "4")
TRAIN = ("train", "--algorithm", "fedavg", "--rounds", "2", *SMALL)
FOUR = ("--train-share", "0.2", "--num-clients", "4", "--min-client-size", "1")
FOUR += ("--cohort-size", "4", "--rounds", "2", "--hidden", "8", "--batch-size", "16")
CLIENTS = ("--client-tests", "--local-epochs", "1", "2", "--weighting", "examples")
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
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == (
        "40 examples (32 to train, 8 to test), 1 feature, 2 classes: a, b; 2 clients "
        "with 9 to 23"
    )
    assert "test accuracy" in "".join(rest)
    config = read(place).config
    assert config.dataset == str(table)  # wherever the run is resumed
    assert config.title.startswith("table.csv, clients by owner, 2 per round")
    dataset = dataset_of(config)
    sizes = [len(part) for part in parts_of(config, dataset, 0)]
    assert sizes == np.bincount(dataset.owners).tolist()
    half, _ = data.hold_out(dataset, 0.5)
    assert len(half.owners) == len(half.y_train)
    monkeypatch.chdir("/")
    run("resume", place)
    assert metrics_csv.read(place / "metrics.csv")["round"][-1] == 2


QUICK = ("compare", "fedavg", "--seeds", "0", "--quick", "--rounds", "1", *SMALL)
SWEEP = ("sweep", "--algorithms", "fedavg", "--grid", "lr=0.1", "--rounds", "1", *SMALL)


@pytest.mark.parametrize(
    "command",
    [TRAIN, *(pytest.param(each, marks=pytest.mark.slow) for each in (QUICK, SWEEP))],
)
def test_data_that_change_are_refused(command, table, tmp_path, capsys):
    place = tmp_path / "run"
    given = ("--dataset", table, "--exclude", "note", *COLUMNS, "--output", place)
    run(*command, *given)
    again = [place] if command[0] == "sweep" else [place, "--rounds", 3]
    before = table.read_text()
    table.write_text(before.replace("0.1257", "0.1258", 1))
    assert before != table.read_text()
    said = refused(capsys, "resume", *again)
    assert said.startswith(f"the data of {table} have changed since {place}")
    if command == TRAIN:
        with pytest.raises(ValueError, match="have changed since"):
            load_run(place).dataset  # noqa: B018 - reading it is what may raise
    table.write_text(before)
    run("resume", *again)


def test_a_sweep_gives_methods_that_need_them_all_clients(table):
    columns = {"label": "risk", "owner": "bank", "exclude": ("note",)}
    config = Config(dataset=str(table), **columns, partition="by_owner", cohort_size=1)
    config = with_owners_counted(config)
    grids = {"fedavg": {}, "stem": {}}
    job = Sweep(tuple(grids), grids, (0,), 0.2, 1, config)
    assert [job.config_of(name).cohort_size for name in job.algorithms] == [1, 2]


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
    train = (*TRAIN, "--dataset")
    assert "expected 6 x 7 pixels as in" in refused(capsys, *train, "scans")
    owner = ("--image-size", "4", "4", "--partition", "by_owner", "--owner")
    said = refused(capsys, *train, "./scans", *owner, "bank(.)")
    assert "owner 'bank(.)' finds nothing in this path" in said
    said = refused(capsys, *train, "scans/", *owner, "(")
    assert said.startswith("owner '(' is not a regular expression: missing )")
    said = refused(capsys, *train, "scans", "--label", "risk")
    assert said.startswith("label is only for tables")
    said = refused(capsys, *TRAIN, "--image-size", "4", "4")
    assert said.startswith("image_size is only for directories of images, which digi")
    missing = f"there is no folder {folder.parent / 'scams'}"
    assert refused(capsys, *train, "scams/") == missing
    assert "unknown dataset 'scams'" in refused(capsys, *train, "scams")


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


@pytest.mark.slow
def test_a_comparison_shows_the_clients_accuracies(tmp_path, capsys):
    out = tmp_path / "run"
    words = ("compare", "fednova", "--seeds", "0", "1", "--quick")
    run(*words, *FOUR, *CLIENTS, "--output", out)
    said = capsys.readouterr().out
    runs = [metrics_csv.read(out / f"fednova/seed{i}/metrics.csv") for i in (0, 1)]
    cells = []
    for name in ("min", "p10", "median", "std"):
        last = [columns[f"client_test_accuracy_{name}"][-1] for columns in runs]
        mean, spread = 100 * np.mean(last), 100 * np.std(last, ddof=1)
        cells.append(f"{mean:.2f} ± {spread:.2f}")
    table = said[said.index(" Clients ") :]
    (row,) = [line for line in table.splitlines() if "│ FedNova " in line]
    assert all(cell in row for cell in cells)
    assert (out / "fairness.png").stat().st_size > 5_000
    config = json.loads((out / "config.json").read_text())["config"]
    assert config["local_epochs"] == [1, 2]


@pytest.mark.slow
def test_clients_keep_their_last_layer(tmp_path, capsys):
    out = tmp_path / "run"
    own = ("--own-leaves", "Dense_1", "--client-tests")
    run("train", "--algorithm", "fedavg", *FOUR, *own, "--output", out)
    columns = metrics_csv.read(out / "metrics.csv")
    assert columns["own_accuracy_mean"][-1] > columns["test_accuracy"][-1]
    mean = f"{columns['own_accuracy_mean'][-1]:.4f}"
    assert f"clients with their own parameters {mean}" in capsys.readouterr().out
    up = columns["bytes_up"][-1]
    assert up == 2 * 4 * 4 * (64 * 8 + 8)  # rounds, clients, bytes, the first layer


def test_tests_follow_owners_or_proportions():
    config = Config(num_clients=4, client_tests=True, rounds=1, min_client_size=1)
    digits = data.load("digits")
    parts = parts_of(config, digits, 3)
    tests = build.tests_of(config, digits, parts, 3)
    assert sum(map(len, tests)) == len(digits.y_test)
    assert build.tests_of(Config(), digits, parts, 3) is None
    halves = digits._replace(
        owners=np.arange(len(digits.y_train)) % 2 + 5,
        test_owners=np.full(len(digits.y_test), 6),
    )
    of_owners = Config(partition="by_owner", client_tests=True, cohort_size=2)
    assert [len(t) for t in build.tests_of(of_owners, halves, parts, 0)] == [0, 360]
    simulation = simulation_of(Run("fedavg", {}, 0, of_owners), halves)
    assert simulation.run.own_tests.ids.shape == (360,)
    with pytest.raises(ValueError, match="does not say which clients its test exa"):
        build.tests_of(of_owners, halves._replace(test_owners=None), parts, 0)
    assert client_tests.by_owner([5, 5, 9], [9, 7, 5])[1].tolist() == [0]
