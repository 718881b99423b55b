"""The command `fedjax-muon deploy`."""

import dataclasses
import os
import shlex
from pathlib import Path
from typing import Any

from fedjax_muon.reporting import metrics_csv
from fedjax_muon.runs import flower_app, flower_engine
from fedjax_muon.runs.build import parts_of
from fedjax_muon.runs.config import Run
from fedjax_muon.runs.directory import METRICS, resumable
from fedjax_muon.runs.errors import refusing
from fedjax_muon.runs.own_code import is_own
from fedjax_muon.runs.pretrained import dataset_of
from fedjax_muon.versions import check_installed

ENGINE = "flower"  # directory of Flower's files and logs


def deploy(args: Any) -> None:
    """`fedjax-muon deploy`."""
    place: Path = args.directory
    with refusing():
        if args.local is not None:
            check_installed("flwr", "deploy --local")
        run = _run_of(args)
        flower_app.check(run)
        dataset = dataset_of(run.config)
        largest = args.largest_client
        # the clients of a server need not be parts of its own examples
        alone = args.local is None and largest is not None
        parts = [] if alone else parts_of(run.config, dataset, run.seed)
        facts = flower_app.facts_of(dataset, largest or max(map(len, parts)))
        flower_app.federation_of(run, facts)
        waiting = {"deadline": args.deadline, "patience": args.patience}
        flower_app.write_app(place, run, facts, **waiting)
    if args.local is None:
        words = shlex.join(["flwr", "run", str(place), "--stream"])
        print(f"wrote a Flower app; run it by: {words}")
        return
    with refusing():
        files = flower_app.save_examples(place, dataset, parts)
    _run(place, run, files)
    with refusing():
        path = place / METRICS
        rows = metrics_csv.read(path) if path.exists() else {"round": [-1]}
        if rows["round"][-1] < run.config.rounds:
            raise ValueError(
                f"the run ended early; Flower's logs are in {place / ENGINE}"
            )
    if (place / flower_app.MISSING).exists():
        print(f"not all nodes answered: {place / flower_app.MISSING}")
    print(f"metrics in {place}")


def _run_of(args: Any) -> Run:
    config = args.config
    number = config.num_clients if args.local is None else args.local
    size = min(config.cohort_size, number)
    config = dataclasses.replace(config, num_clients=number, cohort_size=size)
    return Run(args.algorithm, dataclasses.asdict(args.hyper), args.seed, config)


def _run(place: Path, run: Run, files: list[Path]) -> None:
    """Runs the app on a SuperNode for every file of examples."""
    code = " ".join(filter(is_own, (run.algorithm, run.config.model)))
    configs = [
        {"partition-id": client, "data": str(path.resolve()), "own-code": code}
        for client, path in enumerate(files)
    ]
    here = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}  # seconds, by default 1
    if code:
        variables["PYTHONPATH"] = os.pathsep.join(here)
    engine = flower_engine.engine(place / ENGINE, configs, variables)
    with resumable(place, "the same command") as stop, engine as running:
        running.run(place, {"output": str(place.resolve())}, stop)
