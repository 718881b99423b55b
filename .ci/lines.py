"""Prints the lines of the library by package and kind: code, docstrings, comments."""

import ast
import subprocess
from collections import Counter
from pathlib import Path

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def kinds(source: str) -> Counter[str]:
    """The numbers of lines of each kind in a module."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            text = node.body[0]
            documented |= {*range(text.lineno, text.end_lineno + 1)}
    counts = Counter(files=1)
    for number, line in enumerate(source.splitlines(), start=1):
        counts["lines"] += 1
        if number in documented:
            counts["docstrings"] += 1
        elif line.strip():
            counts["comments" if line.lstrip().startswith("#") else "code"] += 1
    return counts


def main() -> None:
    words = ["git", "ls-files", "fedjax_muon/*.py", "fedjax_muon/*.pyi"]
    packages: dict[str, Counter[str]] = {}
    for path in subprocess.check_output(words, text=True).split():
        package = path.split("/")[1] if path.count("/") > 1 else "(top)"
        counts = kinds(Path(path).read_text())
        packages[package] = packages.get(package, Counter()) + counts
    columns = ("files", "lines", "code", "docstrings", "comments")
    print(f"{'package':16}" + "".join(f"{name:>11}" for name in columns))
    rows = sorted(packages.items(), key=lambda item: -item[1]["lines"])
    total = sum(packages.values(), Counter())
    for package, counts in [*rows, (f"{len(packages)}", total)]:
        print(f"{package:16}" + "".join(f"{counts[name]:11}" for name in columns))


if __name__ == "__main__":
    main()
