"""The commands that are printed for users: in pages, notebooks, headers of programs."""

import ast
import json
import re
import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PROGRAM = r"(?:fedjax-muon(?! @)|python\s+-m\s+[\w.]+)"
# at the start of a line, or after a prompt, a launcher, another command, a quote
LINE = re.compile(rf'(?:^|[\s"])({PROGRAM}(?:\s.*)?)$')
# of finished studies, in a sentence or in a block that checks the commit out
OF_A_COMMIT = re.compile(
    r"`[^`]+` at commit [0-9a-f]{7,}"
    r"|^ {4}git checkout [0-9a-f]{7,}\n(?: {4}.*\n)+",
    re.MULTILINE,
)
SPAN = re.compile(rf"`({PROGRAM}(?:\s[^`]+)?)`")


class Printed(NamedTuple):
    """A command, as words, and where it is printed."""

    place: str
    words: tuple[str, ...]
    inline: bool  # in a sentence, where it may be a mere name


def code_lines(text: str) -> list[str]:
    """The lines of fenced and of indented code, continued lines joined."""
    lines, fenced = [], False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            lines.append(line)
    return re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()


def command_in(line: str) -> str | None:
    """The command of a line, without what calls it."""
    match = LINE.search(line)
    if match is None:
        return None
    quoted = line[match.start()] == '"'
    return match[1].split('"')[0] if quoted else match[1]


def commands(place: str, text: str) -> list[Printed]:
    """All commands of a text in Markdown."""
    text = OF_A_COMMIT.sub("", text)
    found = [command_in(line) for line in code_lines(text)]
    spans = [" ".join(span.split()) for span in SPAN.findall(text)]
    spans = [span for span in spans if span != "fedjax-muon"]
    both = [(c, False) for c in found if c] + [(span, True) for span in spans]
    return [
        Printed(place, tuple(shlex.split(command, comments=True)), inline)
        for command, inline in both
    ]


def texts() -> dict[str, str]:
    """Everything that commands are looked for in, by its place."""
    pages = [*ROOT.glob("*.md")]
    for folder in ("docs", "results", "notebooks", "benchmarks"):
        pages += (ROOT / folder).rglob("*.md")
    found = {path: path.read_text() for path in pages}
    for folder in ("experiments", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            found[path] = ast.get_docstring(ast.parse(path.read_text())) or ""
    for path in (ROOT / "notebooks").rglob("*.py"):
        found[path] = re.sub(r"^# ?", "", path.read_text(), flags=re.MULTILINE)
    for path in (ROOT / "notebooks").rglob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        sources = ["".join(cell["source"]) for cell in cells]
        as_code = [f"```\n{s.replace('!', ' ')}\n```" for s in sources]
        kinds = [cell["cell_type"] for cell in cells]
        both = zip(kinds, sources, as_code, strict=True)
        found[path] = "\n\n".join(s if k == "markdown" else c for k, s, c in both)
    return {str(path.relative_to(ROOT)): text for path, text in sorted(found.items())}


def blocks(path: Path, language: str = "python") -> list[str]:
    """The code of a page, also in tabs, and in `<!-- test -->`, which nobody sees."""
    fenced = rf"^( *)```{language}\n(.*?)^\1```$"
    found = re.findall(fenced, path.read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(code) for _, code in found]


def all_commands() -> list[Printed]:
    """Every different command, with the first place that it is printed in."""
    found = [p for place, text in texts().items() for p in commands(place, text)]
    seen: dict[tuple[str, ...], Printed] = {}
    for printed in sorted(found, key=lambda p: p.inline):
        seen.setdefault(printed.words, printed)
    return list(seen.values())
