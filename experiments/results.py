"""Collects what was played into docs, and judges the papers' claims by it.

    python -m experiments.results runs docs

Copies result.md, .csv and .png of every runs/PAPER/ITEM-SCALE to docs/results/PAPER,
writes docs/results/README.md, and docs/claims.md from the tables that are then there
and those of the studies before. Claims without a table are named on the terminal and
left out.
"""

import csv
import shutil
from pathlib import Path
from typing import Annotated

import tyro

from experiments import fedmuon_001, fedmuon_003, fedmuon_004, minimax_000
from experiments.claims import (
    Claim,
    Found,
    above,
    below,
    cheaper,
    falling,
    first,
    highest,
    read,
    wider,
    within,
)
from fedjax_muon.cli.session import refusing

PAPERS = {
    "fedmuon_001": fedmuon_001.ITEMS,
    "fedmuon_003": fedmuon_003.ITEMS,
    "fedmuon_004": fedmuon_004.ITEMS,
    "minimax_000": minimax_000.ITEMS,
}
SUFFIXES = (".md", ".csv", ".png")
FASHION, CIFAR, CIFAR100 = "fashion_mnist, lenet", "cifar10_subset, lenet", "lenet"
MUON, LOCAL, AVERAGE = "FedMuon(alignment)", "Local Muon", "FedAvg"
CORRECT, PERSISTENT = "FedMuon(bias correction)", "LocalMuon(persistent)"
HARD = f"{CIFAR100}, Dirichlet(0.1)"
FOUR, SIXTEEN = (f"{CIFAR}, {steps} steps, i.i.d." for steps in (4, 16))
AUC = "sst2, {} steps, {}"
ABLATION = "what it consists of is needed: {} is worse than FedMuon"
CLAIMS = (
    Claim(
        "Liu et al.",
        "FedMuon is above Local Muon, and that above FedAvg, under Dirichlet(0.1)",
        "73.05, 66.71, 60.25 (ResNet-18); 48.18, 40.53, 27.14 (ViT-Tiny)",
        "results/fedmuon_004/table_2",
        falling(HARD, MUON, LOCAL, AVERAGE),
    ),
    Claim(
        "Liu et al.",
        "the same under Dirichlet(0.6)",
        "74.12, 71.66, 64.08 (ResNet-18); 50.22, 46.69, 32.36 (ViT-Tiny)",
        "results/fedmuon_004/table_2",
        falling(f"{CIFAR100}, Dirichlet(0.6)", MUON, LOCAL, AVERAGE),
    ),
    Claim(
        "Liu et al.",
        "FedMuon is first of seven methods under Dirichlet(0.1)",
        "73.05; next FedCM 66.73 (ResNet-18)",
        "results/fedmuon_004/table_2",
        first(HARD, MUON),
    ),
    Claim(
        "Liu et al.",
        "FedMuon is first of seven methods under Dirichlet(0.6)",
        "74.12; next Local Muon 71.66 (ResNet-18)",
        "results/fedmuon_004/table_2",
        first(f"{CIFAR100}, Dirichlet(0.6)", MUON),
    ),
    Claim(
        "Liu et al.",
        ABLATION.format("without averaged momenta it"),
        "73.05 and 69.12 (ResNet-18)",
        "results/fedmuon_004/table_5",
        falling(HARD, MUON, "FedMuon(alignment, own momentum)"),
    ),
    Claim(
        "Liu et al.",
        ABLATION.format("without alignment it"),
        "73.05 and 68.05 (ResNet-18)",
        "results/fedmuon_004/table_5",
        falling(HARD, MUON, "Local Muon(averaged momentum)"),
    ),
    Claim(
        "Liu et al.",
        ABLATION.format("with AdamW or SGD in place of Muon it"),
        "73.05; 64.25 and 66.28 (ResNet-18)",
        "results/fedmuon_004/table_5",
        first(HARD, MUON),
    ),
    Claim(
        "Liu et al.",
        "the best weight of alignment is 0.5",
        "68.05, 69.89, 73.01, 72.12, 67.56 at 0, 0.25, 0.5, 0.75, 0.9 (ResNet-18)",
        "results/fedmuon_004/table_6",
        highest(HARD, f"{MUON}, align", 0.0, 0.25, 0.5, 0.75, 0.9, at=0.5),
    ),
    Claim(
        "Liu et al.",
        "the best momentum is 0.98",
        "68.22, 70.56, 71.23, 73.01, 72.66 at 0.8, 0.9, 0.95, 0.98, 0.99 (ResNet-18)",
        "results/fedmuon_004/table_6",
        highest(HARD, f"{MUON}, momentum", 0.8, 0.9, 0.95, 0.98, 0.99, at=0.98),
    ),
    Claim(
        "Liu et al.",
        "truncated by SVD, momenta lose at most a point (1.05 of FedAvg's upload)",
        "73.05 and 72.56 (ResNet-18)",
        "results/fedmuon_004/table_7",
        within(HARD, "FedMuon(SVD)", MUON, 1.0),
    ),
    Claim(
        "Liu et al.",
        "averaged momenta double the upload, truncated by SVD they add 5 % to it",
        "2 and 1.05 times that without",
        "results/fedmuon_004/table_7",
        cheaper(
            HARD,
            {MUON: 2.0, "FedMuon(SVD)": 1.05},
            than="FedMuon(alignment, own momentum)",
        ),
    ),
    Claim(
        "Liu et al.",
        "matrices are better conditioned under Muon than under SGD and AdamW",
        "a bar chart (ViT-Tiny)",
        "results/fedmuon_004/figure_4",
        below("condition number of the weights", LOCAL, AVERAGE, "Local AdamW"),
    ),
    Claim(
        "Liu et al.",
        "Muon's state takes less memory than AdamW's",
        "a bar chart (ViT-Tiny)",
        "results/fedmuon_004/figure_4",
        below("kB of a local optimizer's state", LOCAL, "Local AdamW"),
    ),
    Claim(
        "Takezawa et al.",
        "LocalMuon fails under Dirichlet(0.1), and FedMuon does not",
        "curves",
        "results/fedmuon_001/figure_1",
        falling(f"{FASHION}, Dirichlet(0.1)", CORRECT, PERSISTENT),
    ),
    Claim(
        "Takezawa et al.",
        "FedMuon is first of six methods under Dirichlet(0.1)",
        "curves",
        "results/fedmuon_001/figure_1",
        first(f"{FASHION}, Dirichlet(0.1)", CORRECT),
    ),
    Claim(
        "Takezawa et al.",
        "FedMuon is first of six methods under Dirichlet(10)",
        "curves",
        "results/fedmuon_001/figure_1",
        first(f"{FASHION}, Dirichlet(10)", CORRECT),
    ),
    Claim(
        "Takezawa et al.",
        "one step of Newton-Schulz is much better than none, under Dirichlet(0.1)",
        "curves",
        "results/fedmuon_001/figure_2",
        falling(f"{FASHION}, Dirichlet(0.1)", "T = 1", "T = 0"),
    ),
    Claim(
        "Takezawa et al.",
        "two steps are best under Dirichlet(0.1)",
        "curves",
        "results/fedmuon_001/figure_2",
        first(f"{FASHION}, Dirichlet(0.1)", "T = 2"),
    ),
    Claim(
        "Takezawa et al.",
        "four steps are best under Dirichlet(10)",
        "curves",
        "results/fedmuon_001/figure_2",
        first(f"{FASHION}, Dirichlet(10)", "T = 4"),
    ),
    Claim(
        "Zhang and Gao, Muon",
        "FedMuon is first of twelve methods with 4 local steps",
        "curves",
        "results/fedmuon_003/figure_1",
        first(FOUR, "FedMuon"),
    ),
    Claim(
        "Zhang and Gao, Muon",
        "FedMuon is first of twelve methods with 16 local steps",
        "curves",
        "results/fedmuon_003/figure_5",
        first(SIXTEEN, "FedMuon"),
    ),
    Claim(
        "Zhang and Gao, Muon",
        "its distance from the next grows from 4 to 16 local steps",
        "curves",
        "results/fedmuon_003/figure_1 results/fedmuon_003/figure_5",
        wider((FOUR, SIXTEEN), "FedMuon"),
    ),
    Claim(
        "Zhang and Gao, minimax",
        "FedMuon-DA is first with 4 local steps, one in ten positive",
        "curves",
        "results/minimax_000/figure_1",
        first(AUC.format(4, "one in ten positive"), "FedMuon-DA"),
    ),
    Claim(
        "Zhang and Gao, minimax",
        "FedMuon-DA is first with 16 local steps, one in ten positive",
        "curves",
        "results/minimax_000/figure_2",
        first(AUC.format(16, "one in ten positive"), "FedMuon-DA"),
    ),
    Claim(
        "Zhang and Gao, minimax",
        "FedMuon-DA is first with 4 local steps and unequal shares of positives",
        "curves",
        "results/minimax_000/figure_3",
        first(AUC.format(4, "unequal shares"), "FedMuon-DA"),
    ),
    Claim(
        "DPMixSGD",
        "above DP-SGDA at the printed noise: robust logistic regression on a8a",
        "80.9, 73.8 with 5 agents; 74.6, 73.0 with 20",
        "dpmixsgd/table_2_agents",
        above(["a8a, agents 5", "a8a, agents 20"], "dpmixsgd", "dp_sgda"),
    ),
    Claim(
        "DPMixSGD",
        "above DP-SGDA at the printed noise: an MLP on Fashion-MNIST",
        "93.1, 77.5 with 5 agents; 93.2, 55.1 with 20",
        "dpmixsgd/table_4",
        above(
            ["fashion_mnist, agents 5", "fashion_mnist, agents 20"],
            "dpmixsgd",
            "dp_sgda",
        ),
    ),
    Claim(
        "DPMixSGD",
        "at most a point below DM-HSGD, which has no noise: an MLP on Fashion-MNIST",
        "93.1 and 93.5 with 5 agents",
        "dpmixsgd/table_4",
        within("fashion_mnist, agents 5", "dpmixsgd", "dm_hsgd", 1.0),
    ),
    Claim(
        "DPMixSGD",
        "above DP-SGDA at equal privacy, clipped: robust logistic regression on a9a",
        "not printed; the paper compares unequal noise",
        "dpmixsgd/equal",
        above(["a9a, epsilon 1", "a9a, epsilon 8"], "dpmixsgd", "dp_sgda"),
    ),
    Claim(
        "DPMixSGD",
        "above DP-SGDA at equal privacy, clipped: an MLP on Fashion-MNIST",
        "not printed; the paper compares unequal noise",
        "dpmixsgd/equal",
        above(
            ["fashion_mnist, epsilon 1", "fashion_mnist, epsilon 8"],
            "dpmixsgd",
            "dp_sgda",
        ),
    ),
)
HEAD = """# What the papers claim, and what we found

Written by `python -m experiments.results` from the tables of
[results](results/README.md) and of [theory](theory/theory.md); a claim without a run is
not here. Reproduced: every difference that the claim needs is there, and larger than
half the width of its 95 % interval over seeds; within the noise: not larger.
Differences are taken seed by seed; what stands beside a score is its own interval. Runs
on a CPU are smaller than the papers' (each table says how), so that "not reproduced" is
about the sizes played.

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


def collect(runs: Path, docs: Path) -> None:
    """Copies the reports. Raises `ValueError` if two are of one item."""
    taken: dict[Path, Path] = {}
    for report in sorted(runs.glob("*/*-*/result.md")):
        item = report.parent.name.rpartition("-")[0]
        place = docs / "results" / report.parent.parent.name / item
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


def index(docs: Path) -> str:
    """The list of everything collected."""
    lines = [
        "# Results",
        "",
        "Tables and figures of the papers, as played here; written by `python -m "
        "experiments.results`. The commands that made each are at its end.",
        "",
    ]
    for report in sorted((docs / "results").glob("*/*.md")):
        title = report.read_text().splitlines()[0].removeprefix("# ")
        where = report.relative_to(docs / "results").as_posix()
        lines.append(f"- [{title}]({where})")
    lines += ["", "Not played yet, by `python -m experiments.PAPER ITEM`:", ""]
    for paper, items in PAPERS.items():
        left = [i for i in items if not (docs / f"results/{paper}/{i}.md").exists()]
        if left:
            lines.append(f"- {paper}: {', '.join(left)}")
    return "\n".join(lines) + "\n"


def judged(docs: Path) -> list[tuple[Claim, Found]]:
    """The claims that have a run, and what was found; the others are printed."""
    found = []
    for claim in CLAIMS:
        paths = [docs / f"{name}.csv" for name in claim.table.split()]
        missing = [path for path in paths if not path.exists()]
        if missing:
            print(f"no run: {claim.claim} ({missing[0]})")
            continue
        scores = {key: s for path in paths for key, s in read(path).items()}
        found.append((claim, claim.judge(scores)))
    return found


def page(docs: Path) -> str:
    """docs/claims.md."""
    text = HEAD
    for claim, (ours, verdict) in judged(docs):
        links = ", ".join(
            f"[{name.rpartition('/')[2]}]({name}.md)" for name in claim.table.split()
        )
        cells = (claim.paper, claim.claim, claim.printed, ours, verdict, links)
        text += f"| {' | '.join(cells)} |\n"
    theory = docs / "theory" / "theory.csv"
    if theory.exists():
        with theory.open(newline="") as file:
            verdicts = {line["claim"]: line["verdict"] for line in csv.DictReader(file)}
        text += THEORY
        for claim, verdict in verdicts.items():
            text += f"| {claim.replace('|', chr(92) + '|')} | {verdict} |\n"
    return text


def main(
    runs: Annotated[Path, tyro.conf.Positional] = Path("runs"),
    docs: Annotated[Path, tyro.conf.Positional] = Path("docs"),
) -> None:
    """Collects results and judges claims.

    Args:
      runs: where the papers' modules have written.
      docs: where the pages go.
    """
    with refusing():
        collect(runs, docs)
        (docs / "results").mkdir(parents=True, exist_ok=True)
        (docs / "results" / "README.md").write_text(index(docs))
        (docs / "claims.md").write_text(page(docs))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
