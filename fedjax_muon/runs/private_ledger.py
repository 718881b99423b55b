"""What the runs of a private job cost together with others on the same data set.

The ledger of a data set is a file of the user, apart from all run directories. All runs
of a job are charged before the first one starts. ledger.json in the run directory has
the name under which they are charged, so that a resumed job does not pay again.
"""

import json
import secrets
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from fedjax_muon.data import Dataset
from fedjax_muon.privacy.composition import cost_of
from fedjax_muon.privacy.guarantees import Guarantee
from fedjax_muon.privacy.ledger import Entry, Ledger, fingerprint
from fedjax_muon.runs.config import Private
from fedjax_muon.runs.files import claim

NAME = "ledger.json"  # in a run directory
Guarantees = Mapping[tuple[str, float], Guarantee]  # by method and epsilon


def ledger_of(job: Private, dataset: Dataset) -> Ledger:
    """The ledger that a job names, or that of its data set."""
    mark = fingerprint(dataset)
    default = platformdirs.user_data_path("fedjax_muon") / "ledgers"
    return Ledger(job.ledger or default / f"{mark[:16]}.json", mark)


def entries_of(job: Private, guarantees: Guarantees, name: str) -> list[Entry]:
    """One entry for every run of a job, which is charged under a name."""
    return [
        Entry.now(
            f"{name}/{method}/{epsilon:g}/{seed}",
            f"{method} at epsilon {epsilon:g} on {job.dataset}, seed {seed}",
            cost_of(guarantee.spec),
        )
        for (method, epsilon), guarantee in guarantees.items()
        for seed in job.seeds
    ]


def check_budget(
    job: Private, dataset: Dataset, guarantees: Guarantees, name: str = "new"
) -> None:
    """Raises `ValueError` if a job would exceed its budget, or if it is new and the
    ledger can't be read; charges nothing."""
    asked = name == "new" or job.budget is not None
    if asked and not job.insecure_fixed_noise:
        ledger = ledger_of(job, dataset)
        ledger.check(entries_of(job, guarantees, name), job.delta, job.budget)


def charge(
    job: Private, dataset: Dataset, guarantees: Guarantees, run_dir: Path
) -> str:
    """Charges the runs that are not charged yet; says what all cost together."""
    if job.insecure_fixed_noise:
        return "nothing is charged: noise from the seed gives no privacy"
    ledger = ledger_of(job, dataset)
    about = {"name": secrets.token_hex(8), "ledger": str(ledger.path)}
    claim(run_dir / NAME, json.dumps(about, indent=1) + "\n")
    entries = entries_of(job, guarantees, name_in(run_dir))
    epsilon = ledger.charge(entries, job.delta, job.budget)
    others = len(ledger.entries()) - len(entries)
    void = ", but for training metrics" if job.publish_training_metrics else ""
    return (
        f"all {len(entries)} runs of this job and {others} others on these data, "
        f"composed: ({epsilon:.4g}, {job.delta:g})-differential privacy{void}\n"
        f"  ledger:     {ledger.path}"
    )


def name_in(run_dir: Path) -> str:
    """The name under which a job is charged; "new" if it is not charged yet."""
    path = run_dir / NAME
    if not path.exists():
        return "new"
    try:
        return str(json.loads(path.read_text())["name"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged; delete it to charge the runs of {run_dir} again"
        ) from error
