"""What the reference shows of classes and of examples.

The fields of named tuples and dataclasses are shown as they are written: their comments
say what they mean, as those of type aliases do. A section `Example:` is read as
`Examples:`, which is known to have code.
"""

import ast
import re
import textwrap
from itertools import takewhile
from pathlib import Path

import griffe

SECTION = re.compile(r"^Example:$", re.MULTILINE)
METHODS = (ast.FunctionDef, ast.AsyncFunctionDef)


def written_fields(node: ast.ClassDef, lines: list[str]) -> str:
    """The lines of a class between its docstring, if any, and its first method."""
    begin = node.body[0].end_lineno if ast.get_docstring(node) else node.lineno
    methods = [n for n in node.body if isinstance(n, METHODS)]
    if methods:
        first = methods[0]
        end = min([first.lineno, *(d.lineno for d in first.decorator_list)]) - 1
    else:
        end = node.end_lineno
        while lines[end : end + 1] and lines[end].startswith("    #"):
            end += 1  # comments after the last field
    return textwrap.dedent("\n".join(lines[begin:end])).strip()


def explains_its_fields(node: ast.ClassDef) -> bool:
    """Whether fields have docstrings, which the reference shows by itself."""
    texts = [n for n in node.body if isinstance(n, ast.Expr)]
    return len(texts) > bool(ast.get_docstring(node))


def comment_of(lines: list[str], begin: int, end: int) -> str:
    """The comment at the end of a statement, or the lines of one below or above it."""
    _, mark, text = lines[end - 1].partition("  # ")
    if not mark:
        is_comment = lambda line: line.startswith("# ")
        below = list(takewhile(is_comment, lines[end:]))
        above = list(takewhile(is_comment, reversed(lines[:begin])))
        text = " ".join(line[2:] for line in below or reversed(above))
    return text[:1].upper() + text[1:]


class Examples(griffe.Extension):
    """Names the sections of examples as griffe does."""

    def on_instance(self, *, obj, **kwargs) -> None:
        if obj.docstring:
            obj.docstring.value = SECTION.sub("Examples:", obj.docstring.value)


class Fields(griffe.Extension):
    """Adds them to the docstring of the class."""

    def on_class_instance(self, *, node, cls, **kwargs) -> None:
        has_fields = any(isinstance(n, ast.AnnAssign) for n in node.body)
        if not has_fields or explains_its_fields(node):
            return
        lines = Path(cls.filepath).read_text().splitlines()
        if cls.docstring is None:
            cls.docstring = griffe.Docstring("", parent=cls)
        cls.docstring.value += f"\n\n```python\n{written_fields(node, lines)}\n```"


class Aliases(griffe.Extension):
    """Makes the comment of a type alias its docstring."""

    def on_attribute_instance(self, *, attr, **kwargs) -> None:
        if attr.docstring is None and attr.parent.is_module and attr.lineno:
            lines = Path(attr.filepath).read_text().splitlines()
            if text := comment_of(lines, attr.lineno - 1, attr.endlineno):
                attr.docstring = griffe.Docstring(text, parent=attr)
