"""Noise levels as published theorems state them, with explicit constants.

They are not an accounting: Theorem 3 of DPMixSGD holds under the conditions of
`Reading.holds_if`, and the paper leaves its constant c open. `privacy.report` is for
what a run really releases.
"""

import math
from typing import NamedTuple

from fedjax_muon.core import check_count, check_range
from fedjax_muon.privacy.accounting import check_epsilon

# the constant that follows from the moments argument of the paper's proof
MOMENTS_CONSTANT = 4 * math.sqrt(2)


class Reading(NamedTuple):
    """What a noise level of Theorem 3 means for one adversary."""

    view: str  # what the adversary sees
    rho: float  # of zero-concentrated differential privacy
    epsilon: float
    gamma: float  # the delta of (epsilon, delta)-differential privacy
    holds_if: tuple[str, ...]


def theorem_3_sum(steps: int) -> float:
    """Returns S_T = sum_{t=1..T} (16 t^2 + 4) = 8 T (T + 1) (2 T + 1) / 3 + 4 T.

    Args:
      steps: T, at least 1.

    Example:
      >>> theorem_3_sum(2)
      88.0
    """
    check_count("steps", steps)
    return 8 * steps * (steps + 1) * (2 * steps + 1) / 3 + 4 * steps


def theorem_3_sigma(
    steps: int,
    agents: int,
    theta: float,
    gamma: float,
    constant: float,
    lipschitz: float = 1.0,
) -> float:
    """Returns c L_g sqrt(S_T log(1/gamma)) / (2 theta sqrt(m)): DPMixSGD, eq. 18.

    Args:
      theta: The paper's epsilon, positive.
      gamma: The paper's delta, in (0, 1).
      constant: c, which the paper leaves open; see `smallest_constant` and
        `MOMENTS_CONSTANT`.

    Returns:
      Standard deviation of the noise that every agent adds to every coordinate.
    """
    check_range("constant", constant, open_low=True, schedules=False)
    return constant * _sigma_for_one(steps, agents, theta, gamma, lipschitz)


def theorem_3_constant(
    sigma: float,
    steps: int,
    agents: int,
    theta: float,
    gamma: float,
    lipschitz: float = 1.0,
) -> float:
    """Returns the constant c for which `theorem_3_sigma` is `sigma`.

    Args:
      sigma: Standard deviation, positive.
      theta: The paper's epsilon, positive.
      gamma: The paper's delta, in (0, 1).

    Returns:
      The constant, with which the noise of a known run can be scaled to others.
    """
    check_range("sigma", sigma, open_low=True, schedules=False)
    return sigma / _sigma_for_one(steps, agents, theta, gamma, lipschitz)


def smallest_constant(theta: float, gamma: float) -> float:
    """Returns the smallest constant c for which the proof of Theorem 3 holds.

    c = 2 (1 + sqrt(1 + theta / log(1/gamma))). With it, `mean_reading` at
    `theorem_3_sigma` has an epsilon of exactly theta.

    Args:
      theta: The paper's epsilon, positive.
      gamma: The paper's delta, in (0, 1).
    """
    check_range("theta", theta, open_low=True, schedules=False)
    return 2 * (1 + math.sqrt(1 + theta / _log(gamma)))


def mean_reading(
    sigma: float, steps: int, agents: int, gamma: float, lipschitz: float = 1.0
) -> Reading:
    """Interprets a noise level as the theorem does: only the mean over agents is seen.

    rho = L_g^2 S_T / (m sigma^2), epsilon = rho + 2 sqrt(rho log(1/gamma)) (Bun and
    Steinke 2016), for one variable and one replaced record.

    Args:
      sigma: Standard deviation of each agent's noise, positive.
      gamma: The paper's delta, in (0, 1).

    Returns:
      Epsilon and its conditions.
    """
    rho = _rho(sigma, steps, agents, lipschitz)
    secret = (
        "nobody sees more than the means over agents (secure aggregation)",
        "all agents hold the same x and y in every step",
    )
    return _reading("mean over agents only", rho, gamma, secret)


def neighbor_reading(
    sigma: float, steps: int, agents: int, gamma: float, lipschitz: float = 1.0
) -> Reading:
    """Interprets a noise level for a neighbor, who sees one agent's messages.

    rho is `agents` times that of `mean_reading`.

    Args:
      sigma: Standard deviation of each agent's noise, positive.
      gamma: The paper's delta, in (0, 1).

    Returns:
      Epsilon and its conditions.
    """
    rho = _rho(sigma, steps, agents, lipschitz) * agents
    return _reading("every message of the agent is seen", rho, gamma, ())


def dp_sgda_sigma(
    steps: int,
    examples: int,
    epsilon: float,
    delta: float,
    constant: float = 1.0,
    lipschitz: float = 1.0,
) -> float:
    """Returns c G sqrt(T log(1/delta)) / (n epsilon), the noise of DP-SGDA.

    Yang et al. 2022, UAI.

    Args:
      examples: n, number of examples.
      epsilon: Positive.
      constant: c, which the paper leaves open.
      lipschitz: G, bound on the gradient of one example.

    Returns:
      Standard deviation of the noise in every coordinate.
    """
    check_count("steps", steps)
    check_count("examples", examples)
    check_epsilon(epsilon)
    check_range("constant", constant, open_low=True, schedules=False)
    check_range("lipschitz", lipschitz, open_low=True, schedules=False)
    root = math.sqrt(steps * _log(delta, "delta"))
    return constant * lipschitz * root / (examples * epsilon)


def _sigma_for_one(
    steps: int, agents: int, theta: float, gamma: float, lipschitz: float
) -> float:
    check_count("agents", agents)
    check_range("theta", theta, open_low=True, schedules=False)
    check_range("lipschitz", lipschitz, open_low=True, schedules=False)
    root = math.sqrt(theorem_3_sum(steps) * _log(gamma))
    return lipschitz * root / (2 * theta * math.sqrt(agents))


def _rho(sigma: float, steps: int, agents: int, lipschitz: float) -> float:
    check_count("agents", agents)
    check_range("sigma", sigma, open_low=True, schedules=False)
    check_range("lipschitz", lipschitz, open_low=True, schedules=False)
    return lipschitz**2 * theorem_3_sum(steps) / (agents * sigma**2)


def _reading(view: str, rho: float, gamma: float, further: tuple[str, ...]) -> Reading:
    return Reading(
        view=view,
        rho=rho,
        epsilon=rho + 2 * math.sqrt(rho * _log(gamma)),
        gamma=gamma,
        holds_if=(
            "the gradient of every example is bounded by L_g, that is, clipped to it",
            "the first gradient, t = 0, gets the same noise",
            "x or y alone is released; for both together the rhos add up",
            "one record of one agent is replaced",
            *further,
        ),
    )


def _log(gamma: float, name: str = "gamma") -> float:
    check_range(name, gamma, 0, 1, open_low=True, open_high=True, schedules=False)
    return math.log(1 / gamma)
