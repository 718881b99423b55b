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

from fedjax_muon.algorithms.registry import Method, by_name, cited
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


def _method(name: str, rate: float, about: str) -> Method:

    def function(lr: Hyper = rate) -> PrivateAgents:
        return PrivateAgents(PRIVATE[name].base(lr=lr), PRIVATE[name], beta=1.0)

    return _row(name, function, about, "Learning rate, 0.1 to 3.")


def _storm(name: str, rate: float, about: str) -> Method:

    def function(lr: Hyper = rate, *, beta: float = 0.1) -> PrivateAgents:
        return PrivateAgents(PRIVATE[name].base(lr=lr), PRIVATE[name], beta)

    more = "\n  beta: Weight of the fresh gradient in STORM, in [0, 1], 0.01 to 0.5."
    return _row(name, function, about, f"Learning rate, 0.03 to 1.{more}")


def _row(
    name: str, function: Callable[..., PrivateAgents], about: str, arguments: str
) -> Method:
    row, function.__name__, function.__qualname__ = PRIVATE[name], name, name
    function.__doc__ = DOCSTRING.format(
        row=row, about=about, name=name, arguments=arguments, source=cited(*row[1:3])
    )
    return Method(recorded(function), row.label, row.paper, source=row.source)


DOCSTRING = """{row.label}: {about}

The noise is calibrated when an experiment starts, from its `ExamplePrivacy`.

{source}

Args:
  lr: {arguments}

Example:
  >>> method = fm.decentralized.{name}(lr=0.3)
  >>> promise = fm.decentralized.ExamplePrivacy(epsilon=4.0, rounds=200)
  >>> auc = fm.problems.auc()  # doctest: +SKIP
  >>> fm.train(method, auc, rounds=200, privacy=promise)  # doctest: +SKIP

See also: `decentralized.{row.base.__name__}` without privacy, and
`decentralized.AgentPrivacy` for `decentralize`.
"""
GRADIENT = """{}.

With the expected size b of a batch, and z its examples,

    g = (1/b) sum_z clip(grad(x; z)) + {}
    x <- project(W(x - lr g))"""
STORM = """tracked STORM {}.

With the gradients u = grad(x; z) and u_ = grad(x_; z) of an example z, where x_ are the
parameters of the iteration before, and the expected size b of a batch,

    g <- (1 - beta) g + (1/b) sum_z ({}){}

and `gradient_tracking` follows {}."""
BOTH = "clip(u) - (1 - beta) clip(u_)"
SPLIT = "beta clip(u) + (1 - beta) clip(u - u_)"
FRESH = GRADIENT.format("D-SGDA with clipped gradients and fresh noise", "noise")
BANDED = GRADIENT.format("D-SGDA with noise that bands correlate", "C^-1 noise")
BUFFERED = GRADIENT.format("D-SGDA with noise from a few buffers", "C^-1 noise")
OUTSIDE = STORM.format("with noise on its output", BOTH, "", "g + noise")
INSIDE = STORM.format("with noise in its recursion", BOTH, " + noise", "g")
CHANGES = STORM.format("that clips changes too", SPLIT, " + noise", "g")

ALL = by_name(
    _method("dp_sgda", 1.0, FRESH),
    _method("dp_ftrl", 1.0, BANDED),
    _method("dp_ftrl_buffered", 1.0, BUFFERED),
    _storm("dpmixsgd", 0.1, OUTSIDE),
    _storm("dpmixsgd_inside", 0.1, INSIDE),
    _storm("private_storm", 0.3, CHANGES),
)
