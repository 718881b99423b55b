"""The command's options: a page made of what `fedjax-muon COMMAND --help` prints."""

import re
from collections.abc import Mapping
from typing import Any

from mkdocs.structure.files import File

from fedjax_muon.cli import call
from fedjax_muon.cli.main import COMMANDS


def cell(text: str) -> str:
    """A text in a table."""
    return re.sub(r"([|[])", r"\\\1", text).replace("<", "&lt;")


def rows(
    parameters: Mapping[str, Any], texts: Mapping[str, str], mark: str
) -> list[str]:
    """Arguments as rows of a table."""
    shown = {name: call.dashed(name) if mark else name.upper() for name in parameters}
    return [
        f"| `{shown[name]}` | {cell(call.about(each, texts))} |"
        for name, each in parameters.items()
    ]


def section(command: str) -> str:
    """The options of a command as a table."""
    texts = call.texts_of(call.function_of(command))
    lines = [f"## fedjax-muon {command}", "", cell(COMMANDS[command])]
    lines += ["", "| argument | |", "|---|---|"]
    lines += rows(call.places_of(command), texts, "")
    return "\n".join([*lines, *rows(call.options_of(command), texts, "--")])


def page() -> str:
    """The page."""
    sections = map(section, COMMANDS)
    return "\n\n".join(["# Command-line options", *sections]) + "\n"


def on_files(files, config):
    """Adds the page."""
    files.append(File.generated(config, "reference/options.md", content=page()))
    return files
