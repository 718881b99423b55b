"""What the reference shows of classes and of examples.

The fields of named tuples and dataclasses are shown as they are written: their comments
say what they mean. A section `Example:` is read as `Examples:`, which is known to have
code.
"""

import ast
import re
import textwrap
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
