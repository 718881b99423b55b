"""Private methods of agents as values, before the noise that they need is known.

    method = fm.decentralized.dpmixsgd(lr=0.1)
    privacy = ExamplePrivacy(epsilon=4.0, delta=1e-5, rounds=200)
    result = fm.train(method, fm.problems.auc(), rounds=200, privacy=privacy)

`private.PRIVATE` describes what they release. The default learning rates were chosen by
hand on the default problem of agents, with a seed that is not used otherwise.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from fedjax_muon.algorithms.registry import Method, by_name
from fedjax_muon.core import Hyper, check_count, recorded
from fedjax_muon.core.recipe import Recipe
from fedjax_muon.decentralized.gossip import Gossip
from fedjax_muon.decentralized.private import PRIVATE, Mechanism, PrivateMethod


class PrivateAgents(NamedTuple):
    """A private method, before it is known how much noise it needs."""

    algorithm: Gossip  # without an estimator
    method: PrivateMethod
    beta: float  # of its mechanism
    recipe: Recipe | None = None

    def __repr__(self) -> str:
        return self.method.label if self.recipe is None else self.recipe.call()


@dataclasses.dataclass(frozen=True)
class ExamplePrivacy:
    """What a private method of agents promises for each example of an agent."""

    _: dataclasses.KW_ONLY
    rounds: int  # that the guarantee covers
    epsilon: float | None = None  # inf: without noise and without privacy
    delta: float = 1e-5  # below one over the examples of every agent
    clip_norm: float = 0.2  # of the gradient of an example
    # of the change of an example's gradient between two iterations, in private_storm;
    # a tenth of clip_norm by default
    change_clip_norm: float | None = None
    bands: int = 4  # of the noise of dp_ftrl, and groups of examples that take turns
    # noise from the seed instead of the operating system, for tests; no privacy
    insecure_fixed_noise: bool = False
    # training metrics are computed and recorded; the guarantee does not hold for them
    publish_training_metrics: bool = False

    def mechanism(
        self, agents: PrivateAgents, batch_size: int, smallest: int
    ) -> Mechanism:
        """The clip and noise of a method, whose smallest agent has so many examples."""
        check_count("batch_size", batch_size)
        check_count("bands", self.bands)
        change, separation = self.change_clip_norm, max(1, smallest // batch_size)
        strategy = agents.method.strategy(self.rounds + 1, self.bands, separation)
        return Mechanism(
            clip_norm=self.clip_norm,
            change_clip_norm=self.clip_norm / 10 if change is None else change,
            beta=agents.beta,
            batch_size=batch_size,
            strategy=strategy,
        )


def _method(name: str, rate: float) -> Method:

    def function(lr: Hyper = rate) -> PrivateAgents:
        return PrivateAgents(PRIVATE[name].base(lr=lr), PRIVATE[name], beta=1.0)

    return _row(name, function)


def _storm(name: str, rate: float) -> Method:

    def function(lr: Hyper = rate, *, beta: float = 0.1) -> PrivateAgents:
        return PrivateAgents(PRIVATE[name].base(lr=lr), PRIVATE[name], beta)

    return _row(name, function, "\n  beta: Weight of the fresh gradient in STORM.")


def _row(name: str, function: Callable[..., PrivateAgents], more: str = "") -> Method:
    row, function.__name__, function.__qualname__ = PRIVATE[name], name, name
    function.__doc__ = f"{row.label}.\n\nArgs:\n  lr: Learning rate.{more}\n"
    return Method(recorded(function), row.label, row.paper, source=row.source)


ALL = by_name(
    _method("dp_sgda", 1.0),
    _method("dp_ftrl", 1.0),
    _method("dp_ftrl_buffered", 1.0),
    _storm("dpmixsgd", 0.1),
    _storm("dpmixsgd_inside", 0.1),
    _storm("private_storm", 0.3),
)
