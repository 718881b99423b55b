"""The report of run directories: one HTML file that asks no other host for anything.

What is there is shown, what is missing is named.
"""

import base64
import dataclasses
import html
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_muon.core.atomic_files import write
from fedjax_muon.reporting import fairness, metrics_csv
from fedjax_muon.reporting.comparison import History, score_column
from fedjax_muon.reporting.intervals import FEW, half_width
from fedjax_muon.reporting.plots import NAMES
from fedjax_muon.reporting.style import Line, another, line_of
from fedjax_muon.reporting.tables import percent
from fedjax_muon.runs import directory as directories, sweep as sweeps
from fedjax_muon.runs.config import Comparison, Config, Run, Sweep, label_of
from fedjax_muon.tracking import flat
from fedjax_muon.versions import check_installed

COUNTS = ("round", "bytes_down", "bytes_up", "seconds")
NEEDED = COUNTS[1:]  # columns
AXES = {  # titles
    "round": "rounds",
    "megabytes": "megabytes, up and down",
    "seconds": "seconds",
}
SCALES = ("linear", "log")
# On a phone the menus are below each other, in plotly's 41 pixels per row.
NARROW = """const plot = document.getElementById("{plot_id}");
const sides = plot.layout.updatemenus.map((menu) => menu.x);
const place = () => {
  const narrow = innerWidth < 600, last = sides.length - 1;
  const layout = {"margin.t": narrow ? 60 + 41 * last : 60};
  sides.forEach((x, i) => {
    layout[`updatemenus[${i}].x`] = narrow ? 0 : x;
    layout[`updatemenus[${i}].pad.b`] = narrow ? 41 * (last - i) : 0;
  });
  Plotly.relayout(plot, layout);
};
addEventListener("resize", place);
place();"""
HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none';
  script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<style>
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 70rem; color: #1b1f24;
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; }
h2 { font-size: 1.05rem; margin-top: 2.2rem; }
div.wide { overflow-x: auto; }
.plotly-graph-div { overflow: hidden; } /* until it follows a narrower window */
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #d9dee4;
  text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
@media (max-width: 30em) {
  td:first-child { white-space: normal; overflow-wrap: normal; } }
section { border-left: 4px solid #d98324; padding: .1rem 1rem; }
</style>
"""


class Result(NamedTuple):
    """A run with metrics."""

    place: Path  # the directory that was given
    label: str
    seed: int
    options: Mapping[str, Any]  # without the seed
    history: History
    versions: Mapping[str, Any]


class Curve(NamedTuple):
    """The runs of a method that differ in their seeds alone."""

    name: str  # which no other curve has
    runs: Sequence[History]  # with at least one round each
    line: Line
    options: Mapping[str, Any]  # by name, with dots
    versions: Mapping[str, Any]  # of what computed it


class Trace(NamedTuple):
    """A line or a band of the figure."""

    metric: str
    x: Mapping[str, list[float]]  # by axis
    y: Mapping[str, list[float]]  # by scale
    look: Mapping[str, Any]  # keywords of plotly


def save_report(
    runs: Sequence[str | Path], path: str | Path, *, overwrite: bool = False
) -> list[str]:
    """Writes an interactive report of runs: one HTML file that works offline.

    Runs of one method that differ only in the seed are one curve, with 95% intervals.
    Requires the extra `report`.

    Args:
      runs: Directories of runs, comparisons and sweeps. For a sweep, the best point of
        every method is shown.

    Returns:
      Sentences that say what is not shown, and why; the report has them too.
    """
    path = Path(path)
    if path.suffix.lower() != ".html":
        raise ValueError(f"a report's name must end in .html, got {str(path)!r}")
    if path.exists() and (path.is_dir() or not overwrite):
        raise ValueError(
            f"{path} exists already; choose another name, or replace it (overwrite)"
        )
    if not runs:
        raise ValueError("a report needs at least one run directory")
    check_installed("plotly", "the report")
    results: list[Result] = []
    missing: list[str] = []
    titles: dict[str, None] = {}
    for place in dict.fromkeys(map(Path, runs)):
        try:
            job = directories.read(place)
            results += _results_in(place, job, missing)
            if isinstance(job, Run | Comparison | Sweep):
                titles[job.config.title] = None
        except (ValueError, OSError) as error:
            missing.append(str(error))
    if not results:
        raise ValueError("; ".join(missing))
    write(path, _page("; ".join(titles), _curves(results), missing))
    return missing


# ------------------------------------------------------------------ directories
def _results_in(place: Path, job: Any, missing: list[str]) -> Iterator[Result]:
    """The runs in a directory; those without metrics are added to `missing`."""
    if isinstance(job, Sweep):
        yield from _best(place, job, missing)
        return
    resumed = f"continue it with: {directories.resume_command(place)}"
    alone = {place: job} if isinstance(job, Run) else directories.cells(place, job)
    for cell, run in alone.items():
        path = cell / directories.METRICS
        try:
            history = metrics_csv.read(path)
            for name in NEEDED:
                if name not in history:
                    raise ValueError(
                        f"{path} has no column {name!r}: it is damaged, or was made by "
                        "`deploy`, whose runs do not count bytes"
                    )
            if not len(history["round"]):
                raise ValueError(f"{path} has no rounds")
        except FileNotFoundError:
            missing.append(f"{cell} has no metrics; {resumed}")
            continue
        except (ValueError, OSError) as error:
            missing.append(str(error))
            continue
        last, rounds = int(history["round"][-1]), run.config.rounds
        if last < rounds:
            missing.append(f"{cell} has {last} of {rounds} rounds; {resumed}")
        versions = _versions_of(place, missing)
        options = _options_of(run.algorithm, run.hyper, run.config)
        yield Result(place, run.label, run.seed, options, history, versions)


def _best(place: Path, job: Sweep, missing: list[str]) -> Iterator[Result]:
    versions = _versions_of(place, missing)
    for name in job.algorithms:
        label = sweeps.label(job, name)
        try:
            point = sweeps.best_of(job, name, place)
        except ValueError as error:
            missing.append(f"{label}: {error}")
            continue
        if point is None:
            missing.append(f"{label} of {place} diverged at every point of its grid")
            continue
        options = _options_of(name, point.hyper, job.config_of(name))
        for seed, run in zip(job.seeds, point.runs, strict=True):
            yield Result(place, label_of(name), seed, options, run, versions)


def _options_of(name: str, hyper: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """All options of a run but its seed, as JSON has them."""
    options = {"algorithm": name, **hyper, **flat(dataclasses.asdict(config))}
    return json.loads(json.dumps(options, default=str))


def _versions_of(place: Path, missing: list[str]) -> Mapping[str, Any]:
    path = place / directories.VERSIONS
    try:
        versions = json.loads(path.read_text())
    except (OSError, ValueError):
        versions = None
    if isinstance(versions, dict):
        return versions
    words = f"{path} is missing or damaged: versions are unknown"
    if words not in missing:
        missing.append(words)
    return {}


def _curves(results: Sequence[Result]) -> list[Curve]:
    """One curve for the runs that differ in their seeds alone."""
    groups: dict[tuple[str, int], list[Result]] = {}
    times = Counter[tuple[str, int]]()
    for run in results:
        same = json.dumps([run.label, run.options, run.versions], sort_keys=True)
        times[same, run.seed] += 1
        groups.setdefault((same, times[same, run.seed]), []).append(run)
    labels = Counter(group[0].label for group in groups.values())
    names, numbers = Counter[str](), Counter[str]()
    curves = []
    for first, *others in groups.values():
        label = first.label
        name = label if labels[label] == 1 else f"{label}, {first.place}"
        names[name] += 1
        name += f" ({names[name]})" * (names[name] > 1)
        line = another(line_of(label), numbers[label])
        numbers[label] += 1
        runs = [run.history for run in (first, *others)]
        curves.append(Curve(name, runs, line, first.options, first.versions))
    return curves


# ----------------------------------------------------------------------- figure
def _figure(curves: Sequence[Curve]) -> str:
    """The curves of all metrics, with menus of plotly."""
    # imported here, since it is slow, and in the extra `report`
    from plotly.graph_objects import Figure, Scatter

    traces = [trace for curve in curves for trace in _traces(curve)]
    metrics = list(dict.fromkeys(trace.metric for trace in traces))
    first = score_column(curves[0].runs[0])
    figure = Figure()
    for trace in traces:
        x, y = trace.x["round"], trace.y["linear"]
        figure.add_trace(Scatter(x=x, y=y, visible=trace.metric == first, **trace.look))
    words = {name: html.escape(_words(name)) for name in metrics}
    metric = {
        words[name]: [
            {"visible": [trace.metric == name for trace in traces]},
            {"yaxis.title.text": words[name], "yaxis.autorange": True},
        ]
        for name in metrics
    }
    axis = {
        title: [{"x": [t.x[name] for t in traces]}, {"xaxis.title.text": title}]
        for name, title in AXES.items()
    }
    scale = {
        name: [
            {"y": [t.y[name] for t in traces]},
            {"yaxis.type": name, "yaxis.autorange": True},
        ]
        for name in SCALES
    }
    menus = [_menu(0.0, metric, metrics.index(first)), _menu(0.4, axis)]
    figure.update_layout(
        template="plotly_white",
        height=560,
        margin={"l": 10, "r": 10, "t": 60, "b": 10},
        hovermode="x unified",
        xaxis={"title": {"text": AXES["round"]}, "automargin": True},
        yaxis={
            "title": {"text": words[first]},
            "automargin": True,
            "range": _later(traces, first),
        },
        legend={"orientation": "h", "y": -0.2},
        showlegend=True,
        updatemenus=[*menus, _menu(0.8, scale)],
    )
    picture = {"format": "png", "scale": 2, "filename": "curves"}
    config = {
        "displaylogo": False,
        "modeBarButtons": [["toImage"]],
        "toImageButtonOptions": picture,
    }
    return figure.to_html(
        config, include_plotlyjs=True, full_html=False, post_script=NARROW
    )


def _later(traces: Sequence[Trace], metric: str) -> tuple[float, float] | None:
    """Limits in which the lines of a metric are from half of training on.

    A double click shows the whole lines. None if all of them diverged before.
    """
    lines = [
        t.y["linear"] for t in traces if t.metric == metric and "fill" not in t.look
    ]
    values = np.concatenate([line[len(line) // 2 :] for line in lines])
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high = values.min(), values.max()
    margin = 0.1 * (high - low) or 0.05 * abs(high) or 1.0
    return float(low - margin), float(high + margin)


def _words(metric: str) -> str:
    """The name of a metric as people say it."""
    part = metric.removeprefix(fairness.PREFIX)
    if part != metric and part in fairness.COLUMNS:
        return f"clients: {fairness.COLUMNS[part].removesuffix(', %')}"
    return NAMES.get(metric, metric.replace("_", " "))


def _download(curves: Sequence[Curve]) -> str:
    """A link to the means of all curves, as a CSV file."""
    lines = ["run,metric,round,mean"]
    for curve in curves:
        name = '"' + curve.name.replace('"', '""') + '"'
        for trace in _traces(curve):
            if "fill" not in trace.look:
                pairs = zip(trace.x["round"], trace.y["linear"], strict=True)
                lines += [f"{name},{trace.metric},{x:g},{y:.6g}" for x, y in pairs]
    data = base64.b64encode("\n".join([*lines, ""]).encode()).decode()
    link = f'<a download="curves.csv" href="data:text/csv;base64,{data}">CSV</a>'
    return f"<p>Download the means as {link}; the button in the figure saves a PNG.</p>"


def _menu(x: float, buttons: Mapping[str, Any], active: int = 0) -> dict[str, Any]:
    options = [
        {"label": label, "method": "update", "args": args}
        for label, args in buttons.items()
    ]
    place = {"x": x, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    return {"buttons": options, "active": active, **place}


def _traces(curve: Curve) -> Iterator[Trace]:
    """The mean of every metric and its interval, at each round that all runs have."""
    count = min(len(run["round"]) for run in curve.runs)
    columns = {
        name: np.array([run[name][:count] for run in curve.runs], float)
        for name in curve.runs[0]
        if all(name in run for run in curve.runs)
    }
    sent = columns["bytes_down"] + columns["bytes_up"]
    x = {
        "round": columns["round"][0],
        "megabytes": sent.mean(0) / 1e6,
        "seconds": columns["seconds"].mean(0),
    }
    color, dash = curve.line
    opacity = 0.15 if len(curve.runs) >= FEW else 0.06
    look = {"name": html.escape(curve.name), "legendgroup": curve.name, "mode": "lines"}
    for metric in (name for name in columns if name not in COUNTS):
        mean, half = columns[metric].mean(0), half_width(columns[metric])
        known = np.isfinite(mean) & np.isfinite(half)
        if known.any():
            low, high = (mean - half)[known], (mean + half)[known]
            # on a logarithmic axis a band must not reach below what is drawn
            floor = mean[mean > 0].min(initial=np.inf)
            lows = {"linear": low, "log": np.maximum(low, floor)}
            around = lambda one, other: [*one, *other[::-1]]
            yield Trace(
                metric,
                {name: around(at[known], at[known]) for name, at in x.items()},
                {name: around(high, low) for name, low in lows.items()},
                look | BAND | {"fillcolor": color, "opacity": opacity},
            )
        spread = [f" ± {value:.2g}" if np.isfinite(value) else "" for value in half]
        yield Trace(
            metric,
            {name: at.tolist() for name, at in x.items()},
            dict.fromkeys(SCALES, mean.tolist()),
            look
            | {"line": {"color": color, "dash": dash}, "customdata": spread}
            | {"hovertemplate": "%{y:.4g}%{customdata}"},
        )


BAND = {
    "fill": "toself",
    "line": {"width": 0},
    "hoverinfo": "skip",
    "showlegend": False,
}


# ----------------------------------------------------------------------- tables
def _page(title: str, curves: Sequence[Curve], missing: Sequence[str]) -> str:
    runs = sum(len(curve.runs) for curve in curves)
    about = f"{len(curves)} curves of {runs} runs" if runs > 1 else "1 run"
    title = html.escape(title)
    items = "".join(f"<li>{html.escape(words)}</li>\n" for words in missing)
    parts = [
        f"{HEAD}<title>{title}</title>\n<h1>{title}</h1>",
        f"<p>{about}; means over seeds, with 95% intervals of Student's t</p>",
        f"<section><h2>Not shown</h2><ul>{items}</ul></section>" if missing else "",
        _figure(curves),
        _download(curves),
        *(_last(curves), _clients(curves), _cost(curves)),
        _compared("Options", curves, [curve.options for curve in curves]),
        _compared("Versions and machine", curves, [one.versions for one in curves]),
    ]
    return "\n".join([*parts, "</html>\n"])


def _table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    best: Collection[tuple[int, int]] = (),
) -> str:
    """A table that scrolls within itself, below a heading.

    Args:
      best: Rows and columns of cells in bold.
    """
    bold = lambda at, words: f"<strong>{words}</strong>" if at in best else words
    cell = lambda kind, at, words: f"<{kind}>{bold(at, html.escape(words))}</{kind}>"

    def line(kind: str, i: int, words: Sequence[str]) -> str:
        cells = (cell(kind, (i, j), word) for j, word in enumerate(words))
        return f"<tr>{''.join(cells)}</tr>"

    shown = [line("td", i, row) for i, row in enumerate(rows)]
    lines = "\n".join([line("th", -1, columns), *shown])
    heading = f"<h2>{title}</h2>\n" if title else ""
    return f'{heading}<div class="wide"><table>{lines}</table></div>'


def _last(curves: Sequence[Curve]) -> str:
    """The best run comes first; its score and the smallest loss are in bold."""
    rows, scores, losses = [], [], []
    for curve in curves:
        column = score_column(curve.runs[0])
        last = np.array([run[column][-1] for run in curve.runs])
        # private runs have no training loss
        each = [run["train_loss"][-1] for run in curve.runs if "train_loss" in run]
        scores.append(float(last.mean()))
        losses.append(float(np.mean(each)) if each else np.nan)
        score = percent(scores[-1], float(half_width(last)))
        loss = f"{losses[-1]:.4g}" if each else "-"
        rounds = "/".join(sorted({str(run["round"][-1]) for run in curve.runs}))
        seeds = str(len(curve.runs))
        rows.append((curve.name, score, loss, rounds, seeds, _words(column)))
    order = np.argsort(-np.array(scores), kind="stable")
    best = {(0, 1)} if np.isfinite(scores[order[0]]) else set()
    if np.isfinite(losses).any():
        best.add((int(np.nanargmin(np.array(losses)[order])), 2))
    columns = ("run", "%, ± 95%", "training loss", "rounds", "seeds", "score")
    ranked = [rows[i] for i in order]
    return _table("Results after the last round", columns, ranked, best)


def _clients(curves: Sequence[Curve]) -> str:
    rows = []
    for curve in curves:
        if fairness.has_clients(curve.runs):
            ends = [fairness.last(curve.runs, name) for name in fairness.COLUMNS]
            rows.append((curve.name, *(f"{100 * end.mean():.2f}" for end in ends)))
    columns = ("run", *fairness.COLUMNS.values())
    return _table("Test accuracies of clients", columns, rows) if rows else ""


def _cost(curves: Sequence[Curve]) -> str:
    rows = []
    for curve in curves:
        rounds, down, up, seconds = (
            float(np.mean([run[name][-1] for run in curve.runs])) for name in COUNTS
        )
        each = f"{1e3 * seconds / rounds:,.1f}" if rounds else "-"
        costs = (f"{value:,.1f}" for value in (down / 1e6, up / 1e6, seconds))
        rows.append((curve.name, *costs, each))
    columns = ("run", "MB down", "MB up", "seconds", "ms per round")
    return _table("Cost of a run", columns, rows)


def _compared(
    title: str, curves: Sequence[Curve], options: Sequence[Mapping[str, Any]]
) -> str:
    """Options that differ between curves, and all others below."""
    names = list(dict.fromkeys(name for one in options for name in one))
    values = {name: [_word(one.get(name, "-")) for one in options] for name in names}
    different = [(name, *row) for name, row in values.items() if len(set(row)) > 1]
    same = [(name, row[0]) for name, row in values.items() if len(set(row)) == 1]
    columns = ("", *(curve.name for curve in curves))
    shown = _table("", columns, different) if different else ""
    what = "The same in all runs" if different else "Of all runs"
    below = f"<details><summary>{what}</summary>{_table('', ('', ''), same)}</details>"
    return f"<h2>{title}</h2>\n{shown}{below}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
