"""Reports of a paper's table or figure: our numbers and the published ones.

result.md     a table, with the commands, the machine and the time
result.csv    the same numbers
result.json   the curves of the figure
result.png    test scores and training losses against rounds, for every setting

Scores are of the test set after the last round. A point is the best of its grid on
validation examples, unless the whole grid is shown.
"""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import kept
from experiments.dots import Dot, dot, in_words
from fedjax_muon.runs import Swept, intervals, summary, tables
from fedjax_muon.runs.style import NOTE, Label, drawing, label_ends, styles
from fedjax_muon.runs.summary import History

CALLS = "calls.jsonl"  # a line for every panel that a call ran
FIELDS = (
    "setting",
    "method",
    "hyper",
    "seeds",
    "score",
    "interval",
    "published",
    "train_loss",
    "published_train_loss",
    "bytes_per_round",
    "bytes_up_per_round",
    "seconds",
    "by_seed",  # this and the next ones are in result.csv only
    "train_loss_by_seed",
    "edge",  # hyper-parameters whose best value is at an edge of the grid
)
HEADS = (
    "setting",
    "method",
    "hyper-parameters",
    "seeds",
    "{score}, %",
    "± 95%",
    "published",
    "train loss",
    "published",
    "kB per round",
    "kB up",
    "s per run",
)
EDGE = (
    "(edge): the best value is the smallest or largest of its grid, so that others may "
    "be better. Claims that need such a cell are undecided."
)


class Published(NamedTuple):
    """Numbers that a paper prints; None where it has curves only."""

    score: float | None = None  # percent
    train_loss: float | None = None


class Row(NamedTuple):
    """A method in a setting."""

    setting: str
    label: str
    hyper: str
    runs: Sequence[History]  # of the seeds; empty if one of them diverged
    diverged: int
    edge: str = ""  # hyper-parameters whose best value is at an edge of the grid


def read_published(paper: str, item: str) -> dict[tuple[str, str], Published]:
    """Returns published numbers by setting and label.

    They are in a CSV file next to the paper's module, if there are any.
    """
    path = Path(__file__).with_name(f"{paper}_published.csv")
    if not path.exists():
        return {}
    number = lambda text: float(text) if text else None
    with path.open(newline="") as file:
        return {
            (line["setting"], line["label"]): Published(
                number(line["score"]), number(line["train_loss"])
            )
            for line in csv.DictReader(file)
            if line["item"] == item
        }


def rows(done: Mapping[str, tuple[Any, Mapping[str, Swept]]]) -> list[tuple[Row, str]]:
    """Returns the rows of all panels, each with the paper's name of its setting."""
    found = []
    for panel, sweeps in done.values():
        for name, swept in sweeps.items():
            points, best = swept.points, swept.best
            shown = points if panel.every_point else [best] if best else points[:1]
            for point in shown:
                label = panel.label_of(name)
                if panel.every_point:
                    label = f"{label}, {varied(points, point)}"
                runs = [] if point.diverged else point.runs
                hyper = tables.hyper_text(point)
                at_edge = [] if panel.every_point else summary.edges(points, point)
                edge = " ".join(at_edge)
                row = Row(panel.setting, label, hyper, runs, point.diverged, edge)
                found.append((row, panel.printed_for or panel.setting))
    return found


def varied(points: Sequence[summary.Point], point: summary.Point) -> str:
    """Returns the hyper-parameters in which a point differs from others of its grid."""
    several = lambda name: len({other.hyper[name] for other in points}) > 1
    hyper = {name: v for name, v in point.hyper.items() if several(name)}
    return tables.hyper_text(point._replace(hyper=hyper))


def numbers(row: Row, published: Published) -> dict[str, Any]:
    """Returns a line of result.csv; fields without a value are empty."""
    line: dict[str, Any] = dict.fromkeys(FIELDS, "")
    line |= {"setting": row.setting, "method": row.label, "hyper": row.hyper}
    if published.score is not None:
        line["published"] = published.score
    if published.train_loss is not None:
        line["published_train_loss"] = published.train_loss
    if not row.runs:
        return line | {"score": "diverged", "seeds": row.diverged, "edge": row.edge}
    column = summary.score_column(row.runs[0])
    scores = 100 * np.array([run[column][-1] for run in row.runs])
    half = float(intervals.half_width(scores))
    losses = [run["train_loss"][-1] for run in row.runs]
    run = row.runs[0]
    rounds = max(run["round"][-1], 1)
    down, up = (
        (run[name][-1] - run[name][0]) / rounds for name in ("bytes_down", "bytes_up")
    )
    return line | {
        "seeds": len(scores),
        "score": round(scores.mean(), 2),
        "interval": "" if np.isnan(half) else round(half, 2),
        "train_loss": round(np.mean(losses), 4),
        "bytes_per_round": round(down + up),
        "bytes_up_per_round": round(up),
        "seconds": round(np.mean([run["seconds"][-1] for run in row.runs]), 1),
        "by_seed": " ".join(f"{score:.2f}" for score in scores),
        "train_loss_by_seed": " ".join(f"{loss:.4f}" for loss in losses),
        "edge": row.edge,
    }


class Report(NamedTuple):
    """Contents of the report of an item."""

    title: str
    reduced: str  # how it differs from the paper
    done: Mapping[str, tuple[Any, Mapping[str, Swept]]]  # panels, and their sweeps
    missing: Sequence[str]  # names of the others


def write(
    report: Report, item_dir: Path, published: Mapping[tuple[str, str], Published]
) -> None:
    """Writes the four files."""
    found = rows(report.done)
    lines = [
        numbers(row, published.get((printed_for, row.label), Published()))
        for row, printed_for in found
    ]
    with (item_dir / "result.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(lines)
    score = next(s.score for _, sweeps in report.done.values() for s in sweeps.values())
    text = [f"# {report.title}", ""]
    if report.reduced:
        text += [f"Differs from the paper: {report.reduced}.", ""]
    if report.missing:
        text += [f"Not run yet: {', '.join(report.missing)}.", ""]
    others = {printed for row, printed in found if printed != row.setting}
    if published and others:
        text += [f"Published numbers are for {'; '.join(sorted(others))}.", ""]
    text += table(lines, score)
    text += [
        "",
        f"![{finding(lines, score)}](result.png)",
        "",
        *provenance(item_dir),
    ]
    (item_dir / "result.md").write_text("\n".join(text) + "\n")
    kept.write(item_dir / "result.json", curves(report.title, score, found))
    draw(item_dir / "result.json", item_dir / "result.png")


def finding(lines: Sequence[Mapping[str, Any]], score: str) -> str:
    """The method with the best mean score, by setting."""
    best: dict[str, Any] = {}
    for line in (line for line in lines if line["by_seed"]):
        known = best.setdefault(line["setting"], line)
        if float(line["score"]) > float(known["score"]):
            best[line["setting"]] = line
    return "; ".join(
        f"{in_words(setting)}: {line['method']} has the highest test {score}, "
        f"{float(line['score']):.1f}%"
        for setting, line in best.items()
    )


def table(lines: Sequence[Mapping[str, Any]], score: str) -> list[str]:
    """Returns the lines as Markdown, without empty columns."""
    heads = dict(zip(FIELDS[: len(HEADS)], HEADS, strict=True))
    used = [name for name in heads if any(line[name] != "" for line in lines)]
    text = ["| " + " | ".join(heads[name].format(score=score) for name in used) + " |"]
    words = ("setting", "method", "hyper")
    text.append("|" + "|".join("---" if n in words else "---:" for n in used) + "|")
    for line in lines:
        cells = dict(line)
        for name in ("bytes_per_round", "bytes_up_per_round"):
            if cells[name] != "":
                cells[name] = f"{cells[name] / 1e3:,.0f}"
        if line["edge"]:
            cells["hyper"] += " (edge)"
        text.append("| " + " | ".join(str(cells[name]) for name in used) + " |")
    if any(line["edge"] for line in lines):
        text += ["", EDGE]
    return text


def provenance(item_dir: Path) -> list[str]:
    """Returns the time, the machine and the commands that `frame.record_call` wrote."""
    path = item_dir / CALLS
    if not path.exists():
        return []
    calls = [json.loads(line) for line in path.read_text().splitlines()]
    minutes = sum(call["seconds"] for call in calls) / 60
    commands = dict.fromkeys(call["command"] for call in calls)
    about = dict.fromkeys(
        f"{call['cores']} cores of an {call['cpu']}, {call['backend']}, "
        f"jax {call['jax']}, Python {call['python']}"
        for call in calls
    )
    source = " ".join(dict.fromkeys(call["source"] for call in calls))
    where = f"{'; '.join(about)}, source {source}"
    lines = [f"Ran in {minutes:.0f} minutes on {where}:", ""]
    return lines + [f"    {command}" for command in commands]


def curves(title: str, score: str, rows: Sequence[tuple[Row, str]]) -> dict[str, Any]:
    """Returns the curves of the figure, by setting and method: [seeds, rounds]."""
    settings: dict[str, dict[str, Any]] = {}
    for row, _ in rows:
        methods = settings.setdefault(row.setting, {})
        if row.runs:
            column = summary.score_column(row.runs[0])
            methods[row.label] = {
                "round": row.runs[0]["round"],
                "score": [100 * run[column] for run in row.runs],
                "train_loss": [run["train_loss"] for run in row.runs],
            }
    return {"title": title, "score": score, "settings": settings}


def last(lines: Sequence[Mapping[str, str]], text: str) -> list[Dot]:
    """Returns the numbers after the last round, from a kept table.

    Args:
      lines: Lines of result.csv.
      text: Text of result.md, which names the score.
    """
    losses = "train_loss_by_seed" in lines[0]  # else settings are measures
    named = re.search(r"[^|]*(?=, % \|)", text) if losses else None
    score = f"test {named[0].strip()}, %" if named else ""
    best = lambda line: -float(line["score"]) if line["by_seed"] else np.inf
    inner = any("=" in line["method"] for line in lines)  # values, in their order
    lines = lines if inner or not losses else sorted(lines, key=best)
    units = {"by_seed": score, "train_loss_by_seed": "training loss"}
    return [
        dot(line["setting"], line["method"], line[column].split(), unit=unit)
        for line in lines
        for column, unit in units.items()
        if losses or unit == score
    ]


def draw(json_path: Path, path: Path) -> None:
    """Draws kept curves: test scores and training losses.

    There is one row of panels for every setting. Curves are means over seeds.
    """
    shown = kept.read(json_path)
    settings = shown["settings"]
    every = [
        (name, run) for methods in settings.values() for name, run in methods.items()
    ]
    lines = styles(name for name, _ in every)
    with drawing(path, (10.2, 3.2 * len(settings) + 0.4)) as figure:
        grid = figure.subplots(len(settings), 2, squeeze=False)
        direct = True
        for (left, right), setting in zip(grid, settings, strict=True):
            ends = []
            for name, run in settings[setting].items():
                how, x = lines[name] | {"label": name}, run["round"]
                intervals.curve(left, x, run["score"], **how)
                losses = intervals.curve(right, x, run["train_loss"], **how)
                ends.append(Label(name, x[-1], losses[-1], how["color"]))
            left.set_title(setting, loc="left")
            left.set(xlabel="round", ylabel=f"test {shown['score']}, %")
            right.set(xlabel="round", ylabel="training loss")
            direct &= label_ends(right, ends, 2.6) or not ends
        if not direct:
            handles: dict[Any, Any] = {}
            for left, _ in grid:
                found = left.get_legend_handles_labels()
                handles |= dict(zip(*reversed(found), strict=True))
            columns: dict[str, Any] = {"loc": "outside lower center", "ncols": 3}
            figure.legend(handles.values(), handles, **columns)
        seeds = max((len(run["score"]) for _, run in every), default=0)
        figure.supxlabel(f"means of {seeds} seeds", fontsize=7.5, color=NOTE)
        figure.suptitle(shown["title"], x=0.01, ha="left")
