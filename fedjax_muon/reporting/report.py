"""An interactive report of runs: one HTML file that asks no other host for anything."""

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_muon.reporting import fairness, intervals
from fedjax_muon.reporting.colors import Line
from fedjax_muon.reporting.comparison import History, score_column
from fedjax_muon.reporting.tables import percent
from fedjax_muon.versions import check_installed

PAGE = Path(__file__).with_name("report.html")
ROUND = "round"
COUNTS = (ROUND, "bytes_down", "bytes_up", "seconds")


class Entry(NamedTuple):
    """One curve: the runs of a method that differ in their seeds alone."""

    name: str  # which no other entry has
    label: str  # of the method
    runs: Sequence[History]  # with at least one round each
    line: Line
    options: Mapping[str, Any]  # by name, with dots
    versions: Mapping[str, Any]  # of what computed it


def page(title: str, entries: Sequence[Entry], missing: Sequence[str]) -> str:
    """Makes the report of runs.

    Args:
      title: Headline.
      entries: What is shown.
      missing: Sentences that say what is not shown, and why.

    Returns:
      The text of an HTML file.
    """
    check_installed("plotly", "the report")
    # imported here, since it is slow, and in the extra `report`
    from plotly.offline import get_plotlyjs

    parts = {
        "TITLE": html.escape(title),
        "SUBTITLE": html.escape(_subtitle(entries)),
        "MISSING": _missing(missing),
        "TABLES": "\n".join((_results(entries), _clients(entries), _cost(entries))),
        "OPTIONS": _options(entries),
        "VERSIONS": _versions(entries),
        "DATA": _script([_curves(entry) for entry in entries]),
        "PLOTLY": get_plotlyjs(),
    }
    text = PAGE.read_text()
    for name, part in parts.items():  # plotly's code comes last: nothing in it changes
        text = text.replace(f"<!--{name}-->", part)
    return text


def _subtitle(entries: Sequence[Entry]) -> str:
    runs = sum(len(entry.runs) for entry in entries)
    return f"{len(entries)} curves of {runs} runs" if runs > 1 else "1 run"


def _script(value: Any) -> str:
    """A value as JSON that can't end the script it is in."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028")


def _finite(values: np.ndarray) -> list[float | None]:
    return [float(x) if np.isfinite(x) else None for x in values]


def _curves(entry: Entry) -> dict[str, Any]:
    """The mean of every metric and half the length of its interval, at each round that
    all runs have."""
    rounds = min((run[ROUND] for run in entry.runs), key=len)
    count = len(rounds)
    names = [name for name in entry.runs[0] if all(name in run for run in entry.runs)]
    columns = {
        name: np.array([run[name][:count] for run in entry.runs], float)
        for name in names
    }
    sent = columns["bytes_down"] + columns["bytes_up"]
    metrics = {}
    for name in names:
        if name not in COUNTS:
            mean, half = columns[name].mean(0), intervals.half_width(columns[name])
            metrics[name] = {"mean": _finite(mean), "half": _finite(half)}
    return {
        "name": entry.name,
        **entry.line._asdict(),
        "seeds": len(entry.runs),
        "x": {
            "round": _finite(rounds),
            "megabytes": _finite(sent.mean(0) / 1e6),
            "seconds": _finite(columns["seconds"].mean(0)),
        },
        "metrics": metrics,
    }


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls within itself; the first column is text."""
    cell = lambda kind, words: f"<{kind}>{html.escape(words)}</{kind}>"
    line = lambda kind, words: f"<tr>{''.join(cell(kind, w) for w in words)}</tr>"
    head, body = line("th", columns), "\n".join(line("td", row) for row in rows)
    return (
        f'<div class="wide"><table><thead>{head}</thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _results(entries: Sequence[Entry]) -> str:
    rows = []
    for entry in entries:
        column = score_column(entry.runs[0])
        last = np.array([run[column][-1] for run in entry.runs])
        mean, half = float(last.mean()), float(intervals.half_width(last))
        loss = np.mean([run["train_loss"][-1] for run in entry.runs])
        rounds = "/".join(sorted({str(run[ROUND][-1]) for run in entry.runs}))
        score = column.replace("_", " ")
        seeds = str(len(entry.runs))
        rows.append(
            (entry.name, score, percent(mean, half), f"{loss:.4g}", rounds, seeds)
        )
    columns = ("run", "score", "%, ± 95 %", "training loss", "rounds", "seeds")
    return f"<h2>Results after the last round</h2>\n{_table(columns, rows)}"


def _clients(entries: Sequence[Entry]) -> str:
    shown = [entry for entry in entries if fairness.has_clients(entry.runs)]
    if not shown:
        return ""
    rows = []
    for entry in shown:
        means = [fairness.last(entry.runs, name).mean() for name in fairness.COLUMNS]
        rows.append((entry.name, *(f"{100 * mean:.2f}" for mean in means)))
    columns = ("run", *fairness.COLUMNS.values())
    return f"<h2>Test accuracies of clients</h2>\n{_table(columns, rows)}"


def _cost(entries: Sequence[Entry]) -> str:
    rows = []
    for entry in entries:
        ends = [{name: run[name][-1] for name in COUNTS} for run in entry.runs]
        down, up, seconds, rounds = (
            float(np.mean([end[name] for end in ends]))
            for name in ("bytes_down", "bytes_up", "seconds", ROUND)
        )
        each = f"{1e3 * seconds / rounds:,.1f}" if rounds else "-"
        traffic = f"{down / 1e6:,.1f}", f"{up / 1e6:,.1f}"
        rows.append((entry.name, *traffic, f"{seconds:,.1f}", each))
    columns = ("run", "MB down", "MB up", "seconds", "ms a round")
    return f"<h2>Cost of a run</h2>\n{_table(columns, rows)}"


def _options(entries: Sequence[Entry]) -> str:
    """Options that differ between runs, and all others below."""
    names = list(dict.fromkeys(name for entry in entries for name in entry.options))
    words = lambda entry, name: _word(entry.options.get(name, "-"))
    rows = {name: [words(entry, name) for entry in entries] for name in names}
    different = [(name, *row) for name, row in rows.items() if len(set(row)) > 1]
    same = [(name, row[0]) for name, row in rows.items() if len(set(row)) == 1]
    found = "<h2>Options</h2>\n"
    if different:
        found += _table(("option", *(entry.name for entry in entries)), different)
    what = "The same in all runs" if different else "All options"
    table = _table(("option", "value"), same)
    return f"{found}<details><summary>{what}</summary>{table}</details>"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _versions(entries: Sequence[Entry]) -> str:
    """Versions of what computed, once for all runs that share them."""
    groups: dict[str, list[str]] = {}
    for entry in entries:
        key = json.dumps(dict(entry.versions), default=str)
        groups.setdefault(key, []).append(entry.name)
    found = "<h2>Versions and machine</h2>\n"
    for key, names in groups.items():
        versions = json.loads(key)
        whose = "All runs" if len(groups) == 1 else ", ".join(names)
        rows = [(name, _word(value)) for name, value in versions.items()]
        table = _table((whose, "version"), rows) if rows else "<p>not recorded</p>"
        found += table
    return found


def _missing(missing: Sequence[str]) -> str:
    if not missing:
        return ""
    items = "\n".join(f"<li>{html.escape(words)}</li>" for words in missing)
    return f'<section class="missing"><h2>Not shown</h2><ul>{items}</ul></section>'
