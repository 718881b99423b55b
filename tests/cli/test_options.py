"""Options: in the sections of the help, and refused in one line."""

import dataclasses
import typing

import pytest
from command import run

from fedjax_muon.cli import RUNNERS, _given as given, command_kinds, commands, parsing
from fedjax_muon.cli.arguments import method_options
from fedjax_muon.runs import config


def test_a_grid_is_for_all_methods_or_for_one():
    grids = commands._grids
    assert grids(["fedavg", "fedmuon"], ["fedavg.lr=3", "lr=1,2", "server_lr=1"]) == {
        "fedavg": {"lr": (3.0,), "server_lr": (1.0,)},
        "fedmuon": {"lr": (1.0, 2.0), "server_lr": (1.0,)},
    }
    paper = grids(["fedavg", "fedmuon"], ["paper"])
    mixed = grids(["fedavg", "fedmuon"], ["paper", "fedavg.lr=0.5"])
    assert mixed == {**paper, "fedavg": {**paper["fedavg"], "lr": (0.5,)}}


@pytest.mark.parametrize(
    ("words", "graph"),
    [
        ("train --output dsgd", None),
        ("train --algorithm dsgd --output fedavg", "erdos_renyi"),
        ("compare dsgd demuon --output fedavg", "erdos_renyi"),
        ("compare --quick dsgd", "erdos_renyi"),
        ("compare --rounds 2 dsgd,demuon", "erdos_renyi"),
        ("compare fedavg --output=dsgd", None),
    ],
)
def test_only_names_of_algorithms_decide_the_defaults(words, graph):
    name, *rest = words.split()
    assert given(name, rest).config.graph == graph


# ------------------------------------------------------------------------- the help

EXPECTED = {
    "problem": "Data",
    "dataset": "Data",
    "alpha": "Client",
    "model": "Model",
    "newton_schulz_dtype": "Newton-Schulz",
    "error_feedback": "Compression",
    **dict.fromkeys(("cohort_size", "rounds"), "Training"),
    **dict.fromkeys(("devices", "coordinator", "tune"), "Execution"),
    "output": "Output",
    "seed": None,
}


@pytest.mark.parametrize("command", RUNNERS)
def test_every_option_is_in_the_help_and_has_one(command, capsys):
    with pytest.raises(SystemExit) as stop:
        run(command, "--help")
    assert stop.value.code == 0
    text = capsys.readouterr().out
    kind, _ = command_kinds([command])[command]
    options = {option.name: option for option in parsing.options(kind)}
    positional = {"algorithms", "directory", "directories", "name", "path"}
    for name in options.keys() - positional - {"hyper"}:
        assert f"--{name.replace('_', '-')}" in text
        texts = [getattr(each, "help", "") for each in options[name].hint.__metadata__]
        assert any(texts), name


def test_options_are_where_they_are_looked_for():
    kind, default = command_kinds(["train"])["train"]
    options = parsing.options(kind, default.get("default"))
    found = {option.name: option.section for option in options}
    assert EXPECTED.items() <= found.items()
    for kind, starts in parsing.STARTS.items():
        fields = [field.name for field in dataclasses.fields(kind)]
        assert next(iter(starts)) == fields[0]
        assert list(starts) == sorted(starts, key=fields.index)
        assert set(starts.values()) <= set(parsing.ORDER)


def test_every_option_of_a_method_has_a_help():
    for method in config.METHODS.values():
        options = method_options(method)
        kinds = typing.get_type_hints(options, include_extras=True)
        silent = [name for name in kinds if not kinds[name].__metadata__[0].help]
        assert (method.name, silent) == (method.name, [])
