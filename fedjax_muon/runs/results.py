"""What `train`, `compare` and `sweep` return, and `load_run` reads.

A run in a directory, its comparison and its sweep are the same objects as those of the
call, but for what needs your code: the simulation, and the method of a sweep.
"""

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import networkx as nx
import numpy as np

from fedjax_muon.core import with_numbers
from fedjax_muon.files import read_text, reading, write
from fedjax_muon.runs import fairness, metrics_csv, plots, summary, tables
from fedjax_muon.runs.about import ABOUT
from fedjax_muon.runs.cells import read_points
from fedjax_muon.runs.directory import CHECKPOINTS, METRICS
from fedjax_muon.runs.identity import IDENTITY, words_of
from fedjax_muon.runs.methods import folder_of
from fedjax_muon.runs.predicting import Predictions, TrainedModel, module_of
from fedjax_muon.runs.simulate import Method
from fedjax_muon.runs.style import Looks
from fedjax_muon.runs.summary import History, Point
from fedjax_muon.simulation import checkpoint
from fedjax_muon.simulation.simulation import Simulation
from fedjax_muon.simulation.training import Record
from fedjax_muon.versions import check_installed

DRAWN = 10  # methods of a sweep whose curves are drawn, the best
AGAIN = "start again in another directory"
COMPARISON, SWEPT = "comparison.json", "swept.json"
TUNING = "tuning"  # the folder of the sweeps that chose numbers of a comparison


def columns_of(records: Sequence[Record]) -> History:
    """Records as columns."""
    return {name: np.array([row[name] for row in records]) for name in records[0]}


def _rows_of(columns: History) -> list[Record]:
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def frame_of(rows: Sequence[Record]) -> Any:
    """Rows as a `pandas.DataFrame`."""
    check_installed("pandas", "frame")
    import pandas  # in the extra `pandas`

    return pandas.DataFrame(rows)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A run: its records, and its last state."""

    records: list[Record]
    last: Callable[[], Any]  # reads the last state
    directory: Path | None = None
    simulation: Simulation | None = None  # None of a run that was loaded
    about: Mapping[str, Any] | None = None  # likewise
    module: nn.Module | None = None  # whose parameters are trained; likewise

    @functools.cached_property
    def state(self) -> Any:
        """The last state, with `params`; of a loaded run, in dictionaries of arrays."""
        return self.last()

    @property
    def params(self) -> Any:
        """The last parameters; of a loaded run, in dictionaries of arrays."""
        if self.simulation is not None:
            return self.state.params
        training = self.state["training"]
        return training["server" if "server" in training else "agents"]["params"]

    @property
    def rows(self) -> list[Record]:
        """The records, as comparisons and sweeps have them."""
        return self.records

    @property
    def columns(self) -> History:
        """The records as columns."""
        return columns_of(self.records)

    def frame(self) -> Any:
        """The rows as a `pandas.DataFrame`; requires pandas."""
        return frame_of(self.rows)

    @property
    def words(self) -> dict[str, str]:
        """What the run computes, in words."""
        return words_of(self._place)

    @property
    def seed(self) -> int:
        """The seed of the run."""
        with reading(self._place / IDENTITY, "the words of a run", AGAIN):
            return int(self.words["seed"])

    @property
    def metadata(self) -> dict[str, Any]:
        """What a program needs to use the parameters."""
        if self.about is not None:
            return {**self.about, "round": self.records[-1]["round"]}
        with reading(self._place / ABOUT, "what a run has trained", "train it again"):
            about = json.loads(read_text(self._place / ABOUT))
            return {**about, "round": self.records[-1]["round"]}

    @functools.cached_property
    def model(self) -> TrainedModel:
        """The last parameters with what is needed to use them."""
        about = self.metadata
        if about.get("personal"):
            raise ValueError(
                "clients of this run keep parameters of their own, which a saved model "
                "lacks; read those of a client in result.state"
            )
        return TrainedModel(self.params, about, module_of(about, self.module))

    def predict(self, x: Any) -> Predictions:
        """Predicts the classes of examples, see `TrainedModel.predict`."""
        return self.model.predict(x)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Writes the model to a file that `load_model` reads.

        Args:
          path: A name that ends in `.safetensors`.
        """
        return self.model.save(path, overwrite=overwrite)

    @property
    def _place(self) -> Path:
        if self.directory is None:
            raise ValueError("the run has no directory; give one to train")
        return self.directory

    def __str__(self) -> str:
        columns, last = self.columns, self.records[-1]
        time = last.get("virtual_seconds")
        virtual = "" if time is None else f" and {time:.1f} virtual seconds"
        score, column = summary.score_in(columns), summary.score_column(columns)
        rounds = f"after {last['round']} rounds{virtual}"
        lines = [f"test {score.words} {last[column]:.4f} {rounds}"]
        if "personal_accuracy_mean" in last:
            mean = last["personal_accuracy_mean"]
            lines.append(
                f"mean accuracy of clients with their own parameters {mean:.4f}"
            )
        return "\n".join(filter(None, [*lines, summary.risen_loss(columns)]))


class Swept(NamedTuple):
    """All points of a grid of one method."""

    label: str  # of the method, in tables
    method: Method | None  # None of a sweep that was loaded
    points: list[Point]
    title: str
    seeds: int
    score: str  # what points are ranked by, such as "accuracy"

    @property
    def rows(self) -> list[Record]:
        """All evaluations at all points, each with its values and its seed."""
        runs = (run for each in self.points for run in (*each.runs, *each.lost))
        return [{"method": self.label, **row} for run in runs for row in _rows_of(run)]

    def frame(self) -> Any:
        """The rows as a `pandas.DataFrame`; requires pandas."""
        return frame_of(self.rows)

    @property
    def best(self) -> Point | None:
        """The best point by validation; None if all diverged."""
        return summary.best(self.points)

    @property
    def chosen(self) -> dict[str, float]:
        """The values of the best point; the smallest ones if all diverged."""
        point, names = self.best, self.points[0].hyper
        if point is not None:
            return dict(point.hyper)
        return {name: min(each.hyper[name] for each in self.points) for name in names}

    @property
    def best_method(self) -> Method:
        """The method with these values."""
        if self.method is None:
            raise ValueError(
                f"a sweep that was loaded has no method; give {self.chosen} to yours"
            )
        return with_numbers(self.method, self.chosen)

    @property
    def doubts(self) -> str:
        """What speaks against the best point: its grid ends there, or mostly diverged;
        empty if nothing does."""
        point = self.best
        edge = point is None or summary.edges(self.points, point)
        words = [tables.EDGE_MARK] if edge else []
        diverged = sum(each.diverged > 0 for each in self.points)
        if 2 * diverged > len(self.points):
            words.append(f"{diverged} of {len(self.points)} diverged")
        return f"({', '.join(words)})" if words else ""

    def __str__(self) -> str:
        return str(self.table())

    def table(self) -> tables.Cells:
        """The best point, with its scores after the last round."""
        return table_of({self.label: self})

    def write(self, directory: str | Path) -> tables.Cells:
        """Writes tables and figures; returns the table."""
        return report_of({self.label: self}, Path(directory))

    def note(self, directory: Path) -> None:
        """Writes what `load_run` needs beside the cells."""
        names = ("label", "title", "seeds", "score")
        about = {name: getattr(self, name) for name in names}
        write(directory / SWEPT, json.dumps(about) + "\n")


class Sweeps(dict[str, Swept]):
    """The sweeps of methods, by the names that they have in tables."""

    def __str__(self) -> str:
        return str(self.table())

    def table(self) -> tables.Cells:
        """The best point of every method, with its scores after the last round."""
        return table_of(self)

    @property
    def diverged(self) -> bool:
        """Whether all points of all methods did."""
        return all(each.best is None for each in self.values())

    @property
    def rows(self) -> list[Record]:
        """All evaluations of all methods, each with its values and its seed."""
        return [row for each in self.values() for row in each.rows]

    def frame(self) -> Any:
        """The rows as a `pandas.DataFrame`; requires pandas."""
        return frame_of(self.rows)


def table_of(sweeps: Mapping[str, Swept]) -> tables.Cells:
    """The best points of several sweeps on one problem, by the labels of methods."""
    first, grids = next(iter(sweeps.values())), _grids(sweeps)
    chosen, ranked, target = _ranked(grids)
    edges = _edges(grids, chosen)
    rows = [(row, chosen[row.method], edges[row.method]) for row in ranked]
    diverged = [method for method in grids if method not in chosen]
    lost = {}
    for name, points in grids.items():
        number = sum(point.diverged > 0 for point in points)
        if number:
            lost[name] = f"{number} of {len(points)} diverged"
    about = first.title, first.seeds, first.score
    return tables.swept(rows, diverged, target, *about, lost)


def report_of(sweeps: Mapping[str, Swept], directory: Path) -> tables.Cells:
    """Writes tables and figures of several sweeps; returns that of `table_of`."""
    first, grids = next(iter(sweeps.values())), _grids(sweeps)
    title, score = first.title, first.score
    chosen, ranked, target = _ranked(grids)
    kind = summary.score_named(score).metric
    _write_points(grids, chosen, directory / "points.csv", kind)
    plots.grids(grids, directory / "grids.png", title=title)
    if chosen:
        path = directory / "ranking.png"
        if first.seeds > 1:  # dots without intervals would suggest an order
            plots.ranking(ranked, path, title=title, score=score, seeds=first.seeds)
        drawn = {row.method: chosen[row.method].runs for row in ranked[:DRAWN]}
        plots.curves(drawn, directory / "curves.png", title=title, target=target)
    table = table_of(sweeps)
    (directory / "summary.md").write_text(tables.markdown(table), "utf-8")
    edges = _edges(grids, chosen).items()
    about = {
        "hyper": {name: tables.hyper_text(point) for name, point in chosen.items()},
        "edge": {name: " ".join(at_edge) for name, at_edge in edges},
    }
    status = {name: "diverged" for name in grids if name not in chosen}
    path = directory / "summary.csv"
    summary.write(ranked, path, diverged=status, columns=about)
    return table


def _grids(sweeps: Mapping[str, Swept]) -> dict[str, list[Point]]:
    return {label: each.points for label, each in sweeps.items()}


def _ranked(
    grids: Mapping[str, Sequence[Point]],
) -> tuple[dict[str, Point], list[summary.Summary], float]:
    """The best points by method, their summaries from the best on, and the target."""
    best = {method: summary.best(points) for method, points in grids.items()}
    chosen = {method: point for method, point in best.items() if point is not None}
    if not chosen:
        return {}, [], np.nan
    runs = {method: point.runs for method, point in chosen.items()}
    target = summary.target_score(runs)
    summaries = summary.summarize(runs, target)
    sign = summary.score_in(next(iter(runs.values()))[0]).sign
    return chosen, sorted(summaries, key=lambda row: -sign * row.score_mean), target


def _edges(
    grids: Mapping[str, Sequence[Point]], chosen: Mapping[str, Point]
) -> dict[str, list[str]]:
    return {name: summary.edges(grids[name], p) for name, p in chosen.items()}


def _write_points(
    grids: Mapping[str, Sequence[Point]],
    best: Mapping[str, Point],
    path: Path,
    kind: str,
) -> None:
    columns = (f"validation_{kind}", f"test_{kind}", "train_loss")
    rows = []
    for method, points in grids.items():
        chosen = best.get(method)
        for point in points:
            row: dict[str, Any] = {
                "method": method,
                "hyper": tables.hyper_text(point),
                "status": "diverged" if point.diverged else "finished",
                "diverged_seeds": point.diverged,
                "best": int(chosen is not None and point.hyper == chosen.hyper),
            }
            for column in columns:
                mean, std = ("", "") if point.diverged else point.last(column)
                row |= {f"{column}_mean": mean, f"{column}_std": std}
            rows.append(row)
    path.write_text(metrics_csv.text_of(rows, header=True), "utf-8", newline="")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The results of methods, by the names that they have in tables."""

    title: str
    records: dict[str, dict[int, list[Record]]]  # by name and seed
    diverged: dict[str, str]  # where, such as "round 5"
    rates: dict[str, str]  # learning rates, in words
    sweeps: dict[str, Swept]  # that chose numbers
    along: dict[str, tuple[str, dict[str, Any]]]  # of rows: method, and values on axes
    score: str  # what methods are ranked by, such as "accuracy"
    seeds: int
    graph: nx.Graph | None = None  # of agents of the first seed
    directory: Path | None = None

    @functools.cached_property
    def runs(self) -> dict[str, list[History]]:
        """Columns by name, one of each seed, without methods that diverged."""
        ended = {k: v for k, v in self.records.items() if k not in self.diverged}
        return {name: [*map(columns_of, of.values())] for name, of in ended.items()}

    @property
    def rows(self) -> list[Record]:
        """All evaluations, each with its method, its values on axes, and its seed."""
        found = list[Record]()
        for label, (method, values) in self.along.items():
            for seed, records in self.records.get(label, {}).items():
                about = {"method": method, **values, "seed": seed}
                found += [{**about, **row} for row in records]
        return found

    def frame(self) -> Any:
        """The rows as a `pandas.DataFrame`; requires pandas."""
        return frame_of(self.rows)

    def __str__(self) -> str:
        return str(self.table())

    def table(self) -> tables.Cells:
        """The scores after the last round, over seeds."""
        summary.check_rounds(self.runs)
        target = self._target
        summaries = summary.summarize(self.runs, target)
        numbers = target, self.title, self.seeds, self.score
        rates, diverged = self.rates, self.diverged
        return tables.compared(summaries, *numbers, rates=rates, diverged=diverged)

    def all_tables(self) -> list[tables.Cells]:
        """The table, and the accuracies of clients that have test examples."""
        own = self._of_clients()
        return [self.table(), *([fairness.table(own, "Clients")] if own else [])]

    def _of_clients(self) -> dict[str, list[History]]:
        name = fairness.PREFIX + "min"
        return {k: runs for k, runs in self.runs.items() if name in runs[0]}

    @property
    def _target(self) -> float:
        return summary.target_score(self.runs) if self.runs else np.nan

    def plot(self, path: str | Path, *, looks: Looks | None = None) -> None:
        """Draws the curves of all methods.

        Args:
          looks: For names of methods in the table, their names in figures, or pairs
            of such a name and a color, such as `{"mine": ("Ours", "black")}`.
        """
        lost = "".join(f"; {k} diverged ({at})" for k, at in self.diverged.items())
        target, title = self._target, self.title
        how: Any = {"title": title, "target": target, "note": lost, "looks": looks}
        plots.curves(self.runs, Path(path), **how)

    def write(self, directory: str | Path) -> list[tables.Cells]:
        """Writes the summary and its figures; returns its tables."""
        place, shown = Path(directory), self.all_tables()
        summaries = summary.summarize(self.runs, self._target)
        status = {name: f"diverged ({at})" for name, at in self.diverged.items()}
        columns = {"lr": self.rates}
        path = place / "summary.csv"
        summary.write(summaries, path, diverged=status, columns=columns)
        if self.graph is not None:
            plots.graph(self.graph, place / "graph.png", title="graph of the agents")
        if self.runs:
            self.plot(place / "comparison.png")
            if own := self._of_clients():
                fairness.figure(own, place / "fairness.png", title=self.title)
        for axis, lines in self._axes().items():
            name = "utility" if axis == "epsilon" else axis
            path, title = place / f"{name}.png", self.title
            plots.along(lines, path, axis=axis, title=title, score=self.score)
        write(place / "summary.tex", "\n".join(map(tables.latex, shown)))
        self.note(place)
        return shown

    def note(self, directory: Path) -> None:
        """Writes what `load_run` needs beside the runs."""
        names = ("title", "diverged", "rates", "along", "score", "seeds")
        about = {name: getattr(self, name) for name in names}
        about["graph"] = self.graph and nx.to_dict_of_lists(self.graph)
        write(directory / COMPARISON, json.dumps(about, indent=1) + "\n")

    def _axes(self) -> dict[str, dict[str, dict[Any, list[float]]]]:
        """By axis, the scores of seeds by method and value; axes of one value have no
        figure, and values of other axes make lines of their own."""
        found: dict[str, dict[str, dict[Any, list[float]]]] = {}
        for label, runs in self.runs.items():
            method, values = self.along[label]
            scores = [float(run[summary.score_column(run)][-1]) for run in runs]
            for axis, value in values.items():
                others = [f"{k}={v}" for k, v in values.items() if k != axis]
                name = ", ".join([method, *others])
                lines = found.setdefault(axis, {})
                lines.setdefault(name, {})[value] = scores
        several = lambda lines: len({v for line in lines.values() for v in line}) > 1
        return {axis: lines for axis, lines in found.items() if several(lines)}


def read_run(directory: Path) -> Trained:
    """The run in a directory."""
    metrics = directory / METRICS
    if not metrics.exists():
        raise ValueError(f"{metrics} does not exist yet; train first")
    last = functools.partial(_newest_state, directory)
    return Trained(metrics_csv.rows_of(metrics), last, directory)


def _newest_state(directory: Path) -> Any:
    """The state in the newest checkpoint, in dictionaries of arrays."""
    place = directory / CHECKPOINTS
    if not any(place.glob("[0-9]*")):
        raise ValueError(f"{directory} has no checkpoint yet; train first")
    with checkpoint.open_checkpoints(place) as checkpoints:
        return checkpoint.without_template(checkpoints)


def read_comparison(directory: Path) -> Comparison:
    """The comparison in a directory, with all runs so far."""
    with reading(directory / COMPARISON, "a comparison", AGAIN):
        about = json.loads(read_text(directory / COMPARISON))
        records = dict[str, dict[int, list[Record]]]()
        for label in about["along"]:
            runs = (directory / folder_of(label)).glob(f"seed*/{METRICS}")
            found = {int(path.parent.name.removeprefix("seed")): path for path in runs}
            if found:
                records[label] = {
                    seed: metrics_csv.rows_of(found[seed]) for seed in sorted(found)
                }
        graph = about.pop("graph")
        if graph is not None:
            graph = nx.Graph({int(node): linked for node, linked in graph.items()})
        sweeps = read_sweeps(directory / TUNING)
        along = {label: tuple(each) for label, each in about.pop("along").items()}
        made = {"sweeps": sweeps, "along": along, "graph": graph, **about}
        return Comparison(records=records, directory=directory, **made)


def read_sweeps(directory: Path) -> Sweeps:
    """The sweeps in the folders of a directory, with all cells so far.

    Sweeps with the same label are merged, such as parts from several machines.
    """
    places: dict[str, list[Path]] = {}
    seeds: Counter[str] = Counter()
    about: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.rglob(SWEPT)):
        with reading(path, "a sweep", AGAIN):
            noted = json.loads(read_text(path))
            label = noted["label"]
            places.setdefault(label, []).append(path.parent)
            seeds[label] += noted["seeds"]
            about[label] = {"title": str(noted["title"]), "score": str(noted["score"])}
    made = Sweeps()
    for label, folders in places.items():
        points = read_points(*folders)
        made[label] = Swept(label, None, points, seeds=seeds[label], **about[label])
    return made
