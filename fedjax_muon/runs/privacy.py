"""What private runs promise, what they cost together, and where their secrets are.

privacy.txt    the statement of every method at every epsilon, and what all cost
ledger.json    in the directory of each run: the name under which it is charged

All runs of a job are charged before the first one starts. The ledger of a dataset is a
file of the user, apart from all run directories. Beside it lie the checkpoints of
private runs that are not finished, with the keys of their noise, which only their
owner can read. So everything in a run directory may be published.
"""

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import platformdirs

from fedjax_muon.data import Dataset
from fedjax_muon.privacy.composition import cost_of
from fedjax_muon.privacy.guarantees import Guarantee
from fedjax_muon.privacy.ledger import Entry, Ledger, fingerprint
from fedjax_muon.runs.config import Config, Run
from fedjax_muon.runs.files import claim, write

STATEMENT, CHARGED = "privacy.txt", "ledger.json"
ASSUMED = (
    "  assumed:    test examples, and the scaling and the share of positives of the\n"
    "              training examples, are public\n"
    "  assumed:    neither hyper-parameters nor noise were chosen by results of other\n"
    "              runs on these data"
)
# leaves of a state that may be published
PUBLIC = (".training.server.params", ".training.agents.params", ".training.index")


class Private(NamedTuple):
    """A private run, and its guarantee."""

    run: Run
    guarantee: Guarantee


def ledger_of(config: Config, dataset: Dataset, unit: str) -> Ledger:
    """The ledger that a config names, or that of its dataset and protected unit."""
    mark = fingerprint(dataset)
    default = platformdirs.user_data_path("fedjax_muon") / "ledgers"
    name = f"{mark[:16]}-{unit.split()[1]}.json"  # of one client, or of one example
    return Ledger(config.ledger or default / name, mark)


def _ledger_of(runs: Mapping[Path, Private], dataset: Dataset) -> Ledger:
    run, guarantee = next(iter(runs.values()))
    return ledger_of(run.config, dataset, cost_of(guarantee.spec).unit)


def check_budget(
    runs: Mapping[Path, Private] | Sequence[Private], dataset: Dataset
) -> None:
    """Raises `ValueError` if runs would exceed their budget, or if the ledger can't be
    read; charges nothing.

    Args:
      runs: By their directories, of which some may be charged; or new ones.
    """
    if not isinstance(runs, Mapping):
        runs = {Path(f"new {number}"): run for number, run in enumerate(runs)}
    charged = _charged(runs)
    if charged:
        config = next(iter(charged.values())).run.config
        ledger = _ledger_of(charged, dataset)
        ledger.check(_entries(charged), config.delta, config.budget)
        folder = ledger.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise ValueError(f"no ledger can be written in {folder}; choose --ledger")


def charge(runs: Mapping[Path, Private], dataset: Dataset) -> str:
    """Charges the runs that are not charged yet; says what all cost together.

    Args:
      runs: By their directories, which exist.
    """
    charged = _charged(runs)
    if not charged:
        return "nothing is charged: noise from the seed gives no privacy"
    config = next(iter(charged.values())).run.config
    ledger = _ledger_of(charged, dataset)
    for place in charged:
        about = {"name": secrets.token_hex(8), "ledger": str(ledger.path)}
        claim(place / CHARGED, json.dumps(about, indent=1) + "\n")
    epsilon = ledger.charge(_entries(charged), config.delta, config.budget)
    others = len(ledger.entries()) - len(charged)
    void = ", but for training metrics" if config.publish_training_metrics else ""
    return (
        f"all {len(charged)} runs of this job and {others} others on these data, "
        f"composed: ({epsilon:.4g}, {config.delta:g})-differential privacy{void}\n"
        f"  ledger:     {ledger.path}"
    )


def _charged(runs: Mapping[Path, Private]) -> dict[Path, Private]:
    return {
        place: private
        for place, private in runs.items()
        if not private.run.config.insecure_fixed_noise
    }


def _entries(runs: Mapping[Path, Private]) -> list[Entry]:
    """The entries of runs, by the names under which they are charged."""
    return [
        Entry.now(
            _record(place).get("name", str(place)),
            f"{run.algorithm} at epsilon {run.config.epsilon[0]:g} on "
            f"{run.config.dataset}, seed {run.seed}",
            cost_of(guarantee.spec),
        )
        for place, (run, guarantee) in runs.items()
    ]


def _record(directory: Path) -> dict[str, str]:
    """What ledger.json of a run says; empty if it is not charged yet."""
    path = directory / CHARGED
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
        return {name: str(found[name]) for name in ("name", "ledger")}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged; start the run again in another directory, which is "
            "charged again"
        ) from error


def state(runs: Mapping[Path, Private], dataset: Dataset, directory: Path) -> list[str]:
    """Charges runs, writes their statements, and returns those of the least epsilons.

    Args:
      runs: By their directories.
      directory: Of the job, where the statements are written.
    """
    total = charge(runs, dataset)
    statements: dict[str, str] = {}
    shown: dict[str, str] = {}
    for run, guarantee in sorted(
        runs.values(), key=lambda each: each.run.config.epsilon
    ):
        text = f"{run.label}\n{guarantee.statement()}\n{ASSUMED}\n"
        if run.label not in statements:
            statements[run.label] = text
        elif statements[run.label] != text:  # of a seed with other sizes of clients
            statements[f"{run.label}, seed {run.seed}"] = f"seed {run.seed}, {text}"
        shown.setdefault(run.algorithm, text)
    write(directory / STATEMENT, "\n\n".join([*statements.values(), total]) + "\n")
    return [*shown.values(), total]


def secret_of(run: Run, directory: Path) -> Path | None:
    """Where the checkpoints of a private run lie until it is finished.

    None: in its own directory, since there is nothing to hide.
    """
    if not run.config.private or run.config.insecure_fixed_noise:
        return None
    record = _record(directory)
    if not record:
        raise ValueError(f"{directory} is not charged yet; its job charges it")
    return Path(record["ledger"]).with_suffix(".secret") / record["name"]


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
