"""The command's options: a page made of what `fedjax-muon COMMAND --help` prints."""

import re

from mkdocs.structure.files import File

from fedjax_muon.cli import helping
from fedjax_muon.cli.main import COMMANDS

SECTION = re.compile(r"(\S.*)")
OPTION = re.compile(r"  (--\S+)")
# of commands that take methods: those whose options the page shows
METHODS = {"train": ["fedmuon"], "compare": ["fedmuon"], "sweep": ["fedmuon"]}


def cell(text: str) -> str:
    """A text in a table."""
    return re.sub(r"([|[])", r"\\\1", text).replace("<", "&lt;")


def section(command: str) -> str:
    """The options of a command as tables."""
    options = helping.options_of(command, METHODS.get(command, []))
    rows = [f"## fedjax-muon {command}", "", cell(COMMANDS[command].about)]
    for line in options.splitlines():
        if option := OPTION.fullmatch(line):
            rows.append(f"| `{option[1]}` | |")
        elif title := SECTION.fullmatch(line):
            rows += ["", f"| {title[1]} | |", "|---|---|"]
        elif line.strip():
            rows[-1] = f"{rows[-1][:-1]}{cell(line.strip())} |"
    return "\n".join(rows)


def page() -> str:
    """The page."""
    sections = map(section, COMMANDS)
    return "\n\n".join(["# Command-line options", *sections]) + "\n"


def on_files(files, config):
    """Adds the page."""
    files.append(File.generated(config, "reference/options.md", content=page()))
    return files
