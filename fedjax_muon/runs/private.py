"""What private runs promise, what they cost together, and where their secrets are.

privacy.txt    the statement of every method at every epsilon, and what all cost
ledger.json    in the directory of each run: the name under which it is charged

All runs of a job are charged before the first one starts. The ledger of a dataset is a
file of the user, apart from all run directories. Beside it, only for its owner, lie

LEDGER.secret/NAME/checkpoints   of a run that is not finished

So everything in a run directory may be published. The noise is drawn anew in every
call, and no file has it. A state is saved, and the ledger is told its round, before
anything of it is released. So no round is released twice, whatever is copied, restored
or deleted: an older state is refused by the round in the ledger.
"""

import collections
import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import platformdirs

from fedjax_muon.data import Dataset
from fedjax_muon.files import claim, reason, write
from fedjax_muon.privacy.guarantees import Guarantee
from fedjax_muon.privacy.ledger import (
    Entry,
    Ledger,
    composed_epsilon,
    cost_of,
    divisions_of,
    fingerprint,
)
from fedjax_muon.simulation.checkpoint import check_path

STATEMENT, CHARGED, SECRET = "privacy.txt", "ledger.json", ".secret"
ASSUMED = (
    "  assumed:    test examples, and the scaling, the categories of tables and the\n"
    "              share of positives of the training examples, are public\n"
    "  assumed:    neither hyperparameters nor noise were chosen by results of other\n"
    "              runs on these data"
)
# leaves of a state that may be published
PUBLIC = (".training.server.params", ".training.agents.params", ".training.index")


class Private(NamedTuple):
    """A private run, before it starts."""

    guarantee: Guarantee
    epsilon: float
    method: str  # whose statement of the least epsilon is shown
    label: str  # the method at this epsilon, in statements
    about: str  # what runs, in the ledger
    seed: int
    clients: str  # as in `Entry`


def ledger_of(dataset: Dataset, unit: str, path: Path | None = None) -> Ledger:
    """The ledger at a path; by default that of the dataset and its protected unit."""
    mark = fingerprint(dataset)
    name = f"{mark[:16]}-{unit.split()[1]}.json"  # of one client, or of one example
    try:
        return Ledger(
            path or platformdirs.user_data_path("fedjax_muon") / "ledgers" / name, mark
        )
    except (RuntimeError, KeyError) as error:
        raise ValueError(
            f"there is no home for the ledger ({reason(error)}); give --ledger FILE"
        ) from error


def _ledger_of(
    runs: Mapping[Path, Private], dataset: Dataset, path: Path | None
) -> tuple[float, Ledger]:
    """The delta that all runs of a job share, and their ledger."""
    spec = next(iter(runs.values())).guarantee.spec
    return spec.delta, ledger_of(dataset, cost_of(spec).unit, path)


def check_budget(
    runs: Mapping[Path, Private] | Sequence[Private],
    dataset: Dataset,
    path: Path | None = None,
    budget: float | None = None,
) -> None:
    """Raises `ValueError` if runs would exceed their budget, or if the ledger can't be
    read; charges nothing.

    Args:
      path: The ledger's file; by default, one for all private runs on the dataset.
    """
    if not isinstance(runs, Mapping):
        runs = {Path(f"new {number}"): run for number, run in enumerate(runs)}
    if not runs:
        return
    delta, ledger = _ledger_of(runs, dataset, path)
    for place in runs:
        known = _record(place).get("ledger", str(ledger.path))
        if known != str(ledger.path):
            raise ValueError(
                f"{place} is charged to {known}, not to {ledger.path}; if it is yours, "
                f"add --ledger {known}"
            )
    ledger.check(_entries(runs), delta, budget)
    secret = ledger.path.with_suffix(SECRET)
    check_path(secret)
    if secret == ledger.path:
        raise ValueError(f"{secret} is where secrets are kept; choose another --ledger")
    try:
        secret.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{secret} can't be made ({error.strerror}); choose another --ledger"
        ) from error
    for path in (secret.parent, secret, ledger.path):
        if path.exists() and not os.access(path, os.W_OK):
            raise ValueError(f"{path} can't be written; choose another --ledger")


def charge(
    runs: Mapping[Path, Private],
    dataset: Dataset,
    path: Path | None = None,
    budget: float | None = None,
) -> str:
    """Charges the runs that are not charged yet; says what all cost together."""
    delta, ledger = _ledger_of(runs, dataset, path)
    for place in runs:
        about = {"name": secrets.token_hex(8), "ledger": str(ledger.path)}
        claim(place / CHARGED, json.dumps(about, indent=1) + "\n")
    epsilon = ledger.charge(_entries(runs), delta, budget)
    entries = ledger.entries()
    promise = f"({epsilon:.4g}, {delta:g})-differential privacy"
    void = collections.Counter(entry.void for entry in entries if entry.void)
    if void:
        promise = "NO differential privacy together"
        for reason, count in void.items():
            promise += f"\n  no guarantee: of {count} of them, {reason}"
    divisions = divisions_of(entries)
    if len(divisions) > 1 and not void:
        costs = [[entry.cost for entry in each] for each in divisions]
        most = max(composed_epsilon(each, delta) for each in costs)
        promise = (
            "NO differential privacy together\n"
            f"  no guarantee: they divide the examples among clients in {len(costs)} "
            "ways, and\n"
            "              a client of one is part of several clients of another\n"
            f"  each way:   by itself, at most ({most:.4g}, {delta:g})"
        )
    others = len(entries) - len(runs)
    return (
        f"{'the run' if len(runs) == 1 else f'all {len(runs)} runs'} of this job and "
        f"{others} {'other' if others == 1 else 'others'} that the ledger has seen, "
        f"composed: {promise}\n"
        f"  ledger:     {ledger.path}"
    )


def _entries(runs: Mapping[Path, Private]) -> list[Entry]:
    """The entries of runs, by the names under which they are charged."""
    return [
        Entry.now(
            _record(place).get("name", str(place)),
            run.about,
            cost_of(run.guarantee.spec),
            _void(run),
            run.clients,
        )
        for place, run in runs.items()
    ]


def _void(run: Private) -> str:
    """Why a run has no guarantee; empty if it has one."""
    if math.isinf(run.epsilon):
        return "there was no noise"
    if run.guarantee.fixed_noise:
        return "the noise was drawn from the seed"
    return "training metrics were published" if run.guarantee.training_metrics else ""


def _record(directory: Path) -> dict[str, str]:
    """What ledger.json of a run says; empty if it is not charged yet."""
    path = directory / CHARGED
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text("utf-8"))
        return {name: str(record[name]) for name in ("name", "ledger")}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged; start the run again in another directory, which the "
            "ledger charges again"
        ) from error


def is_charged(directory: Path) -> bool:
    """Whether a private run has a name in a ledger."""
    return bool(_record(directory))


def state(
    runs: Mapping[Path, Private],
    dataset: Dataset,
    directory: Path,
    path: Path | None = None,
    budget: float | None = None,
) -> list[str]:
    """Charges runs and writes their statements; returns those of the least epsilons."""
    total = charge(runs, dataset, path, budget)
    statements: dict[str, str] = {}
    shown: dict[str, str] = {}
    for run in sorted(runs.values(), key=lambda each: each.epsilon):
        text = f"{run.label}\n{run.guarantee.statement()}\n{ASSUMED}\n"
        if run.label not in statements:
            statements[run.label] = text
        elif statements[run.label] != text:  # of a seed with other sizes of clients
            statements[f"{run.label}, seed {run.seed}"] = f"seed {run.seed}, {text}"
        shown.setdefault(run.method, text)
    write(directory / STATEMENT, "\n\n".join([*statements.values(), total]) + "\n")
    return [*shown.values(), total]


class Secret(NamedTuple):
    """What a private run keeps from its directory, and all copies of it share."""

    folder: Path
    ledger: Ledger
    name: str  # of the run in the ledger


def secret_of(guarantee: Guarantee | None, directory: Path) -> Secret | None:
    """The secrets of a private run; None if there is nothing to hide."""
    if guarantee is None or guarantee.fixed_noise:
        return None
    return secret_in(directory)


def secret_in(directory: Path) -> Secret:
    """The secrets of the private run in a directory."""
    record = _record(directory)
    if not record:
        raise ValueError(f"{directory} is not charged yet; its job charges it")
    ledger = Ledger(record["ledger"])
    folder = ledger.path.with_suffix(SECRET) / record["name"]
    return Secret(folder, ledger, record["name"])


def published(state: Any) -> Any:
    """A state of which only the parameters and the round are left; the rest is zero."""

    def leaf(path: Any, value: Any) -> Any:
        if jax.tree_util.keystr(path).startswith(PUBLIC):
            return value
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            data = jnp.zeros_like(jax.random.key_data(value))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
        return jnp.zeros_like(value)

    return jax.tree_util.tree_map_with_path(leaf, state)
