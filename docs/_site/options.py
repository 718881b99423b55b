"""The command's options: a page made of what `fedjax-muon COMMAND --help` prints."""

import contextlib
import io
import os
import re
from unittest import mock

from mkdocs.structure.files import File

from fedjax_muon import cli

WIDTH = "100"  # letters of a line
COMMANDS = re.compile(r"\{([a-z,]+)\}")
SECTION = re.compile(r"╭─ (.*?) ─*╮")
OPTION = re.compile(r"│ ((?:-\w, )?(?:--|[A-Z[])\S.*?) +│")
TEXT = re.compile(r"│ {3,}(\S.*?) +│")


def help_of(*words: str) -> list[str]:
    """The lines that a command prints about itself."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # which may have boxes
    with (
        mock.patch.dict(os.environ, COLUMNS=WIDTH),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        cli.main([*words, "--help"])
    printed.seek(0)
    return printed.read().splitlines()


def cell(text: str) -> str:
    """A text in a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def section(command: str) -> str:
    """The options of a command as tables."""
    lines = help_of(command)
    start = next(i for i, line in enumerate(lines) if SECTION.match(line))
    about = "\n".join(lines[1:start]).strip()
    rows = [f"## fedjax-muon {command}", "", about]
    for line in lines[start:]:
        if title := SECTION.match(line):
            rows += ["", f"| {title[1].capitalize()} | |", "|---|---|"]
        elif option := OPTION.match(line):
            name, _, text = option[1].partition("  ")
            rows.append(" ".join(f"| `{cell(name)}` | {cell(text)}".split()) + " |")
        elif text := TEXT.match(line):
            rows[-1] = f"{rows[-1][:-2]} {cell(text[1])} |"
    return "\n".join(rows)


def page() -> str:
    """The page."""
    names = COMMANDS.search(help_of()[0])[1].split(",")
    return "\n\n".join(["# Command-line options", *map(section, names)]) + "\n"


def on_files(files, config):
    """Adds the page."""
    files.append(File.generated(config, "reference/options.md", content=page()))
    return files
