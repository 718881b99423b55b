"""Minimax methods; `ALL` has each of them with its paper and published grid.

All names in `ALL` are functions of this module, presets such as `local_sgda` too. Most
are algorithms of minimization whose parameters are a `Pair` (`core.pair`).
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon import core, transforms
from fedjax_muon.algorithms.fedavg import fedavg
from fedjax_muon.algorithms.fedmuon import fedmuon
from fedjax_muon.algorithms.registry import (
    FromOptions,
    Method,
    Source,
    attribute_of,
    by_name,
    preset,
)
from fedjax_muon.algorithms.scaffold import scaffold
from fedjax_muon.algorithms.scaffold_m import scaffold_m
from fedjax_muon.algorithms.stem import stem
from fedjax_muon.core import tree
from fedjax_muon.core.pair import Pair, as_pair, per_variable


class State(NamedTuple):
    params: Any  # Pair(x, y)
    anchor: Any  # z


@core.recorded
def fess_gda(
    lr: core.Hyper = 0.1,
    *,
    server_lr: core.Hyper = 1.0,
    pull: core.Hyper = 0.1,
    follow: core.Hyper = 0.5,
    rule: optax.GradientTransformation = optax.identity(),
) -> core.Algorithm:
    """FESS-GDA: local descent ascent, and a server that smooths the primal variable.

    From the broadcast (x, y), for each batch s

        x_i <- x_i - lr.x rule(grad_x F_i(x_i, y_i; s))
        y_i <- y_i + lr.y rule(grad_y F_i(x_i, y_i; s))

    then, with dx and dy the mean moves, z = x before round 0 and K local steps,

        x <- x + server_lr.x dx - lr.x server_lr.x K pull (x - z)
        y <- project(y + server_lr.y dy);    z <- z + follow (x - z)

    Source: Shen et al. 2024, AISTATS, arXiv:2311.00944. Checked against independent
    code. The defaults of `pull` and `follow` are the library's choice; in the paper,
    they are constants of the theory.

    Args:
      lr: Local learning rates, a number or a `Pair` of those of x and y, 0.001 to 0.1.
      server_lr: Server learning rates, a number or a `Pair`, usually 1.
      pull: Strength of the pull of x toward z, rho in the paper, 0 to 1.
      follow: Weight of x in the update of z, beta in the paper, in [0, 1].
      rule: Local rule of both gradients, without a learning rate.

    Example:
      >>> rates = fm.Pair(0.01, 0.1)  # of x and y
      >>> algorithm = fm.minimax.fess_gda(lr=rates, pull=0.5)

    See also: `minimax.local_sgda` without smoothing, `minimax.fedmuon_da`.
    """
    core.check_range("lr", lr)
    core.check_range("server_lr", server_lr)
    core.check_range("pull", pull)
    core.check_range("follow", follow, 0.0, 1.0)

    def client(objective, broadcast, client_state, batches, round):
        start = broadcast.params

        def step(carry, batch, key):
            x, opt = carry
            g = objective.grad(x, batch, key)
            return core.move(objective, x, core.value_at(lr, round), rule, opt, g), ()

        (end, _), _ = core.local_steps(step, (start, rule.init(start)), batches, round)
        return core.ParamsMessage(tree.sub(end, start)), client_state

    def server(state, mean, round):
        (x, y), z = state
        local = as_pair(core.value_at(lr, round))
        relative = as_pair(core.value_at(server_lr, round))
        back = -local.x * relative.x * round.steps * core.value_at(pull, round)
        moved = tree.add_scaled(Pair(x, y), relative, mean.params)
        moved = moved._replace(x=tree.add_scaled(moved.x, back, tree.sub(x, z)))
        return State(moved, tree.mix(z, core.value_at(follow, round), moved.x))

    def init(params):
        return State(params, params.x)

    main = core.Exchange(core.broadcast_params, client, server)
    return core.Algorithm(init, core.no_client_state, (main,))


ZHANG = "Zhang and Gao 2025, arXiv:2511.04456"
DENG = "Deng and Mahdavi 2021, AISTATS, arXiv:2102.13152"
SHARMA = "Sharma et al. 2022, arXiv:2203.04850"
WU = (
    "Wu et al. 2023, Solving a Class of Non-Convex Minimax Optimization in Federated "
    "Learning, NeurIPS"
)
YANG = "Yang et al. 2022, arXiv:2210.00611"
SHEN = "Shen et al. 2024, arXiv:2311.00944"

# Zhang and Gao state the smallest and the largest value for their two methods. They do
# not state the grids with which they tuned the others.
GRID = {"lr": (0.001, 0.003, 0.01, 0.03, 0.1)}


@core.recorded
def fed_nsgda_m(
    lr: core.Hyper = 0.01,
    *,
    server_lr: core.Hyper = 1.0,
    momentum: core.Hyper = core.after_first(0.9),
) -> core.Algorithm:
    """Fed-NSGDA-M: normalized descent ascent with momentum and control variates.

    With z = (x, y), whose gradient in y is negated, and h = (1 - momentum) c + momentum
    g, for each batch s and each variable

        d = (1 - momentum) (grad_i(z_i; s) - c_i) + h;    z_i <- z_i - lr d / |d|

    The controls c_i and c and the momentum g follow `scaffold_m`. All weights must be
    equal.

    Source: Zhang and Gao 2025, "Federated Stochastic Minimax Optimization under
    Heavy-Tailed Noises", arXiv:2511.04456, Algorithm 1. Checked against the paper's
    text.

    Args:
      lr: Local learning rates, the lengths of local moves, 0.001 to 0.1; a `Pair` sets
        those of x and y.
      server_lr: Server learning rates, usually 1, which is plain averaging.
      momentum: Weight of the past, 0.5 to 0.9; by default 0 in round 0, which has no
        past, and then 0.9.

    Example:
      >>> algorithm = fm.minimax.fed_nsgda_m(lr=fm.Pair(0.003, 0.01))
      >>> cells = fm.data.load("breast_cancer")
      >>> auc = fm.tasks.auc(fm.models.MLP(2, (4,)), cells)
      >>> owners = fm.partition.iid(cells.y_train, 4, key=jax.random.key(0))
      >>> sizes = {"cohort": 4, "local_steps": 5, "batch_size": 8}
      >>> simulation = fm.federate(algorithm, auc, cells, owners, **sizes)

    See also: `minimax.fedmuon_da` orthogonalizes matrices, `minimax.fedsgda_clip`
    clips.
    """
    rule = per_variable(transforms.normalize())
    return scaffold_m(lr=lr, server_lr=server_lr, momentum=momentum, rule=rule)


@core.recorded
def fedmuon_da(
    lr: core.Hyper = 0.01,
    *,
    server_lr: core.Hyper = 1.0,
    momentum: core.Hyper = core.after_first(0.9),
    polar: transforms.Polar | None = None,
    normalize_vectors: bool = True,
) -> core.Algorithm:
    """FedMuon-DA: orthogonalized descent ascent with momentum and control variates.

    With z = (x, y), whose gradient in y is negated, and h = (1 - momentum) c + momentum
    g, for each batch s

        d = (1 - momentum) (grad_i(z_i; s) - c_i) + h;    z_i <- z_i - lr orth(d)

    where orth orthonormalizes matrices, divides vectors by their Euclidean norms, as
    matrices of one column would be, and scalars by their absolute values. So no
    gradient can make a step long (Lemma B.1). The controls c_i and c and the momentum g
    follow `scaffold_m`. All weights must be equal.

    Source: Zhang and Gao 2025, "Federated Stochastic Minimax Optimization under
    Heavy-Tailed Noises", arXiv:2511.04456, Algorithm 3. Checked against the paper's
    text.

    Args:
      lr: Local learning rates, the spectral norms of local moves, 0.001 to 0.1; a
        `Pair` sets those of x and y.
      server_lr: Server learning rates, usually 1, which is plain averaging.
      momentum: Weight of the past, 0.5 to 0.9; by default 0 in round 0, which has no
        past, and then 0.9.
      polar: Function that computes polar factors; by default, five Newton-Schulz steps.
      normalize_vectors: Whether vectors are divided by their norms. If not, they move
        along their momentum itself, and the lemma does not hold.

    Example:
      >>> cells = fm.data.load("breast_cancer")
      >>> auc = fm.tasks.auc(fm.models.MLP(2, (4,)), cells)
      >>> owners = fm.partition.iid(cells.y_train, 4, key=jax.random.key(0))
      >>> sizes = {"cohort": 4, "local_steps": 5, "batch_size": 8}
      >>> muon = fm.minimax.fedmuon_da(lr=fm.Pair(0.003, 0.01))
      >>> simulation = fm.federate(muon, auc, cells, owners, **sizes)

    See also: `minimax.fed_nsgda_m` normalizes whole variables, `scaffold_m` minimizes,
    `decentralized.demuon` for agents.
    """
    make = lambda polar: transforms.unit_directions(
        polar, normalize_vectors=normalize_vectors
    )
    rule = transforms.default_rule(None, polar, make)
    return scaffold_m(lr=lr, server_lr=server_lr, momentum=momentum, rule=rule)


def _clipped(clip_norm: core.Number) -> optax.GradientTransformation:
    """Clips both variables.

    Args:
      clip_norm: Largest norm of the direction of each variable.
    """
    core.check_range("clip_norm", clip_norm, open_low=True, schedules=False)
    return per_variable(optax.clip_by_global_norm(clip_norm))


ALL = by_name(
    Method(fed_nsgda_m, "Fed-NSGDA-M", ZHANG, Source.TEXT, GRID),
    Method(fedmuon_da, "FedMuon-DA", ZHANG, Source.TEXT, GRID, color="#8e44ad"),
    preset(
        "fedsgda_clip",
        "FedSGDA-Clip",
        ZHANG,
        Source.TEXT,
        GRID,
        base=scaffold_m,
        sentence="Fed-NSGDA-M that clips the direction of each variable instead.",
        options={
            "lr": 0.1,
            "server_lr": 1.0,
            "momentum": core.after_first(0.9),
            "clip_norm": 0.1,
        },
        changes={"rule": FromOptions(_clipped)},
    ),
    preset(
        "local_sgda",
        "LocalSGDA",
        DENG,
        Source.INDEPENDENT,
        GRID,
        base=fedavg,
        sentence="Local stochastic gradient descent ascent.",
        options={"lr": 0.1, "server_lr": 1.0},
    ),
    # Its step size alpha is 1. The first momentum, and the order of the step and the
    # momentum, are choices.
    preset(
        "local_sgdam",
        "LocalSGDAM",
        SHARMA,
        grid=GRID,
        base=fedmuon,
        sentence="Local descent ascent with averaged momenta, written from memory.",
        options={"lr": 0.1, "momentum": 0.9},
        changes={"rule": optax.identity()},
    ),
    # The order of averaging and steps is that of STEM.
    preset(
        "fedsgda_m",
        "FedSGDA-M",
        WU,
        grid=GRID,
        base=stem,
        sentence="Descent ascent of all clients, as STEM; written from memory.",
        options={"lr": 0.1, "momentum": 0.9},
    ),
    # The abstract does not say how control variates are made; those of SCAFFOLD are a
    # choice.
    preset(
        "sagda",
        "SAGDA",
        YANG,
        grid=GRID,
        base=scaffold,
        sentence="Descent ascent with control variates, written from memory.",
        options={"lr": 0.1, "server_lr": 1.0},
    ),
    preset(
        "fsgda",
        "FSGDA",
        YANG,
        Source.INDEPENDENT,
        GRID,
        base=fedavg,
        sentence="LocalSGDA, with separate local and server rates.",
        options={"lr": 0.1, "server_lr": 1.0},
    ),
    Method(fess_gda, "FESS-GDA", SHEN, Source.INDEPENDENT, GRID),
)


__all__ = ["ALL", "fed_nsgda_m", "fedmuon_da", "fess_gda"]


def __getattr__(name: str) -> Any:
    return attribute_of(ALL, __name__, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *ALL})
