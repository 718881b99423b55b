"""Larger grids in the directory of a sweep."""

import csv
import dataclasses
from pathlib import Path

import pytest
from command import refused, run

from fedjax_muon.runs import directory
from fedjax_muon.runs.config import Config, Sweep
from fedjax_muon.runs.extend import extend

SIZES = (
    *("--num-clients", 4, "--cohort-size", 2, "--local-steps", 1, "--batch-size", 4),
    *("--hidden", 4, "--rounds", 2, "--evaluate-every", 2),
)


def cells(place: Path, name: str) -> list[tuple[str, str, str]]:
    with (place / "cells" / f"{name}.csv").open(newline="") as file:
        rows = [
            (row["lr"], row["seed"], row["seconds"]) for row in csv.DictReader(file)
        ]
    return rows[1::2]


@pytest.mark.slow
def test_a_larger_grid_runs_what_is_missing(tmp_path, capsys):
    place = tmp_path / "sweep"
    small = ("sweep", "--algorithms", "fedavg", "--grid", "lr=0.1,0.3", "--seeds", 0)
    run(*small, *SIZES, "--output", place)
    before = cells(place, "fedavg")
    assert [cell[:2] for cell in before] == [("0.1", "0"), ("0.3", "0")]
    large = ("sweep", "--algorithms", "fedavg", "fedmuon", "--seeds", "1,0")
    large = (*large, "--grid", "lr=0.3,1,0.1")
    run(*large, *SIZES, "--output", place)
    after = cells(place, "fedavg")
    assert after[:2] == before  # with their seconds: they did not run again
    rates, seeds = ("0.3", "1.0", "0.1"), ("1", "0")
    missing = [
        (lr, seed) for lr in rates for seed in seeds if seed == "1" or lr == "1.0"
    ]
    assert [cell[:2] for cell in after[2:]] == missing
    assert len(cells(place, "fedmuon")) == 6
    assert directory.read(place).grids["fedavg"]["lr"] == (0.3, 1.0, 0.1)
    message = refused(capsys, *small, *SIZES, "--output", place)
    assert "algorithms had fedmuon; seeds had 1; lr of fedavg had 1.0" in message


BASE = Sweep(("fedavg",), {"fedavg": {"lr": (0.1,)}}, (0, 1), 0.1, None, Config())
LARGER = dataclasses.replace(BASE, grids={"fedavg": {"lr": (0.01, 0.1, 1.0)}})
CONFIG = dataclasses.replace(BASE.config, dataset="fashion_mnist", rounds=7)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"config": CONFIG},
            "dataset was digits and is fashion_mnist; rounds was 100 and is 7",
        ),
        ({"validation": 0.2}, "validation was 0.1 and is 0.2"),
        ({"seeds": (1, 2)}, "seeds had 0"),
        ({"grids": {"fedavg": {"lr": (0.3,)}}}, "lr of fedavg had 0.1"),
        (
            {"grids": {"fedavg": {"server_lr": (1.0,)}}},
            "the grid of fedavg was over lr and is over server_lr",
        ),
    ],
)
def test_what_is_no_extension_is_refused_by_entry(tmp_path, change, said):
    place = directory.create(tmp_path / "sweep", BASE, "sweep")
    with pytest.raises(ValueError, match="can't be extended") as error:
        extend(place, dataclasses.replace(LARGER, **change))
    assert said in str(error.value)
    assert directory.read(place) == BASE
    extend(place, LARGER)
    assert directory.read(place) == LARGER


def test_another_data_directory_is_no_difference(tmp_path):
    place = directory.create(tmp_path / "sweep", BASE, "sweep")
    moved = dataclasses.replace(BASE.config, data_dir=tmp_path)
    extend(place, dataclasses.replace(BASE, config=moved))
