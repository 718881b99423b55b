"""Collection of the papers' tables and figures, and verdicts on the papers' claims.

    python -m experiments.papers.results runs results

Copies result.md, .csv, .json and .png of every runs/PAPER/ITEM-SCALE to
results/papers/PAPER, and writes the index results/papers/README.md. It also writes
results/claims.md from all tables in results. Claims without a table are printed and
left out.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from experiments.arguments import call
from experiments.papers import fedmuon_001, fedmuon_003, fedmuon_004, minimax_000
from experiments.papers.claims import NO, OPEN, YES, Claim, Found, read
from experiments.papers.paper_claims import CLAIMS
from fedjax_muon.cli.main import ending

PAPERS = {
    "fedmuon_001": fedmuon_001.ITEMS,
    "fedmuon_003": fedmuon_003.ITEMS,
    "fedmuon_004": fedmuon_004.ITEMS,
    "minimax_000": minimax_000.ITEMS,
}
DERIVED = "not in the paper"  # said in theory.md of a claim that is derived here
SUFFIXES = (".md", ".csv", ".json", ".png")
HEAD = """# The papers' claims and our results

`python -m experiments.papers.results` writes this page from the tables of
[papers](papers/README.md) and of [theory](theory/theory.md). Claims without a run are
left out.

A claim needs differences that are positive, each with its 95% interval over seeds.
Differences are taken seed by seed; the interval of a score is that of the score itself.

- **reproduced**: all intervals are above 0.
- **contradicted**: an interval is below 0.
- **undecided**: neither, or the best rate of a compared method is at an edge of its
  grid, or a compared method diverged.

Intervals come from few seeds, and are not widened for the number of differences. No
comparison of two methods in a setting counts for two claims. Runs on a CPU are smaller
than the papers' (each table says how), so a verdict is a statement about these sizes.
Known effects of the size are in parentheses.

## Experiments

"""
OWN = """
## Experiments that are not in the papers

"""
COLUMNS = """| paper | claim | printed | ours | verdict | run |
|---|---|---|---|---|---|
"""
THEORY = """
## Theorems

These were measured on matrix quadratics with a known solution; the criteria and the
numbers are [on another page](theory/theory.md). A bound O(.) is about large T or R. A
slope that is measured at finite T and as steep as the bound agrees with it, and a
shallower one is undecided: it does not refute the bound. Claims marked as derived here
are our consequences of a theorem, and the paper does not state them.

| claim | source | verdict |
|---|---|---|
"""


def collect(runs: Path, results: Path) -> None:
    """Copies the reports.

    Raises:
      ValueError: If two reports are of one item.
    """
    copied: dict[Path, Path] = {}
    for report in sorted(runs.glob("*/*-*/result.md")):
        item = report.parent.name.rpartition("-")[0]
        target = results / "papers" / report.parent.parent.name / item
        if target in copied:
            raise ValueError(
                f"{report.parent} and {copied[target]} are both of {target.name}; "
                "leave one out"
            )
        copied[target] = report.parent
        target.parent.mkdir(parents=True, exist_ok=True)
        for suffix in SUFFIXES:
            written = report.with_suffix(suffix)
            if written.exists():  # curves, .json, are of comparisons alone
                shutil.copy(written, target.with_suffix(suffix))
        text = target.with_suffix(".md").read_text()
        text = text.replace("(result.png)", f"({target.name}.png)")
        target.with_suffix(".md").write_text(text)


def index(results: Path) -> str:
    """Returns the index of all collected reports, in Markdown."""
    lines = [
        "# Results",
        "",
        "Our versions of the papers' tables and figures; `python -m "
        "experiments.papers.results` writes this list. The commands of each are at its "
        "end.",
        "",
    ]
    for report in sorted((results / "papers").glob("*/*.md")):
        title = report.read_text().splitlines()[0].removeprefix("# ")
        where = report.relative_to(results / "papers").as_posix()
        lines.append(f"- [{title}]({where})")
    lines += ["", "Not run yet:", ""]
    for paper, items in PAPERS.items():
        left = [i for i in items if not (results / f"papers/{paper}/{i}.md").exists()]
        if left:
            lines.append(f"- {paper}: {', '.join(left)}")
    return "\n".join(lines) + "\n"


def judged(results: Path) -> list[tuple[Claim, Found]]:
    """Returns the claims with a run, each with its result; prints the others."""
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
    """Returns the text of results/claims.md."""
    found = judged(results)
    printed = [one for one in found if one[0].in_paper]
    ours = [one for one in found if not one[0].in_paper]
    text = HEAD + counted([result.verdict for _, result in printed]) + rows(printed)
    if ours:
        text += OWN + rows(ours)
    theory = results / "theory" / "theory.md"
    if theory.exists():
        lines = [line[2:-2].split(" | ") for line in theory.read_text().splitlines()]
        _, _, *findings = [cells for cells in lines if len(cells) == 6]
        text += THEORY
        for _, claim, source, *_, verdict in findings:
            whose = "derived here" if DERIVED in source else "the paper"
            text += f"| {claim} | {whose} | {verdict} |\n"
    return text


def counted(verdicts: Sequence[str]) -> str:
    """Returns the number of claims with each verdict, in words."""
    each = ", ".join(f"{verdicts.count(one)} {one}" for one in (YES, NO, OPEN))
    return f"Of {len(verdicts)} claims: {each}.\n\n"


def rows(found: Sequence[tuple[Claim, Found]]) -> str:
    """Returns the table of some claims, in Markdown."""
    text = COLUMNS
    for claim, result in found:
        links = ", ".join(
            f"[{name.rpartition('/')[2]}]({name}.md)" for name in claim.table.split()
        )
        why = "; ".join(filter(None, (result.why, claim.size)))
        verdict = f"**{result.verdict}**" + (f" ({why})" if why else "")
        cells = (claim.paper, claim.claim, claim.printed, result.ours, verdict, links)
        text += f"| {' | '.join(cells)} |\n"
    return text


def main(runs: Path = Path("runs"), results: Path = Path("results"), /) -> None:
    """Collects results and judges claims.

    Args:
      runs: Directory that the papers' modules have written to.
      results: Directory for tables, figures and claims.md.
    """
    with ending():
        collect(runs, results)
        (results / "papers").mkdir(parents=True, exist_ok=True)
        (results / "papers" / "README.md").write_text(index(results))
        (results / "claims.md").write_text(page(results))


if __name__ == "__main__":
    call(main, __doc__)
