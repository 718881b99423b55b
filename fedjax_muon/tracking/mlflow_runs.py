"""Records as a run of MLflow."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from fedjax_muon.tracking.tracker import (
    Record,
    Status,
    Tracker,
    flat,
    imported,
    metrics_of,
)
from fedjax_muon.versions import check_installed

TAG = "fedjax_muon.run_id"
LONGEST = 500  # letters of a parameter's value, in all stores
ENDS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


def mlflow(
    uri: str | None = None,
    *,
    experiment: str = "fedjax-muon",
    name: str | None = None,
    run_id: str | None = None,
) -> Tracker:
    """Writes records as a run of MLflow, with the round as the step.

    A run that is continued is found by its tag `fedjax_muon.run_id`; a round that it
    has is not written again. Requires the extra `mlflow`.

    Args:
      uri: Where runs are stored, such as "sqlite:///mlflow.db" or "http://host:5000";
        by default that of the environment variable MLFLOW_TRACKING_URI.
      experiment: Experiment of the run, which is made if it is missing.
      name: What the run is called, by default a random name.
      run_id: Identifies a run that is continued, or a new one; by default random.
    """
    check_installed("mlflow", "the tracker of MLflow")
    key = run_id or secrets.token_hex(4)
    runs: list[_Run] = []

    def on_start(config: Mapping[str, Any]) -> None:
        runs.append(_Run(uri, experiment, name, key, config))

    def on_record(record: Record) -> None:
        runs[-1].add(record)

    def on_end(status: Status) -> None:
        run = runs.pop()
        run.client.set_terminated(run.id, ENDS[status])

    return Tracker("MLflow", on_start, on_record, on_end)


class _Run:
    """A run in a store."""

    def __init__(
        self,
        uri: str | None,
        experiment: str,
        name: str | None,
        key: str,
        config: Mapping[str, Any],
    ):
        self.entities = imported("mlflow.entities")
        self.client = imported("mlflow").MlflowClient(uri)
        place = self._experiment(experiment)
        found = self.client.search_runs([place], f"tags.`{TAG}` = '{key}'")
        if found:
            self.id = found[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
        else:
            self.id = self.client.create_run(
                place, run_name=name, tags={TAG: key}
            ).info.run_id
            values = {key: str(value) for key, value in flat(config).items()}
            params = [
                self.entities.Param(key, value[:LONGEST])
                for key, value in values.items()
            ]
            self.client.log_batch(self.id, params=params)
        self.rounds: set[int] | None = None

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            error = imported("mlflow.exceptions").MlflowException
            try:
                return self.client.create_experiment(name)
            except error:  # another process has made it meanwhile
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        return found.experiment_id

    def add(self, record: Record) -> None:
        """Adds the numbers of a record, unless the run has its round."""
        values = metrics_of(record)
        if self.rounds is None:  # the last metric is written last
            points = self.client.get_metric_history(self.id, list(values)[-1])
            self.rounds = {point.step for point in points}
        if record["round"] in self.rounds:
            return
        now = time.time_ns() // 10**6
        metrics = [
            self.entities.Metric(name, value, now, record["round"])
            for name, value in values.items()
        ]
        self.client.log_batch(self.id, metrics=metrics)
        self.rounds.add(record["round"])
