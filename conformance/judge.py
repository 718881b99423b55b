"""Judges public packages: python -m conformance.judge [PAGE].

It runs the adapters of all packages that are installed, and writes what they do
differently as a page, by default docs/conformance.md.
"""

import functools
import json
import sys
from importlib.metadata import version
from pathlib import Path

from conformance.adapters import public
from conformance.check import judge
from conformance.make import FOLDER

PAGE = Path(__file__).parents[1] / "docs" / "conformance.md"
HEAD = """# What each code does differently

Several packages have a method of the same name. This table says what each release
computes, by the [test vectors](../conformance/README.md) of this library. "Departs"
is not "wrong": papers leave choices open, and a package may depart on purpose. A note
marks what its documents state. "Coarse" means that the code rounds to bfloat16, so
that only effects of more than a few percent are seen. Errors are relative to a step.
[conformance/judge.py](../conformance/judge.py) writes this page from the packages
that are installed.

| Package | Version | Method | Vectors | Verdict | Error | Note |
|---|---|---|---|---|---|---|
"""
TAIL = """
The vectors `muon` have Nesterov momentum, five steps with Jordan's coefficients, and
the scale sqrt(max(1, rows/cols)). The verdict on `muon_decay` is on the decay alone.
The same works for [a code of yours](../conformance/README.md).
"""


def row(entry: public.Entry, module, name: str) -> str:
    spec = json.loads((FOLDER / f"{name}.json").read_text())
    report = judge(spec, functools.partial(entry.run, module=module))
    said = report["verdict"].replace("|", "\\|").replace("\n", " ")
    if report["level"] is None and report["facts"]:
        said += f"; {report['facts'][0]}"
    error = "" if report["error"] is None else f"{report['error']:.1e}"
    note = "" if report["conforms"] else entry.note
    cells = (entry.package, version(entry.package), f"`{entry.what}`", f"`{name}`")
    return f"| {' | '.join((*cells, said, error, note))} |"


def main(page: Path = PAGE) -> None:
    rows = []
    for entry in public.entries():
        module = public.found(entry)
        if module is None:
            print(f"{entry.package} is not installed: {entry.what} is left out")
            continue
        rows += [row(entry, module, name) for name in entry.vectors]
        print(*rows[-len(entry.vectors) :], sep="\n", flush=True)
    page.write_text(HEAD + "\n".join(rows) + "\n" + TAIL)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
