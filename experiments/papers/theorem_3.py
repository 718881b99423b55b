"""The noise level of Theorem 3 of "DPMixSGD", eq. 18, with an explicit constant.

    sigma = c L_g sqrt(S_T log(1/gamma)) / (2 theta sqrt(m)),
    S_T = sum_{t=1..T} (16 t^2 + 4) = 8 T (T + 1) (2 T + 1) / 3 + 4 T

for T steps and m agents; theta and gamma are the paper's epsilon and delta, and L_g
bounds the gradient of an example. The paper leaves c open. This is not an accounting:
the theorem holds if gradients are clipped to L_g, if the gradient at t = 0 has the same
noise, for x or y alone, for one replaced record, and for an adversary who sees the mean
over agents alone. `privacy.report` is for what a run really releases.
"""

import math

# the constant that follows from the moments argument of the paper's proof
MOMENTS_CONSTANT = 4 * math.sqrt(2)


def theorem_3_sum(steps: int) -> float:
    """Returns S_T."""
    return 8 * steps * (steps + 1) * (2 * steps + 1) / 3 + 4 * steps


def theorem_3_sigma(
    steps: int,
    agents: int,
    theta: float,
    gamma: float,
    constant: float,
    lipschitz: float = 1.0,
) -> float:
    """Returns the standard deviation of an agent's noise in every coordinate."""
    root = math.sqrt(theorem_3_sum(steps) * math.log(1 / gamma))
    return constant * lipschitz * root / (2 * theta * math.sqrt(agents))


def theorem_3_constant(
    sigma: float, steps: int, agents: int, theta: float, gamma: float
) -> float:
    """Returns the constant c for which `theorem_3_sigma` is `sigma`."""
    return sigma / theorem_3_sigma(steps, agents, theta, gamma, 1.0)


def smallest_constant(theta: float, gamma: float) -> float:
    """Returns the smallest c for which the proof of Theorem 3 holds.

    With it, `mean_epsilon` at `theorem_3_sigma` is exactly theta.
    """
    return 2 * (1 + math.sqrt(1 + theta / math.log(1 / gamma)))


def mean_epsilon(
    sigma: float, steps: int, agents: int, gamma: float, lipschitz: float = 1.0
) -> float:
    """Returns epsilon at a noise level if the mean over agents alone is seen.

    rho = L_g^2 S_T / (m sigma^2), epsilon = rho + 2 sqrt(rho log(1/gamma)) (Bun and
    Steinke 2016).
    """
    rho = lipschitz**2 * theorem_3_sum(steps) / (agents * sigma**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / gamma))


def neighbor_epsilon(
    sigma: float, steps: int, gamma: float, lipschitz: float = 1.0
) -> float:
    """Returns epsilon if every message of an agent is seen: rho is m times as large."""
    return mean_epsilon(sigma, steps, 1, gamma, lipschitz)
