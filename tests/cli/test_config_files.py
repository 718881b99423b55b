"""Options from files: the same run as by arguments, and refusals of wrong files."""

import json
import tomllib
from pathlib import Path

import pytest
import yaml
from cases import slow_but
from command import SMALL, assert_same_but_for_seconds, refused, run

from fedjax_muon.cli import _given as given
from fedjax_muon.cli import commands, config_files
from fedjax_muon.runs import config, directory
from fedjax_muon.runs.config_json import from_json, to_json

YAML = """
algorithm: fedprox
hyper: {lr: 5e-2, mu: 0.5}
seed: 3
num-clients: 6
cohort_size: 3
hidden: [16]
drop_nonfinite: true
lr_schedule: null
partition: iid
"""
TOML = """
algorithm = "fedprox"
hyper = {lr = 5e-2, mu = 0.5}
seed = 3
num-clients = 6
cohort_size = 3
hidden = [16]
drop_nonfinite = true
partition = "iid"
"""
WORDS = [
    *("--algorithm", "fedprox", "--algorithm.lr", "0.05", "--algorithm.mu", "0.5"),
    *("--seed", "3", "--num-clients", "6", "--cohort-size", "3", "--hidden", "16"),
    *("--drop-nonfinite", "--partition", "iid"),
]


def write(place: Path, name: str, text: str | bytes) -> Path:
    path = place / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def same(one, other) -> bool:
    """Whether two commands have the same values; classes of options differ."""
    return repr(one) == repr(other)


def test_files_of_all_formats_are_the_same_arguments(tmp_path):
    wanted = given("train", WORDS)
    in_json = json.dumps(tomllib.loads(TOML))
    assert yaml.safe_load(YAML)["hyper"]["lr"] == "5e-2"  # a word in YAML
    for name, text in {"a.yaml": YAML, "a.toml": TOML, "a.json": in_json}.items():
        path = write(tmp_path, name, text)
        found = given("train", ["--config", str(path)])
        assert found.config_file == path
        assert same(found.config, wanted.config)
        assert same(found.hyper, wanted.hyper)
        assert (found.algorithm, found.seed) == ("fedprox", 3)


def test_arguments_come_before_the_file_which_comes_before_defaults(tmp_path):
    path = str(write(tmp_path, "a.yaml", YAML))
    found = given("train", [f"--config={path}", "--algorithm.mu", "0", "--seed", "4"])
    assert (found.hyper.lr, found.hyper.mu, found.seed) == (0.05, 0.0, 4)
    assert found.config.cohort_size == 3
    without = given("train", [*WORDS, "--no-drop-nonfinite"])
    found = given("train", ["--config", path, "--no-drop-nonfinite"])
    assert found.config == without.config
    # the options of the file's algorithm are not another one's
    other = given("train", ["--algorithm", "fedavg", "--config", path])
    assert other.hyper.lr == given("train", ["--algorithm", "fedavg"]).hyper.lr
    assert other.config.cohort_size == 3
    # a problem in the file changes the other defaults
    auc = str(write(tmp_path, "auc.toml", 'problem = "auc"\nrounds = 3'))
    found = given("compare", ["--config", auc, "--lr", "local_sgda", "0.1"])
    wanted = given("compare", ["--problem", "auc", "--rounds", "3"])
    assert same(found.config, wanted.config)


def test_positional_names_and_values_by_name(tmp_path):
    text = "algorithms: [fedavg, fedmuon]\nlr: {fedavg: 0.3}\nseeds: [1, 2]\n"
    path = str(write(tmp_path, "a.yaml", text))
    found = given("compare", ["--config", path])
    assert found.algorithms == ("fedavg", "fedmuon")
    assert (found.lr, found.seeds) == ({"fedavg": 0.3}, (1, 2))
    assert given("compare", ["scaffold", "--config", path]).algorithms == ("scaffold",)


@pytest.mark.slow
def test_a_run_is_repeated_from_its_directory(tmp_path):
    first, again = tmp_path / "first", tmp_path / "again"
    hyper = ("--algorithm.lr", 0.05, "--algorithm.momentum", 0.8, "--seed", 5)
    model = ("--hidden", 8, "--compressor", "top_k", "--rounds", 2)
    run("train", "--algorithm", "fedmuon", *hyper, *SMALL, *model, "--output", first)
    run("train", "--config", first, "--output", again)
    assert_same_but_for_seconds(first / "metrics.csv", again / "metrics.csv")
    texts = [(place / "config.json").read_text() for place in (first, again)]
    assert texts[0] == texts[1]


JOBS = {
    "compare": config.Comparison(
        ("fedavg", "scaffold"),
        {"fedavg": 0.3, "scaffold": 0.07},
        {"fedavg": "cosine", "scaffold": "constant"},
        (4, 5),
        config.Config(hidden=(), exclude=("a b",), data_dir=Path("x=y")),
    ),
    "sweep": config.Sweep(
        ("fedavg", "fedmuon"),
        {"fedavg": {"lr": (0.1, 1e-05)}, "fedmuon": {"momentum": (0.9,), "lr": (1.0,)}},
        (7,),
        0.25,
        3,
        config.Config(alpha=0.3, error_feedback=0.5, compressor="svd"),
    ),
    "private": config.Private(
        epsilons=(0.5, 2.0),
        lr={"dp_sgda": 0.3},
        hidden=(4,),
        budget=3.0,
        insecure_fixed_noise=True,
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_config_of_a_command_makes_the_same_job(name, tmp_path, monkeypatch):
    """From config.json through the arguments to the job that would be recorded."""
    made = []

    def create(output, job, kind):
        made.append(job)
        raise ValueError("far enough")

    path = write(tmp_path, "config.json", to_json(JOBS[name]))
    monkeypatch.setattr(directory, "create", create)
    monkeypatch.setattr(commands.comparisons, "check", lambda job: None)
    monkeypatch.setattr(commands.sweeps, "check", lambda job, executor: None)
    monkeypatch.setattr(commands.privately, "prepare", lambda job: None)
    with pytest.raises(SystemExit):
        run(name, "--config", path)
    assert from_json(to_json(made[0])) == from_json(to_json(JOBS[name]))


def test_a_grid_is_for_all_methods_or_for_one():
    grids = commands._grids
    assert grids(["fedavg", "fedmuon"], ["fedavg.lr=3", "lr=1,2", "server_lr=1"]) == {
        "fedavg": {"lr": (3.0,), "server_lr": (1.0,)},
        "fedmuon": {"lr": (1.0, 2.0), "server_lr": (1.0,)},
    }
    paper = grids(["fedavg", "fedmuon"], ["paper"])
    mixed = grids(["fedavg", "fedmuon"], ["paper", "fedavg.lr=0.5"])
    assert mixed == {**paper, "fedavg": {**paper["fedavg"], "lr": (0.5,)}}


WRONG = {
    "unknown.yaml": ("cohort_siz: 3", "'cohort_siz'; did you mean cohort_size?"),
    "word.yaml": ("rounds: many", "--rounds: invalid literal for int()"),
    "real.toml": ("rounds = 2.5", "--rounds: invalid literal for int()"),
    "flag.yaml": ("rounds: true", "rounds takes numbers or words, got true"),
    "number.yaml": ("tune: 3", "tune takes true or false, got 3"),
    "list.yaml": ("rounds: [1, 2]", "rounds takes one value, got 2"),
    "pairs.yaml": ("hyper: 3", "hyper takes values by name, got 3"),
    "range.yaml": ("rounds: 0", "rounds must be at least 1, got 0"),
    "choice.json": ('{"plan": "fast"}', "one of ('default', 'loop', 'mapped'"),
    "method.yaml": ("algorithm: fedmoun", "did you mean fedmuon"),
    "option.yaml": ("hyper: {foo: 1}", "unknown option --algorithm.foo"),
    "twice.yaml": ("rounds: 1\nrounds: 2", "'rounds' is there twice"),
    "twice.json": ('{"rounds": 1, "rounds": 2}', "'rounds' is there twice"),
    "values.json": ("[1]", "expected options by name, got list"),
    "ended.json": ("{", "expected a file in JSON ("),
    "ended.toml": ("a = ", "expected a file in TOML ("),
    "ended.yaml": ("a: [", "expected a file in YAML ("),
    "date.toml": ("rounds = 2020-01-01", 'rounds takes numbers or words, got "2020'),
    "reference.yaml": ("a: &a [1]\nb: *a", "a reference (*) is not allowed"),
    "python.yaml": ("a: !!python/object/apply:os.getcwd []", "determine a constructor"),
    "deep.json": ("[" * 100_000, "maximum recursion depth"),
    "deep.yaml": ("[" * 5000, "maximum recursion depth"),
    "option_in_list.yaml": ("exclude: ['--output', b]", "can't begin with -"),
    "latin.yaml": ("rounds: \xe9".encode("latin-1"), "can't decode byte 0xe9"),
    "huge.yaml": (b"a: 1\n" * 100_000, "expected at most 262144 bytes, found 500000"),
    "file.ini": ("a=1", "a config file ends in .yaml, .yml, .json, .toml"),
    "config.json": ('{"kind": "run"}', "config must be an object, got None"),
}


@pytest.mark.parametrize("name", slow_but(("unknown.yaml", "range.yaml"), WRONG))
def test_a_wrong_file_is_refused_in_one_line(name, tmp_path, capsys):
    text, message = WRONG[name]
    path = write(tmp_path, name, text)
    place = tmp_path / "out"
    said = refused(capsys, "train", "--config", path, "--output", place)
    assert message in said
    assert str(path) in said
    assert not place.exists()


def test_a_mistake_in_the_arguments_is_not_the_files(tmp_path, capsys):
    path = write(tmp_path, "a.yaml", "rounds: 0\nseed: 1\n")
    said = refused(capsys, "train", "--config", path, "--rounds", 2, "--devices", 0)
    assert said == "devices must be at least 1, got 0"
    said = refused(capsys, "train", "--config", path, "--algorithm", "fedmoun")
    assert said.startswith("unknown algorithm")


def test_the_config_of_another_command_is_named(tmp_path, capsys):
    path = write(tmp_path, "config.json", to_json(JOBS["sweep"]))
    said = refused(capsys, "train", "--config", tmp_path)
    assert "is the config of `sweep`, not of `train`; repeat it by: " in said
    assert said.endswith(f"fedjax-muon sweep --config {path}")
    assert "has no config.json" in refused(capsys, "train", "--config", tmp_path.parent)
    assert "No such file" in refused(capsys, "train", "--config", tmp_path / "no.yaml")
    assert config_files.find("resume", ["--config", "x.ini"]).path is None
