"""The papers' tables and figures: as printed, and small ones run by the command."""

import csv
import dataclasses
import importlib
import itertools
import shutil
import sys

import pytest

import fedjax_muon as fm
from experiments import kept
from experiments.papers import frame, paper_report, presets
from fedjax_muon import algorithms, problems
from fedjax_muon.core import numbers_of
from fedjax_muon.runs.summary import Point

pytestmark = pytest.mark.slow

SIZES = ("cohort", "local_steps", "batch_size")
PAPERS = ("fedmuon_001", "fedmuon_003", "fedmuon_004", "minimax_000")
MODULES = {
    name: importlib.import_module(f"experiments.papers.{name}") for name in PAPERS
}
ITEMS = [(paper, item) for paper, module in MODULES.items() for item in module.ITEMS]
# of every form; the smoke tests of others are the same, or of other partitions
RUN = [
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
        given = panel.settings
        divide = problems.function_name(given["divide"])
        about = given["dataset"], problems.function_name(given["model"]), divide
        assert about == (dataset, model, divided)
        assert (given["local_steps"], given["batch_size"]) == (steps, 64)
        assert given["clients"] == given["cohort"] == 8
        assert len(panel.methods) == 12
        method, grid = panel.methods["fedmuon"]
        assert grid == {"lr": (0.001, 0.002, 0.005, 0.01, 0.05)}
        assert method.recipe.function.__name__ == "cosine_decay"
        assert method.recipe.arguments["rounds"] == given["rounds"]
        # 200 epochs of 50,000 images
        if model != "rnn":
            images = given["rounds"] * steps * 8 * 64
            assert images == pytest.approx(200 * 50_000, rel=1e-3)
    assert given["model"].keywords == {"embedding": 300, "hidden": 4096}
    assert set(MODULES["fedmuon_003"].ITEMS) == set(printed)


def test_the_settings_of_004():
    for item, count in (("table_2", 4), ("table_5", 2), ("table_6", 4), ("table_7", 2)):
        found = panels("fedmuon_004", item, "full")
        assert len(found) == count
        for panel in found.values():
            given = panel.settings
            names = ("clients", "cohort", "local_steps", "batch_size", "rounds")
            assert [given[name] for name in names] == [100, 10, 50, 50, 300]
            assert given["divide"].func is fm.partition.dirichlet_per_client
            assert given["seeds"] == (42, 43, 44, 45, 46)
            # section 7: plain steps have a weight decay, and FedLADA another b2
            sgd, adam = (0.01, 0.03, 0.05, 0.1, 0.3), (1e-4, 3e-4, 5e-4, 8e-4, 1e-3)
            for name, (method, grid) in panel.methods.items():
                if name in ("fedavg", "scaffold", "fedcm"):
                    assert grid == {"lr": sgd}
                    rule = method.recipe.arguments["algorithm"].recipe.arguments["rule"]
                    moved, _ = rule.update(0.0, rule.init(1.0), 1.0)
                    assert moved == pytest.approx(0.001)
                if name == "local_sgd_align":
                    assert grid == {"lr": sgd, "decay": (0.001,)}
                if name == "fedlada":
                    assert grid == {"lr": adam, "b2": (0.999,)}
    for name, panel in panels("fedmuon_004", "table_6", "full").items():
        grid = dict(panel.methods["fedmuon_align"][1])
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
            for method in panel.methods
            for label in labels(panel, method)
        }
        assert set(published) == shown


def labels(panel, name):
    label, (_, grid) = panel.label_of(name), panel.methods[name]
    if not panel.every_point:
        return [label]
    values = itertools.product(*grid.values())
    points = [Point(dict(zip(grid, each, strict=True)), [], 0) for each in values]
    return [f"{label}, {paper_report.varied(points, one)}" for one in points]


# -------------------------------------------------------------------------------- run


def test_every_item_may_be_run_small():
    found = [one for about in ITEMS for one in panels(*about, "smoke").values()]
    assert len(found) >= len(ITEMS)
    for panel in found:
        problem = frame.problem_of(panel, None)
        how = {name: panel.settings[name] for name in SIZES}
        for method, grid in panel.methods.values():
            assert grid.keys() <= numbers_of(method).keys()
            fm.simulate(method, problem, **how)


@pytest.mark.parametrize(("paper", "item"), RUN)
def test_items_run_small(paper, item, tmp_path, capsys):
    run_dir = tmp_path / "out"
    chosen = panels(paper, item, "smoke")
    frame.run(paper, MODULES[paper].ITEMS, item, "smoke", output=run_dir)
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
        for method in panel.methods:
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
    (line,) = read(cut)
    frozen = ["FedMuon(alignment)", "lr=0.03", "9.44", "2.4643"]
    names = ("method", "hyper", "by_seed", "train_loss_by_seed")
    assert [line[name] for name in names] == frozen
    # an interrupted panel, without its last cell
    shutil.copytree(whole / first, cut / first)
    for cells in (cut / first).glob("*/cells.*"):
        cells.unlink()
    recorded = []
    record = lambda *given: recorded.append(given[1].name)
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("table_9",), "no item 'table_9'; there are table_2"),
        (("table_5", "--panels", "x"), "no panel 'x'; there are resnet18_dir0.1"),
        (("table_5", "--scale", "cpu"), "cifar100 is stored in files"),
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
