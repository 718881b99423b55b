# SPDX-License-Identifier: MIT
# Copyright 2026 the fedjax_muon authors. The license is in conformance/LICENSE; it covers
# this file and the vectors, which may be copied into any project.
"""Checks code of Muon or of a federated method against test vectors.

One file, NumPy only. An implementation is a generator, or a function that returns a
list. It gets a `Task` and gives one dictionary of arrays for every step:

    rule       the parameters after every given gradient         (optimizers)
    rounds     the server's parameters after every round         (whole methods)
    aggregate  one dictionary, not a list; called for every case (servers, robust rules)

    def fedavg(task):                     # in mine.py, named as vectors/fedavg.json
        x = task.x0                       # {"w": [6, 4], "b": [6]}
        for cohort in task.cohorts:       # numbers of clients
            x = average(task, [train(task, i, x) for i in cohort])
            yield x

    python check.py mine.py

An .npz file, named as the vectors, is a stored run with the arrays w.0, b.0, w.1, ...
The exit status is 1 if something does not conform. `--json FILE` writes all verdicts.
"""

import argparse
import base64
import importlib.util
import json
import pathlib
import sys

import numpy as np

VERSION = 1
LEVELS = {"float64": 1e-8, "float32": 2e-4, "bfloat16": 8e-2}
SKETCH = 4  # numbers that stand for an array after one step of a variant


def arrays(node):
    """JSON with base64 arrays, decoded all the way down."""
    if isinstance(node, dict) and "dtype" in node:
        flat = np.frombuffer(base64.b64decode(node["data"]), node["dtype"])
        return flat.reshape(node["shape"]).astype(np.float64)
    if isinstance(node, dict):
        return {key: arrays(value) for key, value in node.items()}
    return [*map(arrays, node)] if isinstance(node, list) else node


def parts(values, shapes):
    """Vectors [..., n] as one array for each of the shapes."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    return np.split(values, ends[:-1], axis=-1)


def sketch(values, shapes):
    """Fixed random projections of every array: [..., arrays, SKETCH]."""
    found = []
    for part in parts(values, shapes):
        n = part.shape[-1]  # RandomState never changes
        matrix = np.random.RandomState(n).standard_normal((n, SKETCH))  # noqa: NPY002
        found.append(part @ matrix / SKETCH**0.5)
    return np.stack(found, axis=-2)


def errors(mine, values, start, chained):
    """The largest error of every variant over steps and arrays.

    Arguments are lists of arrays [steps, n], [variants, steps, n] and [n]. An error is
    relative to the variant's own step of this array, or a thousandth of the whole step.
    """
    moved, apart = [], []
    for a, b, first in zip(mine, values, start, strict=True):
        last = np.broadcast_to(first, b[:, :1].shape)
        last = np.concatenate([last, b[:, :-1]], axis=1) if chained else last
        moved.append(np.linalg.norm(b - last, axis=2))
        apart.append(np.linalg.norm(a - b, axis=2))
    least = np.maximum(1e-3 * np.linalg.norm(moved, axis=0), 1e-12)
    return (np.array(apart) / np.maximum(moved, least)).max((0, 2))


class Task:
    """What an implementation is given; its attributes depend on the kind of vectors.

    All: hyper (settings by name). rule: x0 and gradients (a list of dictionaries).
    aggregate: messages, weights, and what else the formula names. rounds: x0, cohorts,
    steps (K), sizes (of all clients), and data[i] = (X, Y). The loss of client i is the
    mean over all entries of (X w' + b - Y)**2, as of ``nn.Linear`` and ``nn.MSELoss``. A
    step uses all examples of the client. w is [outputs, inputs].
    """

    def __init__(self, spec, case=()):
        vars(self).update(
            arrays(spec["given"]), hyper=dict(spec["hyper"]), **dict(case)
        )

    def grad(self, i, x):
        """The gradient of client i's loss at x, with NumPy."""
        X, Y = self.data[i]
        error = 2 / Y.size * (X @ x["w"].T + x["b"] - Y)
        return {"w": error.T @ X, "b": error.sum(0)}

    def loss(self, i, x):
        """Client i's loss in operators only, for whatever framework owns x."""
        X, Y = self.data[i]
        return ((X @ x["w"].T + x["b"] - Y) ** 2).mean()


# ------------------------------------------------------------- running implementations
def flat(given, shapes):
    """One result as a vector; raises ValueError with what is wrong with it."""
    if not isinstance(given, dict):
        raise ValueError(f"gave {type(given).__name__}, not a dictionary of arrays")
    if {*given} != {*shapes}:
        raise ValueError(f"gave {sorted(map(str, given))}, not {sorted(shapes)}")
    parts = []
    for name, shape in shapes.items():
        value = given[name]
        if hasattr(value, "detach"):  # a tensor of PyTorch
            value = value.detach().cpu().double()
        value = np.asarray(value)
        if value.dtype.kind in "bcOSUMm":
            raise ValueError(f"{name} has the type {value.dtype}, not real numbers")
        if list(value.shape) != shape:
            raise ValueError(f"{name} has the shape {list(value.shape)}, not {shape}")
        parts.append(np.array(value, np.float64).ravel())
        if not np.isfinite(parts[-1]).all():
            raise ValueError(f"{name} has NaN or infinities")
    return np.concatenate(parts)


def steps_of(spec, implementation):
    """Functions that give the results one after the other."""
    if spec["kind"] == "aggregate":
        cases = arrays(spec["cases"])
        return [lambda c=c: implementation(Task(spec, c)) for c in cases]
    made, count = [], spec["reference"]["shape"][0]

    def following():
        if not made:
            made.append(implementation(Task(spec)))
            if made[0] is None:
                raise ValueError("gave nothing")
            made[0] = iter(made[0])
        return next(made[0])

    return [following] * count


def run(spec, implementation):
    """The indices of usable results, these as an array, and what went wrong."""
    rows, results, wrong, word = [], [], [], "case"
    if spec["kind"] != "aggregate":
        word = {"rounds": "round", "rule": "step"}[spec["kind"]]
    steps = steps_of(spec, implementation)
    for number, step in enumerate(steps, 1):
        try:
            results.append(flat(step(), spec["shapes"]))
            rows.append(number - 1)
        except StopIteration:
            wrong.append(f"{word} {number}: gave nothing, {len(steps)} are expected")
        except Exception as error:  # the report is the place for it
            wrong.append(f"{word} {number}: {type(error).__name__}: {error}")
        if wrong and word != "case":
            break
    return rows, np.array(results), wrong


def judge(spec, implementation, free=()):
    """The verdict on one implementation: a dictionary that JSON can hold."""
    report = {"vectors": spec.get("name"), "version": VERSION, "conforms": False}
    report |= {
        "verdict": "",
        "departures": {},
        "choices": {},
        "error": None,
        "facts": [],
    }
    if spec.get("version") != VERSION:
        said = f"refused: vectors of version {spec.get('version')}, this file reads {VERSION}"
        return report | {"verdict": said}
    rows, mine, wrong = run(spec, implementation)
    report["facts"] += wrong
    if rows:
        by = _by_table if "table" in spec else _by_variants
        by(spec, rows, mine, report, {*spec["free"], *free})
    if wrong:
        seen = f"; before: {report['verdict']}" if rows else ""
        report |= {"verdict": f"FAILS at {wrong[0]}{seen}", "conforms": False}
    return report


# ------------------------------------------------------------------ naming departures
def _names(spec):
    """The variants' choices: all axes but those with their first value."""
    axes = spec["axes"].items()
    return [
        {axis: values[i] for (axis, values), i in zip(axes, row, strict=True) if i}
        for row in spec["variants"]
    ]


def _decide(errors, names, free, report, extra=None):
    """Fills in the verdict from the variants that fit; returns the index chosen."""
    best = int(np.argmin(errors))
    level = next((k for k, most in LEVELS.items() if errors[best] <= most), None)
    report |= {"error": float(errors[best]), "level": level}
    if level is None:
        return best
    extra = extra or (lambda j: {})
    departs = lambda j: {
        a: v for a, v in (names[j] | extra(j)).items() if a not in free
    }
    bound = 2 * errors[best] if level == "bfloat16" else LEVELS[level]
    same = [int(j) for j in np.flatnonzero(errors <= bound)]
    same.sort(key=lambda j: (len(departs(j)), len(names[j]), errors[j]))
    chosen = same[0]
    report["departures"] = departs(chosen)
    report["choices"] = {a: v for a, v in names[chosen].items() if a in free}
    for j in same[1:]:
        if len(departs(j)) == len(departs(chosen)) and departs(j) != departs(chosen):
            report["facts"].append(f"cannot be told from: {words(departs(j))}")
    report["verdict"] = f"DEPARTS: {words(departs(chosen))}"
    if not departs(chosen):
        report |= {"verdict": "conforms", "conforms": True}
    if level == "bfloat16":
        report |= {"conforms": False, "verdict": f"COARSE: {report['verdict']}, maybe"}
        report["facts"].append(
            "agrees to a few percent only, which hides mistakes: repeat it in float32 "
            "(in PyTorch, torch.Tensor.bfloat16 = torch.Tensor.float)"
        )
    return chosen


def _by_variants(spec, rows, mine, report, free):
    want, start, shapes = (
        arrays(spec["reference"]),
        arrays(spec["start"]),
        spec["shapes"],
    )
    chained, names = spec["kind"] != "aggregate", _names(spec)
    by_array = lambda v: list(np.moveaxis(v, -2, 0))
    kept, begin = arrays(spec["sketches"])[:, rows], sketch(start, shapes)
    found = by_array(sketch(mine, shapes))
    errs = errors(found, by_array(kept), begin, chained)
    exact = [parts(v, shapes) for v in (mine, want[None, rows], start)]
    errs[0] = errors(*exact, chained)[0]
    best = _decide(errs, names, free, report)
    if report["conforms"]:
        return
    before = np.concatenate([start[None], want[:-1]]) if chained else start + 0 * want
    report["facts"] += _first_difference(spec, rows, mine, want[rows], before[rows])
    if report["verdict"]:
        return
    near = words(names[best]) or "the reference itself"
    report["facts"].append(f"closest known variant, {errs[best]:.1%} off: {near}")
    report["verdict"] = "DIFFERS from all known variants"
    step = (sketch(mine[0], shapes) - begin).ravel()
    steps = (kept[:, 0] - begin).reshape(len(kept), -1)
    scale = steps @ step / np.maximum((steps**2).sum(1), 1e-30)
    gap = np.linalg.norm(step - scale[:, None] * steps, axis=1) / np.linalg.norm(step)
    same = [j for j in np.flatnonzero(gap < 1e-3) if {*names[j]} <= free]
    if same and abs(scale[same[0]] - 1) > 1e-3:
        said = _named(scale[same[0]], spec["numbers"])
        report["departures"] = {"scale": said}
        report["verdict"] += f"; the first step is {said} times the reference's"


def _first_difference(spec, rows, mine, want, before):
    """Where the first departure from the reference is, and its size."""
    split = [parts(v, spec["shapes"]) for v in (mine, want, before)]
    for r, n in enumerate(rows):
        for name, a, b, old in zip(spec["shapes"], *split, strict=True):
            step, seen = b[r] - old[r], a[r] - old[r]
            error = np.linalg.norm(seen - step) / max(np.linalg.norm(step), 1e-12)
            if error <= LEVELS["float32"]:
                continue
            fact = f"first difference: result {n + 1}, {name}, {error:.2g} of its step"
            factor = seen @ step / max(step @ step, 1e-30)
            if np.linalg.norm(seen - factor * step) < 1e-3 * np.linalg.norm(seen):
                named = _named(factor, spec["numbers"])
                fact += f" (the step is {named} times the reference's)"
            return [fact]
    return []


def _by_table(spec, rows, mine, report, free):
    """Explains steps as scale * direction: one from a table, the other solved for."""
    start, names, lr = arrays(spec["start"]), _names(spec), spec["hyper"]["lr"]
    moves = -np.diff(np.concatenate([start[None], mine]), axis=0)
    by_array = np.moveaxis(sketch(moves, spec["shapes"]), -2, 0)
    table = np.moveaxis(arrays(spec["table"])[:, rows], -2, 0)
    scales, errs = {}, 0.0
    for name, move, D in zip(spec["shapes"], by_array, table, strict=True):
        size = (D**2).sum((1, 2))
        scale = (D * move).sum((1, 2)) / np.maximum(size, 1e-30)
        gap = np.linalg.norm(move - scale[:, None, None] * D, axis=(1, 2))
        errs = np.maximum(errs, gap / max(np.linalg.norm(move), 1e-6 * lr))
        scales[name] = np.where(size > 0, scale / lr, np.nan)
    formula = lambda j: _scale({k: s[j] for k, s in scales.items()}, spec)
    best = _decide(errs, names, free, report, formula)
    if not report["verdict"]:
        report["verdict"] = "DIFFERS from all known rules"
        near = words(names[best]) or "the reference's rule"
        report["facts"].append(f"closest, {errs[best]:.1%} off: {near}")


def _scale(found, spec):
    """The formula of rows and columns that gives the scales; {} if the reference's."""
    found = {k: f for k, f in found.items() if np.isfinite(f) and f}
    for number, (name, values) in enumerate(spec["scales"].items()):
        if all(abs(f / values[k] - 1) < 2e-3 for k, f in found.items()):
            return {"scale": name} if number else {}
    name, values = next(iter(spec["scales"].items()))
    ratios = [f / values[k] for k, f in found.items()]
    if np.ptp(ratios) < 2e-3 * abs(ratios[0]):
        return {"scale": f"{_named(ratios[0], spec['numbers'])} times {name}"}
    return {"scale": ", ".join(f"{k} {f:.4g}" for k, f in found.items())}


FORMS = {"%s": 1.0, "1/%s": -1.0, "%s^2": 2.0, "sqrt(%s)": 0.5, "1/sqrt(%s)": -0.5}


def _named(value, numbers):
    """A number, with a formula of the settings if one gives it."""
    bases = dict(numbers) | {f"(1-{k})": 1 - v for k, v in numbers.items()}
    for form, power in FORMS.items():
        for name, base in bases.items():
            if base > 0 and abs(base**power / value - 1) < 1e-3:
                return f"{value:.4g} = {form % name}"
    return f"{value:.4g}"


def words(choice):
    return "; ".join(f"{axis}: {value}" for axis, value in choice.items())


# ------------------------------------------------------------------------ command line
def load(path, names):
    """Names of vectors and the functions, or the stored run, that a file has for them."""
    if path.suffix == ".npz":
        stored = np.load(path)
        leaves = sorted({name.rpartition(".")[0] for name in stored})
        last = max(int(name.rpartition(".")[2]) for name in stored)
        results = [{k: stored[f"{k}.{s}"] for k in leaves} for s in range(last + 1)]
        return {path.stem: lambda task: results}
    spec = importlib.util.spec_from_file_location("judged", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.append(str(path.parent.resolve()))  # files beside it
    spec.loader.exec_module(module)
    return getattr(module, "IMPLEMENTATIONS", None) or {
        name: f for name, f in vars(module).items() if name in names and callable(f)
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = pathlib.Path(__file__).parent / "vectors"
    parser.add_argument("file", type=pathlib.Path, help="Python file, or stored run")
    parser.add_argument("--vectors", type=pathlib.Path, default=here, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of vectors")
    said = "axes that never count, such as weights"
    parser.add_argument("--free", nargs="+", default=[], metavar="AXIS", help=said)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="report")
    given = parser.parse_args(arguments)
    names = sorted(path.stem for path in given.vectors.glob("*.json"))
    if not given.file.is_file():
        parser.error(f"{given.file} is no file")
    found = {
        k: f for k, f in load(given.file, names).items() if k in (given.only or [k])
    }
    unknown = sorted({*found} - {*names})
    if unknown or not found:
        what = f"has {', '.join(unknown)}" if unknown else "has no function"
        parser.error(f"{given.file} {what}; the vectors are {', '.join(names)}")
    reports = []
    for name, implementation in found.items():
        spec = json.loads((given.vectors / f"{name}.json").read_text())
        reports.append(judge(spec, implementation, given.free) | {"vectors": name})
        one = reports[-1]
        chosen = f" ({words(one['choices'])})" if one["choices"] else ""
        error = "" if one["error"] is None else f" [error {one['error']:.1e}]"
        print(
            "\n    ".join([f"{name}: {one['verdict']}{chosen}{error}", *one["facts"]])
        )
    if given.json:
        given.json.write_text(
            json.dumps({"version": VERSION, "reports": reports}, indent=1)
        )
    return int(not all(one["conforms"] for one in reports))


if __name__ == "__main__":
    sys.exit(main())
