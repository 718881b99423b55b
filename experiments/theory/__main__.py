"""Measurements of the papers' theorems on matrix quadratics.

    python -m experiments.theory                          # all; minutes on 2 cores
    python -m experiments.theory --only stall consensus

Writes theory.md, and the figure of `stall` with its numbers.
"""

import time
from pathlib import Path
from typing import Literal, get_args

from benchmarks.machine import machine
from experiments import kept
from experiments.arguments import call
from experiments.theory import consensus, heavy_tails, newton_schulz, speedup, stall
from experiments.theory.frame import Entry, markdown

Name = Literal["stall", "newton_schulz", "consensus", "speedup", "heavy_tails"]
STUDIES = {
    "stall": stall.study,
    "newton_schulz": newton_schulz.study,
    "consensus": consensus.study,
    "speedup": speedup.study,
    "heavy_tails": heavy_tails.study,
}


def main(output: Path = Path("runs/theory"), only: tuple[Name, ...] = ()) -> None:
    """Runs the studies and writes their findings.

    Args:
      output: Directory of the results; it may be new.
      only: Studies to run; all by default.
    """
    output.mkdir(parents=True, exist_ok=True)
    entries = []
    for name in only or get_args(Name):
        begin = time.perf_counter()
        found = STUDIES[name]()
        if isinstance(found, tuple):  # with the numbers of a figure
            found, drawn = found
            kept.write(output / "stall.json", drawn)
            stall.draw(kept.read(output / "stall.json"), output / "stall.png")
        entries.append(Entry(name, found, time.perf_counter() - begin))
        for finding in found:
            print(f"{name}: {finding.claim}: {finding.measured}: {finding.verdict}")
    about = machine("experiments.theory")
    (output / "theory.md").write_text(markdown(entries, about))


if __name__ == "__main__":
    call(main, __doc__)
