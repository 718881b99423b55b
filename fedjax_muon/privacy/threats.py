"""Adversaries: who sees what of a private run."""

import dataclasses

from fedjax_muon.privacy.accounting import mean_multiplier


@dataclasses.dataclass(frozen=True)
class Neighbor:
    """An adversary who sees all that an agent sends; all other agents may collude."""

    assumptions: tuple[str, ...] = dataclasses.field(default=(), init=False)

    def __str__(self) -> str:
        return "every message of the agent is seen, all other agents may collude"

    def effective_multiplier(self, multiplier: float) -> float:
        """Returns the noise multiplier of what the adversary sees."""
        return multiplier


@dataclasses.dataclass(frozen=True)
class MeanOnly:
    """An adversary who sees only the mean over agents."""

    agents: int
    colluders: int = 0  # agents that reveal their own part

    def __post_init__(self) -> None:
        mean_multiplier(1.0, self.agents, self.colluders)

    def __str__(self) -> str:
        return (
            f"only the mean over {self.agents} agents is seen, {self.colluders} of "
            "them collude"
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Conditions of the guarantee, in words."""
        return (
            "secure aggregation hides single messages (gossip alone does not)",
            "all agents hold the same parameters in every step",
            "every agent adds independent noise of the same standard deviation",
        )

    def effective_multiplier(self, multiplier: float) -> float:
        """Returns the noise multiplier of what the adversary sees."""
        return mean_multiplier(multiplier, self.agents, self.colluders)


@dataclasses.dataclass(frozen=True)
class TrustedServer:
    """An adversary who sees all that the server broadcasts, not what it receives."""

    def __str__(self) -> str:
        return (
            "every model that the server broadcasts is seen; the server and the "
            "channels to it are trusted"
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Conditions of the guarantee, in words."""
        return (
            "the server keeps single messages, and who took part, to itself",
            "what is measured on clients' own examples, such as the training loss, "
            "is not published, and nothing is tuned on it",
        )

    def effective_multiplier(self, multiplier: float) -> float:
        """Returns the noise multiplier of what the adversary sees."""
        return multiplier


Threat = Neighbor | MeanOnly | TrustedServer
