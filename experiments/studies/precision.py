"""FedMuon and Local Muon with Newton-Schulz in bfloat16, on tracks of the board.

    python -m experiments.studies.precision digits     # a minute on a core
    python -m experiments.studies.precision fashion --data-dir ~/data

Both types run with the options that the board has chosen, and with its seeds. A seed
has the same partition, initial parameters, cohorts and batches in both, so that
differences are paired.
"""

import json
from functools import partial
from pathlib import Path
from typing import Literal

import jax.numpy as jnp
import numpy as np

from benchmarks.machine import machine
from experiments.arguments import call
from experiments.board.lines import finals, lines_of
from experiments.board.protocol import Runs
from experiments.board.rows import ROWS
from experiments.board.tracks import TRACKS
from experiments.studies.tuned import read
from fedjax_muon.linalg.newton_schulz import orthogonalize
from fedjax_muon.linalg.products import has_fast_products
from fedjax_muon.runs.intervals import half_width

BOARD = Path("results/board")
METHODS = "fedmuon", "local_muon"
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def shown(values: np.ndarray) -> str:
    return f"{100 * values.mean():.2f} ± {100 * half_width(values):.2f}"


def table(kept: Path) -> list[str]:
    """The scores of all finished tracks, and the paired differences of types."""
    lines = [
        "| track | method | learning rate | float32 | bfloat16 | difference |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for path in sorted(kept.glob("*.jsonl")):
        rows = read(path)
        for method in METHODS:
            of = [row for row in rows if row["method"] == method]
            scores = {
                dtype: np.array([r["score"] for r in of if r["dtype"] == dtype])
                for dtype in DTYPES
            }
            single, half = scores.values()
            cells = [TRACKS[path.stem].title, ROWS[method].label]
            cells += [f"{of[0]['lr']:g}", *map(shown, (single, half, half - single))]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def main(
    track: Literal["digits", "fashion"],
    *,
    data_dir: Path | None = None,
    output: Path = Path("results/precision"),
) -> None:
    """Trains both methods in both types; writes runs, and a table of all tracks."""
    on, rows = TRACKS[track], []
    problem = on.problem(data_dir)
    for method in METHODS:
        values = finals(lines_of(BOARD / f"{track}.jsonl", method))[0]["hyper"]
        for name, dtype in DTYPES.items():
            polar = partial(orthogonalize, dtype=dtype)
            row = ROWS[method]
            typed = row._replace(method=partial(row.method, polar=polar))
            runs = Runs(method, typed, on, problem)
            for seed in runs.seeds:
                run = runs.final(values, seed)
                about = {"method": method, "dtype": name, "lr": values["lr"]}
                kept = ("seed", "score", "diverged")
                rows.append(about | {k: run[k] for k in kept})
                print(rows[-1], flush=True)
    output.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (output / f"{track}.jsonl").write_text(text)
    about = machine("experiments.studies.precision")
    has = has_fast_products(jnp.dtype("bfloat16"))
    how = "products in bfloat16" if has else "rounding to bfloat16"
    lines = [
        "# Newton-Schulz in bfloat16\n",
        "Test accuracy on tracks of the board, in percent: mean ± 95% interval over "
        f"{on.seeds} seeds. Differences are taken seed by seed. Parameters and "
        "momenta are float32. `python -m experiments.studies.precision digits`, and "
        f"`fashion`, with {how} on {about['cpu']}, jax {about['jax']}.\n",
        *table(output),
    ]
    output.with_suffix(".md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    call(main, __doc__)
