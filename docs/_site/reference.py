"""The API reference: a page for every part of the package, read off its files.

A part is a module, or a package with all modules below it. What is private, and the
command's own `__main__`, has no place here.
"""

import ast
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PACKAGE = "fedjax_muon"
# of the results of a search
BEHIND_PROSE = "---\nsearch:\n  boost: 0.1\n---\n"
INTRODUCTION = """# Reference

The docstrings, one page for every part of `fedjax_muon`. Names are imported from the
modules that they are listed under, or from the part itself where it exports them.

| | |
|---|---|
"""


def modules_by_part() -> dict[str, list[Path]]:
    """The files of every part, a package's own first."""
    parts: dict[str, list[Path]] = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        inside = path.relative_to(ROOT / PACKAGE).with_suffix("")
        if len(inside.parts) > 1 or inside.name not in ("__init__", "__main__"):
            parts.setdefault(inside.parts[0], []).append(path)
    return parts


def name_of(path: Path) -> str:
    """How a file is imported."""
    names = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(name for name in names if name != "__init__")


def summary_of(tree: ast.Module) -> str:
    """The first paragraph of a module's docstring, on one line."""
    return " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())


def defined_in(tree: ast.Module) -> list[str]:
    """The public functions and classes that are written in a file, not imported."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = [node.name for node in tree.body if isinstance(node, kinds)]
    return [name for name in names if not name.startswith("_")]


def directive(path: Path, alone: bool) -> str:
    """What mkdocstrings puts a module's documentation in the place of."""
    members = defined_in(ast.parse(path.read_text()))
    lines = [f"::: {name_of(path)}", "    options:"]
    lines += [f"      members: {members or 'false'}"]
    lines += [f"      show_root_heading: {str(not alone).lower()}"]
    return "\n".join(lines)


def page(part: str, paths: list[Path]) -> str:
    """The page of a part."""
    blocks = [directive(path, path is paths[0]) for path in paths]
    return BEHIND_PROSE + "\n\n".join([f"# {PACKAGE}.{part}", *blocks]) + "\n"


def on_files(files, config):
    """Adds the pages, and one that lists them."""
    index = INTRODUCTION
    for part, paths in modules_by_part().items():
        uri = f"reference/{part}.md"
        files.append(File.generated(config, uri, content=page(part, paths)))
        summary = summary_of(ast.parse(paths[0].read_text()))
        index += f"| [`{part}`]({part}.md) | {summary} |\n"
    files.append(File.generated(config, "reference/index.md", content=index))
    return files
