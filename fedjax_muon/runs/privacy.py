"""Private runs of the command line, as `experiments.privacy` takes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_muon.data import Dataset
from fedjax_muon.experiments import privacy
from fedjax_muon.experiments.privacy import (
    PUBLIC as PUBLIC,
    Secret as Secret,
    published as published,
)
from fedjax_muon.privacy.guarantees import Guarantee
from fedjax_muon.privacy.ledger import Ledger
from fedjax_muon.runs.config import Config, Run


class Private(NamedTuple):
    """A private run, and its guarantee."""

    run: Run
    guarantee: Guarantee

    @property
    def known(self) -> privacy.Private:
        """The same, as `experiments.privacy` takes it."""
        run, (epsilon,) = self.run, self.run.config.epsilon
        about = f"{run.algorithm} at epsilon {epsilon:g} on {run.config.dataset}"
        return privacy.Private(
            self.guarantee,
            epsilon,
            run.algorithm,
            run.label,
            f"{about}, seed {run.seed}",
            run.seed,
        )


def ledger_of(config: Config, dataset: Dataset, unit: str) -> Ledger:
    """The ledger that a config names, or that of its dataset and protected unit."""
    return privacy.ledger_of(dataset, unit, config.ledger)


def check_budget(
    runs: Mapping[Path, Private] | Sequence[Private], dataset: Dataset
) -> None:
    """See `experiments.privacy`."""
    if not isinstance(runs, Mapping):
        runs = {Path(f"new {number}"): run for number, run in enumerate(runs)}
    if runs:
        config = next(iter(runs.values())).run.config
        known = {place: run.known for place, run in runs.items()}
        privacy.check_budget(known, dataset, config.ledger, config.budget)


def state(runs: Mapping[Path, Private], dataset: Dataset, directory: Path) -> list[str]:
    """See `experiments.privacy`."""
    config = next(iter(runs.values())).run.config
    known = {place: run.known for place, run in runs.items()}
    return privacy.state(known, dataset, directory, config.ledger, config.budget)


def secret_of(run: Run, directory: Path) -> Secret | None:
    """The secrets of a private run; None if there is nothing to hide."""
    if not run.config.private or run.config.insecure_fixed_noise:
        return None
    return privacy.secret_in(directory)


def place_of_secrets(run: Run, directory: Path) -> Path:
    """Where a run keeps what may be secret: in its own directory, or elsewhere."""
    secret = secret_of(run, directory)
    return directory if secret is None else secret.folder
