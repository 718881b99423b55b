"""The papers' tables and figures: as configs, and small ones run by the command."""

import csv
import dataclasses
import importlib
import shutil
import sys

import pytest

from experiments import kept
from experiments.papers import frame, paper_report, presets
from fedjax_muon import algorithms
from fedjax_muon.runs import sweep as sweeps
from fedjax_muon.runs.config import label_of

pytestmark = pytest.mark.slow

PAPERS = ("fedmuon_001", "fedmuon_003", "fedmuon_004", "minimax_000")
MODULES = {
    name: importlib.import_module(f"experiments.papers.{name}") for name in PAPERS
}
ITEMS = [(paper, item) for paper, module in MODULES.items() for item in module.ITEMS]
# of every form; the smoke tests of others are the same, or of other partitions
RUN = [
    ("fedmuon_004", "table_4"),  # which starts at pretrained weights
    ("fedmuon_004", "table_6"),  # with every point of a grid
    ("minimax_000", "figure_3"),
]


def panels(paper, item, scale):
    return MODULES[paper].ITEMS[item].panels(scale)


def command(monkeypatch, paper, *words):
    given = [f"experiments/papers/{paper}.py", *map(str, words)]
    monkeypatch.setattr(sys, "argv", given)
    frame.command(paper, MODULES[paper].__doc__, MODULES[paper].ITEMS)


def read(run_dir):
    with (run_dir / "result.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# ------------------------------------------------------------------------- as printed
def test_the_settings_of_003():
    printed = {
        "figure_1": ("cifar10", "resnet18", 4, "iid"),
        "figure_2": ("cifar100", "resnet18", 4, "iid"),
        "figure_3": ("cifar10", "vit", 4, "iid"),
        "figure_4": ("cifar10", "resnet18", 4, "dirichlet"),
        "figure_5": ("cifar10", "resnet18", 16, "iid"),
        "figure_6": ("cifar100", "resnet18", 16, "iid"),
        "figure_7": ("cifar10", "vit", 16, "iid"),
        "figure_8": ("cifar100", "vit", 4, "iid"),
        "figure_9": ("cifar100", "vit", 16, "iid"),
        "figure_10": ("tfds:sentiment140", "rnn", 4, "iid"),
        "figure_11": ("tfds:sentiment140", "rnn", 16, "iid"),
    }
    for item, (dataset, model, steps, divided) in printed.items():
        (panel,) = panels("fedmuon_003", item, "full").values()
        config = panel.sweep.config
        about = (config.dataset, config.model, config.partition)
        assert about == (dataset, model, divided)
        assert (config.local_steps, config.batch_size) == (steps, 64)
        assert config.num_clients == config.cohort_size == 8
        assert config.lr_schedule == "cosine"
        assert len(panel.sweep.algorithms) == 12
        grid = (0.001, 0.002, 0.005, 0.01, 0.05)
        assert panel.sweep.grids["fedmuon"] == {"lr": grid}
        # 200 epochs of 50,000 images
        if model != "rnn":
            images = config.rounds * steps * 8 * 64
            assert images == pytest.approx(200 * 50_000, rel=1e-3)
    assert config.rnn == (300, 4096, 1)
    assert set(MODULES["fedmuon_003"].ITEMS) == set(printed)


def test_the_settings_of_004():
    for item, count in (("table_2", 4), ("table_5", 2), ("table_6", 4), ("table_7", 2)):
        found = panels("fedmuon_004", item, "full")
        assert len(found) == count
        for panel in found.values():
            config = panel.sweep.config
            sizes = (config.num_clients, config.cohort_size, config.local_steps)
            assert sizes == (100, 10, 50)
            assert (config.batch_size, config.rounds) == (50, 300)
            assert config.partition == "dirichlet_per_client"
            assert panel.sweep.seeds == (42, 43, 44, 45, 46)
            # section 7: plain steps have a weight decay, and FedLADA another b2
            assert config.weight_decay == 0.001
            sgd, adam = (0.01, 0.03, 0.05, 0.1, 0.3), (1e-4, 3e-4, 5e-4, 8e-4, 1e-3)
            for name, grid in panel.sweep.grids.items():
                if name in ("fedavg", "scaffold", "fedcm"):
                    assert grid == {"lr": sgd}
                if name == "local_sgd_align":
                    assert grid == {"lr": sgd, "decay": (0.001,)}
                if name == "fedlada":
                    assert grid == {"lr": adam, "b2": (0.999,)}
    for name, panel in panels("fedmuon_004", "table_6", "full").items():
        grid = dict(panel.sweep.grids["fedmuon_align"])
        assert grid.pop("lr") == (0.03,)
        if name.endswith("_align"):
            assert grid == {"align": (0.0, 0.25, 0.5, 0.75, 0.9)}
        else:
            assert grid == {"momentum": (0.8, 0.9, 0.95, 0.98, 0.99)}


@pytest.mark.parametrize("paper", PAPERS)
def test_published_numbers_belong_to_something_shown(paper):
    for item in MODULES[paper].ITEMS:
        published = paper_report.read_published(paper, item)
        if not published:
            assert paper != "fedmuon_004" or item == "figure_3"
            continue
        found = panels(paper, item, "full")
        shown = {
            (panel.setting, label)
            for panel in found.values()
            for method in panel.sweep.algorithms
            for label in labels(panel, method)
        }
        assert set(published) == shown


def labels(panel, method):
    label = panel.label or label_of(method)
    if not panel.every_point:
        return [label]
    grid = panel.sweep.grids[method]
    point = lambda hyper: sweeps.Point(hyper, [], 0)
    points = map(point, panel.sweep.points(method))
    return [f"{label}, {paper_report.varied(grid, one)}" for one in points]


# -------------------------------------------------------------------------------- run


def test_every_item_may_be_run_small(monkeypatch):
    monkeypatch.setattr(sweeps, "check_memory", lambda common: None)  # which compiles
    found = [one for about in ITEMS for one in panels(*about, "smoke").values()]
    assert len(found) >= len(ITEMS)
    for what in {repr(panel.sweep): panel.sweep for panel in found}.values():
        sweeps.check(what)


@pytest.mark.parametrize(("paper", "item"), RUN)
def test_items_run_small(paper, item, tmp_path, capsys):
    run_dir = tmp_path / "out"
    chosen = panels(paper, item, "smoke")
    given = frame.Arguments(item, "smoke", output=run_dir)
    frame.run(paper, given, MODULES[paper].ITEMS, run_dir)
    lines = read(run_dir)
    assert {line["setting"] for line in lines} == {p.setting for p in chosen.values()}
    for line in lines:
        assert 0 <= float(line["score"]) <= 100
    assert (run_dir / "result.png").read_bytes()[:4] == b"\x89PNG"
    text = (run_dir / "result.md").read_text()
    assert "Differs from the paper: a smoke test." in text
    assert f"python -m experiments.papers.{paper}" in text
    published = paper_report.read_published(paper, item)
    printed = {(line["setting"], line["method"]): line["published"] for line in lines}
    for panel in chosen.values():
        for method in panel.sweep.algorithms:
            for label in labels(panel, method):
                known = published.get((panel.printed_for or panel.setting, label))
                want = "" if known is None else str(known.score)
                assert printed[panel.setting, label] == want


TABLE_2 = ("table_2", "--scale", "smoke")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished table; copy it before changing it."""
    place = tmp_path_factory.mktemp("papers") / "table_2-smoke"
    with pytest.MonkeyPatch.context() as patch:
        command(patch, "fedmuon_004", *TABLE_2, "--output", place)
    return place


def test_an_interrupted_item_resumes(whole, tmp_path, monkeypatch, capsys):
    cut, words = tmp_path / "cut", TABLE_2
    first, second = panels("fedmuon_004", "table_2", "smoke")
    command(monkeypatch, "fedmuon_004", *words, "--output", cut, "--panels", second)
    assert f"they have not run yet: {first}\n" in capsys.readouterr().out
    assert f"\nNot run yet: {first}.\n" in (cut / "result.md").read_text()
    assert len(read(cut)) == len(read(whole)) // 2
    # an interrupted panel, without its last cell
    shutil.copytree(whole / first, cut / first)
    (cells,) = (cut / first / "cells").glob("*.csv")
    cells.unlink()
    cells.with_suffix(".json").unlink()
    recorded = []
    record = lambda *given: recorded.append(given[2])
    monkeypatch.setattr(frame, "record_call", record)
    command(monkeypatch, "fedmuon_004", *words, "--output", cut)
    assert recorded == [first]
    keep = ("setting", "method", "score", "train_loss", "bytes_per_round")
    pick = lambda run_dir: [[line[k] for k in keep] for line in read(run_dir)]
    assert pick(cut) == pick(whole)


def test_a_kept_table_is_repeated(tmp_path, monkeypatch, capsys):
    first, table = tmp_path / "figure_1-smoke", tmp_path / "kept.csv"
    words = ("figure_1", "--scale", "smoke", "--output")
    command(monkeypatch, "minimax_000", *words, first)
    shutil.copy(first / "result.csv", table)
    again = (*words, tmp_path / "again", "--repeat", table)
    command(monkeypatch, "minimax_000", *again)
    assert f"all rows of {table} are the same" in capsys.readouterr().out
    figure = table.with_suffix(".png").read_bytes()
    assert figure == (first / "result.png").read_bytes()
    assert kept.read(table.with_suffix(".json")) == kept.read(first / "result.json")
    # another number, and no table
    (line,) = read(first)
    table.write_text(table.read_text().replace(line["by_seed"], "12.34"))
    with pytest.raises(SystemExit):
        command(monkeypatch, "minimax_000", *again)
    message = f"1 of 1 rows of {table} have other numbers now; the first is "
    assert message in capsys.readouterr().err
    table.write_text("method\nFedAvg\n")
    with pytest.raises(SystemExit):
        command(monkeypatch, "minimax_000", *again)
    assert "has no column 'setting'" in capsys.readouterr().err


def test_runs_of_other_items_are_reused(whole, tmp_path):
    there, here = tmp_path / "table_2-smoke", tmp_path / "table_7-smoke" / "a"
    shutil.copytree(whole, there)
    panel = panels("fedmuon_004", "table_2", "smoke")["resnet18_dir0.1"]
    more = {**panel.sweep.grids, "fedavg": {"lr": (0.1,)}}
    wanted = dataclasses.replace(panel.sweep, algorithms=tuple(more), grids=more)
    frame.prepare(here, wanted)
    assert frame.reuse(here, wanted, [there]) == ["FedMuon(alignment) of table_2-smoke"]
    ours, theirs = (
        run_dir / "cells" / "fedmuon_align.csv"
        for run_dir in (here, there / "resnet18_dir0.1")
    )
    assert ours.read_bytes() == theirs.read_bytes()
    assert not frame.finished(here, panel._replace(sweep=wanted))
    assert frame.reuse(here, wanted, [there]) == []
    reused = ["FedMuon of table_2-smoke"]
    frame.record_call("fedmuon_004", here.parent, "a", 0.0, reused)
    said = paper_report.provenance(here.parent)
    assert "Reused runs: FedMuon of table_2-smoke." in said

    def refused(sweep):
        ours.unlink()
        return frame.reuse(here, sweep, [there]) == []

    config = dataclasses.replace(panel.sweep.config, batch_size=9)
    assert refused(dataclasses.replace(wanted, config=config))
    theirs.write_text("".join(theirs.read_text().splitlines(keepends=True)[:-1]))
    ours.touch()
    assert refused(wanted)  # not finished there


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("table_9",), "no item 'table_9'; there are table_2"),
        (("table_5", "--panels", "x"), "no panel 'x'; there are resnet18_dir0.1"),
        (("table_5", "--scale", "cpu"), "cifar100 is stored in files"),
        (("table_4", "--scale", "cpu"), "table_4 starts at pretrained weights"),
    ],
)
def test_what_cannot_run_is_refused(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("FEDJAX_MUON_DATA", raising=False)
    scale = () if "--scale" in words else ("--scale", "smoke")
    run_dir = tmp_path / "out"
    with pytest.raises(SystemExit) as stop:
        command(monkeypatch, "fedmuon_004", *words, *scale, "--output", run_dir)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not run_dir.exists()


# ----------------------------------------------------------------------------- presets
def test_the_page_is_current_and_every_number_has_a_source():
    advice = "run python -m experiments.papers.presets"
    assert presets.PAGE.read_text() == presets.page(), advice
    methods = [m for every in presets.REGISTRIES.values() for m in every.values()]
    origins = presets.sources()
    assert list(origins) == [method.name for method in methods]
    named = [(m.name, option) for m in methods for option in presets.options(m)]
    assert [one for one in named if len(origins[one[0]][one[1]]) <= 3] == []


def test_a_number_without_a_source_is_an_error():
    method, origin = algorithms.ALL["fedprox"], presets.sources()["fedprox"]
    with pytest.raises(ValueError, match=r"fedprox: presets.toml lacks \['mu'\]"):
        presets.row(method, {k: v for k, v in origin.items() if k != "mu"})
    with pytest.raises(ValueError, match=r"has \['rho'\] too many"):
        presets.row(method, origin | {"rho": "nowhere"})
    without = dataclasses.replace(method, grid={})
    with pytest.raises(ValueError, match=r"has \[\] too many"):
        presets.row(without, {})
