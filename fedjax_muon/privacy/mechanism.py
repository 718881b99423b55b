"""What a private simulation keeps to: rounds, secret noise, and what is published.

A mechanism, `AgentPrivacy` or `ClientPrivacy`, is an argument of a simulation. It alone
decides the sampling, the clip and the noise of the run, and from these it derives a
`Guarantee`, to which the simulation keeps.
"""

import dataclasses
import math
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_muon.privacy.guarantees import PrivacyReport, PrivacySpec, report

# scores that depend on the training data only through what is released
PUBLIC = ("test_", "consensus")
FIXED = "the noise and the coins are drawn from the seed: whoever knows it removes them"
TRAINING = (
    "training metrics are published without noise; the guarantee does not hold for them"
)


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """The guarantee of a private run, derived from what the run executes."""

    spec: PrivacySpec  # of the records that are protected least
    rounds: int  # that it covers, after the first release
    fixed_noise: bool = False  # noise from the seed, for tests; no privacy
    training_metrics: bool = False  # whether they are published
    assumptions: tuple[str, ...] = ()  # in addition to those of the report

    def report(self) -> PrivacyReport:
        """Computes epsilon and lists all conditions.

        Returns:
          The report; its epsilon is infinite if the noise is fixed.

        Raises:
          ImportError: If dp-accounting is not installed.
        """
        found = report(self.spec)
        reasons = (FIXED,) if self.fixed_noise else ()
        voids = (TRAINING,) if self.training_metrics else ()
        return dataclasses.replace(
            found,
            epsilon=math.inf if reasons else found.epsilon,
            assumptions=(*found.assumptions, *self.assumptions),
            caveats=(*reasons, *voids, *found.caveats),
        )

    def statement(self) -> str:
        """Returns the report as text, to print and to publish with results."""
        return self.report().statement()

    def check_rounds(self, completed: int, count: int) -> None:
        """Checks that the guarantee covers further rounds.

        Args:
          count: Number of further rounds.
        """
        if completed + count > self.rounds:
            raise ValueError(
                f"the noise is for {self.rounds} rounds, got {completed} completed and "
                f"{count} more; make a simulation whose privacy has more rounds"
            )

    def published(self, scores: Mapping[str, Any]) -> dict[str, Any]:
        """Selects the scores that may be published.

        Returns:
          Those of the test set, which must be public, and of the parameters; all of
          them if training metrics are published.
        """
        if self.training_metrics:
            return dict(scores)
        return {name: x for name, x in scores.items() if name.startswith(PUBLIC)}

    def run_words(self) -> np.ndarray | None:
        """Draws the key of a run's noise and coins from the operating system.

        Returns:
          uint32 [2], 64 bits of entropy, which are stored in the state alone; None if
          the noise is fixed, which leaves it to the seed.
        """
        if self.fixed_noise:
            return None
        return np.frombuffer(secrets.token_bytes(8), np.uint32)


def check_noise(epsilon: float | None, noise: float | None, name: str) -> None:
    """Checks that the noise is given once.

    Args:
      epsilon: The epsilon that the noise is calibrated for.
      noise: The noise itself.
    """
    if (epsilon is None) == (noise is None):
        raise ValueError(
            f"give either epsilon or {name}, got epsilon={epsilon}, {name}={noise}"
        )


def check_left_out(given: Mapping[str, Any]) -> None:
    """Checks that nothing that a mechanism decides is given beside it.

    Args:
      given: Arguments of a simulation by name; None if left out.
    """
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"privacy decides {name}; leave it out, and set it in the mechanism"
            )
