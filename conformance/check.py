# SPDX-License-Identifier: MIT (conformance/LICENSE). Copyright 2026, fedjax_muon authors.
"""Checks code of Muon or of a federated method against test vectors. NumPy only.

An implementation gets a `Task` and yields, or lists, a dictionary for every step:

    rule       the parameters after every given gradient         (optimizers)
    rounds     the server's parameters after every round         (whole methods)
    aggregate  one dictionary, not a list; called for every case (servers, robust rules)

    def fedavg(task):                     # in mine.py, named as vectors/fedavg.json
        x = task.x0                       # {"w": [6, 4], "b": [6]}
        for cohort in task.cohorts:       # numbers of clients
            x = average(task, [train(task, i, x) for i in cohort])
            yield x
"""

import base64
import json
import pathlib
import runpy
import sys
from argparse import ArgumentParser, RawTextHelpFormatter

import numpy as np

VERSION, SKETCH = 1, 4  # of the files; numbers that stand for an array of a variant
LEVELS = {"float64": 1e-8, "float32": 2e-4, "bfloat16": 8e-2}
norm = np.linalg.norm
words = lambda choice: "; ".join(f"{axis}: {value}" for axis, value in choice.items())


def arrays(node, jolt=0.0):
    """JSON with base64 arrays, decoded all the way down; a jolt moves their numbers."""
    if isinstance(node, dict) and "dtype" in node:
        a = np.frombuffer(base64.b64decode(node["data"]), node["dtype"])
        return (a * (1 + jolt * np.sin(np.arange(a.size) ** 2))).reshape(node["shape"])
    if isinstance(node, dict):
        return {key: arrays(value, jolt) for key, value in node.items()}
    return [arrays(v, jolt) for v in node] if isinstance(node, list) else node


def parts(values, shapes):
    """Vectors [..., n] as one array for each of the shapes."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    return np.split(values, ends[:-1], axis=-1)


def sketch(values, shapes):
    """Fixed random projections of every array: [arrays, ..., SKETCH]."""
    draw = lambda n: np.random.RandomState(n).standard_normal((n, SKETCH))  # frozen
    return np.stack([v @ draw(v.shape[-1]) / 2 for v in parts(values, shapes)])


def errors(mine, values, start, chained):
    """The largest error of each variant over steps and arrays, relative to its steps.
    Arguments are lists of arrays [steps, n], [variants, steps, n] and [n]."""
    step = lambda b, x: np.diff(b, 1, 1, x + 0 * b[:, :1]) if chained else b - x
    moved = [norm(step(b, x), axis=2) for b, x in zip(values, start, strict=True)]
    apart = [norm(a - b, axis=2) for a, b in zip(mine, values, strict=True)]
    least = np.maximum(1e-3 * norm(moved, axis=0), 1e-12)
    return (np.array(apart) / np.maximum(moved, least)).max((0, 2))


class Task:
    """What an implementation is given; its attributes depend on the kind of vectors.

    All: hyper (settings by name). rule: x0, gradients (a list of dictionaries).
    aggregate: messages, weights, and what else the formula names. rounds: x0, cohorts,
    steps (K), sizes (of all clients), data[i] = (X, Y). The loss of client i is the
    mean of E**2 over all entries, E = X w' + b - Y, as of nn.MSELoss. Minimax: w and b
    descend; v and c ascend, and with D = X v' + c the loss is the mean of E**2 + 2 E D
    - D**2. Asynchronous: cohorts[r][j] began at model number starts[r][j], 0 for x0.
    Personal models: results have own_b [5, 6], of all clients. Agents: results have all
    agents, w [5, 6, 4]; iterations; mixing[i][j] is the weight at i of what j sends;
    rows[t][i], where given, are the examples of an iteration, rows[r][j][k] of a step.
    """

    def __init__(self, spec, case=None, jolt=0.0):
        vars(self).update(arrays(spec["given"], jolt), hyper={**spec["hyper"]})
        vars(self).update(arrays(case or {}, jolt))

    def grad(self, i, x, rows=slice(None)):
        """The gradient of client i's loss at x, of all its examples or some."""
        X, Y = (a[rows] for a in vars(self)["data"][i])
        E = X @ x["w"].T + x["b"] - Y
        D = X @ x["v"].T + x["c"] if "v" in x else 0 * E
        left, right = 2 / E.size * (E + D), 2 / E.size * (E - D)
        g = {"w": left.T @ X, "b": left.sum(0), "v": right.T @ X, "c": right.sum(0)}
        return {k: v for k, v in g.items() if k in x}


def joined(given, shapes):
    """One result as a vector; raises ValueError with what is wrong with it."""
    if not isinstance(given, dict) or {*given} != {*shapes}:
        what = [*map(str, given)] if isinstance(given, dict) else type(given).__name__
        raise ValueError(f"gave {what}, not a dictionary of {', '.join(shapes)}")
    found = []
    for name, shape in shapes.items():
        value = given[name]
        torch = hasattr(value, "detach")
        value = np.asarray(value.detach().cpu().double() if torch else value)
        if value.dtype.kind in "bcOSUMm" or list(value.shape) != shape:
            what = f"{value.dtype} of shape {list(value.shape)}"
            raise ValueError(f"{name} is {what}, not real numbers of shape {shape}")
        found.append(np.array(value, np.float64).ravel())
        if not np.isfinite(found[-1]).all():
            raise ValueError(f"{name} has NaN or infinities")
    return np.concatenate(found)


def run(spec, implementation, jolt=0.0):
    """The indices of usable results, these as an array, and what went wrong."""
    rows, results, wrong, path, cases = [], [], [], None, spec.get("cases")
    word = {"rounds": "round", "rule": "step", "aggregate": "case"}[spec["kind"]]
    for number in range(spec["reference"]["shape"][0]):
        try:
            task = Task(spec, cases and cases[number], jolt)
            path = path or iter([] if cases else implementation(task))
            result = implementation(task) if cases else next(path, None)
            results.append(joined(result, spec["shapes"]))
            rows.append(number)
        except Exception as error:  # the report is the place for it
            wrong.append(f"{word} {number + 1}: {type(error).__name__}: {error}")
            if not cases:
                break
    return rows, np.array(results), wrong


def noisy(error, spec, implementation, mine):
    """Whether an error is rounding: results jump as no smooth function of the input."""
    a, b = (run(spec, implementation, e)[1] for e in (1e-3, -1e-3))
    bent = a + b - mine if a.shape == b.shape == mine.shape else 0 * mine
    cut, start = lambda v: parts(v, spec["shapes"]), arrays(spec["start"])
    jump = errors(cut(mine), cut(bent[None]), cut(start), "cases" not in spec)[0]
    return error / 4 < jump < 16 * error


def judge(spec, implementation, free=()):
    """The verdict on one implementation: a dictionary that JSON can hold."""
    report = {"vectors": spec.get("name"), "error": None, "level": None, "facts": []}
    report |= {"verdict": "", "conforms": False, "departures": {}, "choices": {}}
    said = f"vectors of version {spec.get('version')}, and this file reads {VERSION}"
    if spec.get("version") != VERSION:
        said = spec.get("damaged", f"{said}; take both from one release")
        return report | {"verdict": f"REFUSED: {said}"}
    rows, mine, wrong = run(spec, implementation)
    if rows:
        by = _by_table if "table" in spec else _by_variants
        spec = spec | {"noisy": lambda error: noisy(error, spec, implementation, mine)}
        by(spec, rows, mine, report, {*spec["free"], *free})
    if wrong:
        seen = f"FAILS at {wrong[0]}{'; the others: ' * bool(rows)}{report['verdict']}"
        report |= {"verdict": seen, "conforms": False}
        report["facts"] = wrong[1:] + report["facts"]
    return report


def _decide(spec, errs, free, report, extra=lambda j: {}):
    """Fills in the verdict from the variants that fit."""
    pairs = lambda j: zip(spec["axes"].items(), spec["variants"][j], strict=True)
    choices = lambda j: {a: v[i] for (a, v), i in pairs(j) if i} | extra(j)
    departs = lambda j: {a: v for a, v in choices(j).items() if a not in free}
    best, error, facts = int(np.argmin(errs)), float(min(errs)), report["facts"]
    fits = lambda most: error <= most and (most < 0.01 or spec["noisy"](error))
    level = next((k for k, most in LEVELS.items() if fits(most)), None)
    report |= {"error": error, "level": level}
    if level is None:
        near = f"{error:.1%} off: {words(choices(best)) or 'the reference'}"
        facts += [f"closest known variant, {near}"]
        report["verdict"] = "DIFFERS from all known variants"
        return
    most = 2 * error if level == "bfloat16" else LEVELS[level]
    order = lambda j: (len(departs(j)), len(choices(j)), errs[j])
    same = sorted(np.flatnonzero(errs <= most).tolist(), key=order)
    found = report["departures"] = departs(same[0])
    report["choices"] = {a: v for a, v in choices(same[0]).items() if a in free}
    ties = [departs(j) for j in same[1:] if len(departs(j)) == len(found)]
    facts += [f"cannot be told from: {words(tie)}" for tie in ties if tie != found]
    report["verdict"] = f"DEPARTS: {words(found)}" if found else "conforms"
    report["conforms"] = not found and level != "bfloat16"
    report["verdict"] += f" ({words(report['choices'])})" * bool(report["choices"])
    if level == "bfloat16":
        report["verdict"] = f"COARSE: {report['verdict']}, to a few percent"
        facts += ["which hides mistakes: repeat it in float32 or float64"]


def _by_variants(spec, rows, mine, report, free):
    shapes, chained = spec["shapes"], spec["kind"] != "aggregate"
    want, start = arrays(spec["reference"]), arrays(spec["start"])
    kept, begin = arrays(spec["sketches"])[:, :, rows], sketch(start, shapes)
    errs = errors(sketch(mine, shapes), kept, begin, chained)
    a, b, first = (parts(v, shapes) for v in (mine, want[None, rows], start))
    errs[0] = errors(a, b, first, chained)[0]
    _decide(spec, errs, free, report)
    if report["level"] in (None, "bfloat16"):
        last = np.concatenate([start[None], want[:-1]]) if chained else start + 0 * want
        _explain(spec, rows, mine - last[rows], (want - last)[rows], report)


def _explain(spec, rows, mine, want, report):
    """Where the first departure is; its step as a multiple, or as other weights."""
    named = lambda v: zip(spec["shapes"], parts(v, spec["shapes"]), strict=True)
    split = [dict(named(v)) for v in (mine, want)]
    size = lambda v: np.maximum(norm(v, axis=1), 1e-3 * norm(want, axis=1))
    apart = {k: norm(a - split[1][k], axis=1) for k, a in split[0].items()}
    off = {k: apart[k] > LEVELS["float32"] * size(split[1][k]) for k in apart}
    r = int(np.argmax(np.any([*off.values()], axis=0)))
    first, found = [k for k in off if off[k][r]], {}
    report["facts"] += [f"first difference: result {rows[r] + 1}, {', '.join(first)}"]
    for k in first:
        a, b = (v[k][r] for v in split)
        factor = a @ b / max(b @ b, 1e-30)
        if norm(a - factor * b) < 1e-3 * norm(a) and abs(factor - 1) > 1e-3:
            found[f"step of {k}"] = f"{_named(factor, spec['numbers'])} times"
    for V in map(arrays, spec["sources"][rows[r] : rows[r] + 1]):
        w = np.linalg.lstsq(V.T, mine[r], rcond=None)[0]
        if norm(w @ V - mine[r]) < 1e-3 * norm(mine[r]):
            found["weights"] = f"{np.round(w, 3).tolist()}, sum {w.sum():.4g}"
    report["departures"] |= found
    if found:
        report["verdict"] += f"; result {rows[r] + 1} has {words(found)}"


def _by_table(spec, rows, mine, report, free):
    """Explains steps as scale * direction: one from a table, the other solved for."""
    start, lr = arrays(spec["start"]), spec["hyper"]["lr"]
    moves = sketch(-np.diff(mine, axis=0, prepend=start[None]), spec["shapes"])
    scales, errs, table = {}, np.zeros(1), arrays(spec["table"])[:, :, rows]
    for name, move, D in zip(spec["shapes"], moves, table, strict=True):
        size = (D**2).sum((1, 2))
        scale = (D * move).sum((1, 2)) / np.maximum(size, 1e-30)
        gap = norm(move - scale[:, None, None] * D, axis=(1, 2))
        errs = np.maximum(errs, gap / max(norm(move), 1e-6 * lr))
        scales[name] = np.where(size > 0, scale / lr, np.nan)
    _decide(spec, errs, free, report, lambda j: _scale(spec, scales, j, errs[j]))


def _scale(spec, scales, j, error):
    """The formula of rows and columns that gives the scales; {} if the reference's."""
    found = {k: s[j] for k, s in scales.items() if np.isfinite(s[j]) and s[j]}
    for number, (name, values) in enumerate(spec["scales"].items()):
        if all(abs(f / values[k] - 1) < 2e-3 + 2 * error for k, f in found.items()):
            return {"scale": name} if number else {}
    name = next(iter(spec["scales"]))
    ratios = [f / spec["scales"][name][k] for k, f in found.items()]
    if np.ptp(ratios) < (2e-3 + 2 * error) * abs(ratios[0]):
        return {"scale": f"{_named(ratios[0], spec['numbers'])} times {name}"}
    return {"scale": ", ".join(f"{k} {f:.4g}" for k, f in found.items())}


def _named(value, numbers):
    """A number, with a formula of the settings if one gives it."""
    forms = {"%s": 1.0, "1/%s": -1.0, "%s^2": 2.0, "sqrt(%s)": 0.5, "1/sqrt(%s)": -0.5}
    bases = dict(numbers) | {f"(1-{k})": 1 - v for k, v in numbers.items()}
    pairs = [(f % n, v**p) for f, p in forms.items() for n, v in bases.items() if v > 0]
    equal = [said for said, v in pairs if abs(v / value - 1) < 1e-3][:2]
    return " = ".join([f"{value:.4g}", *equal])


def read(path):
    """The vectors in a file; if it is damaged, the reason."""
    try:
        spec = json.loads(path.read_text())
        if arrays(spec)["version"] == VERSION:
            _ = [spec[k] for k in ("kind", "given", "axes", "reference")]
        return spec
    except (OSError, ValueError, TypeError, KeyError) as error:
        said = f"{path} is damaged ({type(error).__name__}: {error})"
        return {"name": path.stem, "damaged": f"{said}; take it again from a release"}


def main(arguments=None):
    about = f"{__doc__}{Task.__doc__}"
    parser = ArgumentParser(description=about, formatter_class=RawTextHelpFormatter)
    option, here = parser.add_argument, pathlib.Path(__file__).parent / "vectors"
    option("file", type=pathlib.Path, help="Python file with implementations")
    option("--vectors", type=pathlib.Path, default=here, metavar="FOLDER")
    option("--free", nargs="+", default=[], metavar="AXIS", help="they never count")
    option("--json", type=pathlib.Path, metavar="FILE", help="where the report goes")
    given = parser.parse_args(arguments)
    names = sorted(path.stem for path in given.vectors.glob("*.json"))
    sys.path.append(str(given.file.parent))  # files beside it
    module = runpy.run_path(str(given.file)) if given.file.is_file() else {}
    own = module.get("IMPLEMENTATIONS") or {k: module[k] for k in names if k in module}
    if not own or not {*own} <= {*names}:
        what = ", ".join({*own} - {*names}) or "no function for any vectors"
        parser.error(f"{given.file} has {what}; the vectors are {', '.join(names)}")
    reports = []
    for name, mine in own.items():
        spec = read(given.vectors / f"{name}.json")
        reports += [one := judge(spec, mine, given.free)]
        error = "" if one["error"] is None else f" [error {one['error']:.1e}]"
        print(f"{name}: {one['verdict']}{error}", *one["facts"], sep="\n    ")
    if given.json:
        given.json.write_text(json.dumps({"version": VERSION, "reports": reports}))
    return int(not all(one["conforms"] for one in reports))


if __name__ == "__main__":
    sys.exit(main())
