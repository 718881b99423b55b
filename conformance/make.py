"""Writes the vectors: python -m conformance.make [FOLDER].

A reference is a transcription of `tests/oracles`, or of `references.py` where there is
none. A departure is a change of it: another setting, other lines, other data.
So an axis is data, and the reference stays what the library is tested by. The vectors
have the reference whole, and sketches of all variants: every combination of the free
axes with at most two departures. A departure that cannot be seen is an error.
"""

import base64
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from conformance.check import VERSION, errors, sketch
from conformance.family import Family
from conformance.variants import VISIBLE, alone, sources, variant, variants

FOLDER = Path(__file__).parent / "vectors"


# -------------------------------------------------------------------------- the format
def packed(value, dtype="<f8") -> dict[str, Any]:
    value = np.ascontiguousarray(value, dtype)
    text = base64.b64encode(value.tobytes()).decode()
    return {"shape": list(value.shape), "dtype": dtype, "data": text}


def tree(value):
    """A structure of arrays as JSON can hold it."""
    if isinstance(value, dict):
        return {k: tree(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [tree(v) for v in value]
    return packed(value) if isinstance(value, np.ndarray) else value


def build(family: Family) -> dict[str, Any]:
    """The file of a family."""
    words = {axis: list(choices) for axis, choices in family.axes.items()}
    chained, start = family.kind != "aggregate", family.problem.start
    shapes, rows, seen = family.problem.shapes, [], set()
    values: list[np.ndarray] = []
    singles = alone(family)
    for row in variants(family):
        choices = {a: words[a][i] for a, i in zip(words, row, strict=True) if i}
        value = variant(family, choices)
        key = b"" if value is None else np.round(value, 7).tobytes()
        if choices in singles:
            if value is None or key in seen:
                raise ValueError(
                    f"{family.name}: {choices} is nothing, or seen already"
                )
            both = sketch(value, shapes), sketch(values[0][None], shapes)
            if errors(*both, sketch(start, shapes), chained)[0] < VISIBLE:
                raise ValueError(f"{family.name} does not show {choices}")
        if value is not None and key not in seen:
            seen.add(key)
            rows.append(row)
            values.append(value)
    return head(family) | {
        "axes": words,
        "variants": rows,
        "start": packed(start),
        "reference": packed(values[0]),
        "sources": [packed(v) for v in sources(family, values[0])],
        "sketches": packed(sketch(np.array(values), shapes), "<f4"),
    }


def head(family: Family) -> dict[str, Any]:
    """What a file says of its family."""
    return {
        "version": VERSION,
        "name": family.name,
        "kind": family.kind,
        "source": family.source,
        "formula": family.formula,
        "hyper": family.hyper,
        "free": list(family.free),
        "numbers": {**family.hyper, **family.problem.numbers},
        "shapes": {k: list(s) for k, s in family.problem.shapes.items()},
        "given": tree(dict(family.problem.given)),
        **({"cases": tree(family.problem.cases)} if family.kind == "aggregate" else {}),
    }


def text(spec: dict[str, Any]) -> str:
    """One line for every entry, so that a change shows where it is."""
    entries = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in spec.items())
    return "{\n" + ",\n".join(entries) + "\n}\n"


def families() -> dict[str, Callable[[], Family]]:
    """Every file whose variants are changes of a reference."""
    from conformance import (
        agents,
        aggregates,
        compositions,
        muons,
        optimizers,
        saddles,
        systems,
        votes,
    )
    from conformance.families import FAMILIES

    found = FAMILIES | muons.FAMILIES | aggregates.FAMILIES
    found |= saddles.FAMILIES | agents.FAMILIES | systems.FAMILIES
    found |= compositions.FAMILIES | optimizers.FAMILIES | votes.FAMILIES
    return found


def specs() -> dict[str, Callable[[], dict[str, Any]]]:
    """Every file of vectors, and what makes it."""
    from conformance.optimizers import TABLES

    made = {
        name: functools.partial(lambda f: build(f()), f)
        for name, f in families().items()
    }
    return made | TABLES


def main(folder: Path = FOLDER, only: tuple[str, ...] = ()) -> None:
    folder.mkdir(exist_ok=True)
    for name, make in specs().items():
        if only and name not in only:
            continue
        made = make()
        path = folder / f"{name}.json"
        path.write_text(text(made))
        size = path.stat().st_size / 1e3
        print(
            f"{name:28} {len(made['variants']):5} variants {size:6.0f} kB", flush=True
        )


if __name__ == "__main__":
    given = sys.argv[1:]
    main(Path(given[0]) if given else FOLDER, tuple(given[1:]))
