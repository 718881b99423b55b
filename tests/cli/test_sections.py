"""Help in sections: every option once, under its heading, in 80 columns."""

import dataclasses
import re

import pytest
from command import run

from fedjax_muon.cli import RUNNERS, command_kinds, sections
from fedjax_muon.runs.config import Config, Private
from fedjax_muon.runs.launch import Launch

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


def boxes(text: str) -> dict[str, list[str]]:
    """The options of every box of a help text, which without Unicode has no lines."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.strip("╭╮│─ ")
        if re.fullmatch(r"([\w-]+ )?options|positional arguments", words):
            options = found.setdefault(words, [])
        option = re.match(r"--([\w.-]+)", words)
        if option and option[1].strip("-"):
            options.append(option[1])
    return found


def names(kind: type) -> list[str]:
    """The options of a command, from its dataclasses alone."""
    found = []
    for field in dataclasses.fields(kind):
        part = {"config": Config, "launch": Launch, "job": Private}.get(field.name)
        if part is not None:
            found += names(part)
        elif field.name == "config_file":
            found.append("config")
        elif field.name != "hyper":
            found.append(field.name.replace("_", "-"))
    return found


@pytest.mark.parametrize("command", RUNNERS)
def test_every_option_is_in_one_section_of_help_in_80_columns(
    command, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        run(command, "--help")
    assert stop.value.code == 0
    text = capsys.readouterr().out
    found = boxes(text)
    listed = [name for options in found.values() for name in options]
    assert len(set(listed)) == len(listed)
    kind, _ = command_kinds([command])[command]
    positional = {"algorithms", "directory", "directories", "name", "path"}
    wanted = {*names(kind)} - (positional if command != "sweep" else set())
    plain = {name for name in listed if not name.startswith("algorithm.")}
    assert plain == wanted
    lines = [line for line in text.splitlines() if line.startswith((" ", "│", "╭"))]
    assert max(map(len, lines)) <= 80
    if command == "train":
        assert list(found) == [
            *("options", "algorithm options", "Data options", "Client options"),
            *("Model options", "Newton-Schulz options", "Training options"),
            *("Compression options", "Execution options", "Output options"),
        ]
        assert found["options"] == ["config", "algorithm", "seed"]


def test_options_are_where_they_are_looked_for():
    kind, default = command_kinds(["train"])["train"]
    options = sections.options(kind, default.get("default"))
    found = {option.name: option.section for option in options}
    assert EXPECTED.items() <= found.items()
    for kind, starts in sections.STARTS.items():
        fields = [field.name for field in dataclasses.fields(kind)]
        assert next(iter(starts)) == fields[0]
        assert list(starts) == sorted(starts, key=fields.index)
        assert set(starts.values()) <= set(sections.ORDER)


def test_values_come_back_in_the_parts_of_the_command():
    kind, _ = command_kinds(["train"])["train"]
    options = sections.options(kind)
    given = {option.name: option.default for option in options}
    made = sections.command(kind, options, given | {"alpha": 0.7, "process_id": 3})
    assert made.config == Config(alpha=0.7)
    assert made.launch == Launch(process_id=3)
    assert given["output"] is made.output is None
