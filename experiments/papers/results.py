"""Collects the papers' tables and figures, and judges the papers' claims by them.

    python -m experiments.papers.results runs results

Copies result.md, .csv and .png of every runs/PAPER/ITEM-SCALE to results/papers/PAPER,
writes results/papers/README.md, and results/claims.md from the tables that are then
there and those of the studies before. Claims without a table are named on the terminal
and left out.
"""

import csv
import shutil
from pathlib import Path
from typing import Annotated

import tyro

from experiments.papers import fedmuon_001, fedmuon_003, fedmuon_004, minimax_000
from experiments.papers.claims import Claim, Found, read
from experiments.papers.paper_claims import CLAIMS
from fedjax_muon.runs.errors import refusing

PAPERS = {
    "fedmuon_001": fedmuon_001.ITEMS,
    "fedmuon_003": fedmuon_003.ITEMS,
    "fedmuon_004": fedmuon_004.ITEMS,
    "minimax_000": minimax_000.ITEMS,
}
SUFFIXES = (".md", ".csv", ".png")
HEAD = """# What the papers claim, and what we found

Written by `python -m experiments.papers.results` from the tables of
[papers](papers/README.md) and of [theory](theory/theory.md); a claim without a run is
not here. Reproduced: every difference that the claim needs is there, and larger than
half the width of its 95 % interval over seeds; within the noise: not larger.
Differences are taken seed by seed; what stands beside a score is its own interval. Runs
on a CPU are smaller than the papers' (each table says how), so that "not reproduced" is
about the sizes that ran.

## Experiments

| paper | claim | printed | ours | verdict | run |
|---|---|---|---|---|---|
"""
THEORY = """
## Theorems

On matrix quadratics whose solution is known; [theory](theory/theory.md) has the
criteria and the numbers.

| claim | verdict |
|---|---|
"""


def collect(runs: Path, results: Path) -> None:
    """Copies the reports. Raises `ValueError` if two are of one item."""
    taken: dict[Path, Path] = {}
    for report in sorted(runs.glob("*/*-*/result.md")):
        item = report.parent.name.rpartition("-")[0]
        place = results / "papers" / report.parent.parent.name / item
        if place in taken:
            raise ValueError(
                f"{report.parent} and {taken[place]} are both of {place.name}; leave "
                "one out"
            )
        taken[place] = report.parent
        place.parent.mkdir(parents=True, exist_ok=True)
        for suffix in SUFFIXES:
            shutil.copy(report.with_suffix(suffix), place.with_suffix(suffix))
        text = place.with_suffix(".md").read_text()
        text = text.replace("(result.png)", f"({place.name}.png)")
        place.with_suffix(".md").write_text(text)


def index(results: Path) -> str:
    """The list of everything collected."""
    lines = [
        "# Results",
        "",
        "Tables and figures of the papers, as reproduced here; written by `python -m "
        "experiments.papers.results`. The commands that made each are at its end.",
        "",
    ]
    for report in sorted((results / "papers").glob("*/*.md")):
        title = report.read_text().splitlines()[0].removeprefix("# ")
        where = report.relative_to(results / "papers").as_posix()
        lines.append(f"- [{title}]({where})")
    lines += ["", "Not run yet, of what the modules of the papers have:", ""]
    for paper, items in PAPERS.items():
        left = [i for i in items if not (results / f"papers/{paper}/{i}.md").exists()]
        if left:
            lines.append(f"- {paper}: {', '.join(left)}")
    return "\n".join(lines) + "\n"


def judged(results: Path) -> list[tuple[Claim, Found]]:
    """The claims that have a run, and what was found; the others are printed."""
    found = []
    for claim in CLAIMS:
        paths = [results / f"{name}.csv" for name in claim.table.split()]
        missing = [path for path in paths if not path.exists()]
        if missing:
            print(f"no run: {claim.claim} ({missing[0]})")
            continue
        scores = {key: s for path in paths for key, s in read(path).items()}
        try:
            found.append((claim, claim.judge(scores)))
        except KeyError as absent:  # a panel that has not run yet
            print(f"no run: {claim.claim} ({absent})")
    return found


def page(results: Path) -> str:
    """results/claims.md."""
    text = HEAD
    for claim, (ours, verdict) in judged(results):
        links = ", ".join(
            f"[{name.rpartition('/')[2]}]({name}.md)" for name in claim.table.split()
        )
        cells = (claim.paper, claim.claim, claim.printed, ours, verdict, links)
        text += f"| {' | '.join(cells)} |\n"
    theory = results / "theory" / "theory.csv"
    if theory.exists():
        with theory.open(newline="") as file:
            verdicts = {line["claim"]: line["verdict"] for line in csv.DictReader(file)}
        text += THEORY
        for claim, verdict in verdicts.items():
            text += f"| {claim.replace('|', chr(92) + '|')} | {verdict} |\n"
    return text


def main(
    runs: Annotated[Path, tyro.conf.Positional] = Path("runs"),
    results: Annotated[Path, tyro.conf.Positional] = Path("results"),
) -> None:
    """Collects results and judges claims.

    Args:
      runs: where the papers' modules have written.
      results: where tables, figures and claims.md go.
    """
    with refusing():
        collect(runs, results)
        (results / "papers").mkdir(parents=True, exist_ok=True)
        (results / "papers" / "README.md").write_text(index(results))
        (results / "claims.md").write_text(page(results))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
