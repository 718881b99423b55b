"""Judges public packages: python -m conformance.judge [PACKAGE ...].

It runs the adapters of these packages, by default of all that are installed, and writes
what they do differently to `public.json` and to docs/conformance.md. Rows of packages
that are not installed stay: several environments fill the page one after another.
"""

import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance.adapters import (
    aggregators,
    authors,
    frameworks,
    methods,
    robust,
    rules,
    servers,
)
from conformance.adapters.entry import Entry, Package, found
from conformance.check import judge
from conformance.make import FOLDER

ROWS = Path(__file__).parent / "public.json"
PAGE = Path(__file__).parents[1] / "docs" / "conformance.md"
PACKAGES = (
    *rules.PACKAGES,
    *servers.PACKAGES,
    *aggregators.PACKAGES,
    *robust.PACKAGES,
    *methods.PACKAGES,
    *frameworks.PACKAGES,
    *authors.PACKAGES,
)
HEAD = """# What each code does differently

Several packages have a method of the same name. This table says what each release
computes, by the [test vectors](../conformance/README.md) of this library. "Departs"
is not "wrong": papers leave choices open, and a package may depart on purpose. A note
says what its documents state, and which line of the release departs. Where a release
contradicts its own documents or the paper that it cites, the note links to a
[reproduction](../conformance/findings/README.md). Errors are relative to a step.

Packages run as they are released, with these exceptions. Steps in half precision run in
float32, since their rounding hides effects of a few percent. muonium and dtensor-muon
run their own loops in place of kernels for GPUs. The constants 0.98 and 0.01 of the
script of FedMuon are replaced by the settings of the vectors. Where a package has the
server alone, clients are plain SGD.
[conformance/judge.py](../conformance/judge.py) writes this page from the packages that
are installed, and keeps the rows of the others.

| Package | Version | Method | Vectors | Verdict | Error | Note |
|---|---|---|---|---|---|---|
"""
TAIL = """
The vectors `muon` have Nesterov momentum, five steps with Jordan's coefficients, and
the scale sqrt(max(1, rows/cols)). The verdict on `muon_decay` is on the decay alone.
The same works for [a code of yours](../conformance/README.md).
"""
Row = dict[str, str]


def keys() -> dict[tuple[str, str, str], Entry]:
    """What there is to judge, in the order of the page."""
    return {
        (package.name, entry.what, name): entry
        for package in PACKAGES
        for entry in package.entries
        for name in entry.vectors.split()
    }


def verdict(entry: Entry, module, name: str) -> Row:
    spec = json.loads((FOLDER / f"{name}.json").read_text())
    report = judge(spec, functools.partial(entry.run, module=module))
    said = report["verdict"]
    if report["level"] is None and report["facts"]:
        said += f"; {report['facts'][0]}"
    error = "" if report["error"] is None else f"{report['error']:.1e}"
    return {"verdict": " ".join(said.split()), "error": error}


def judged(package: Package) -> list[Row]:
    """The rows of a package; none where it is missing, and its old rows stay."""
    there = found(package)
    if there is None:
        return []
    module, version = there
    if version != package.read:
        print(f"the notes on {package.name} are of {package.read}, this is {version}")
    rows = []
    for entry in package.entries:
        for name in entry.vectors.split():
            row = {"package": package.name, "version": version, "method": entry.what}
            rows.append(row | {"vectors": name} | verdict(entry, module, name))
            print(*rows[-1].values(), flush=True)
    return rows


def key(row: Row) -> tuple[str, str, str]:
    return row["package"], row["method"], row["vectors"]


def page_of(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        said = row["verdict"].replace("|", "\\|")
        note = "" if said.startswith("conforms") else keys()[key(row)].note
        what = f"`{row['method']}`", f"`{row['vectors']}`"
        cells = row["package"], row["version"], *what, said, row["error"], note
        lines.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(lines) + TAIL


def main(names: Sequence[str] = (), rows: Path = ROWS, page: Path = PAGE) -> None:
    packages = [p for p in PACKAGES if p.name in names or not names]
    if {*names} - {p.name for p in packages}:
        raise SystemExit(f"known are: {', '.join(p.name for p in PACKAGES)}")
    before = json.loads(rows.read_text()) if rows.exists() else []
    known = {key(row): row for row in before}
    known |= {key(row): row for package in packages for row in judged(package)}
    after = [known[k] for k in keys() if k in known]
    rows.write_text(json.dumps(after, indent=1) + "\n")
    page.write_text(page_of(after))


if __name__ == "__main__":
    main(sys.argv[1:])
