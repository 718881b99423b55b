"""Minimax methods; `ALL` has each of them with its paper and published grid.

All names in `ALL` are functions of this module, presets such as `local_sgda` too. Most
are algorithms of minimization whose parameters are a `Pair` (`core.pair`).
"""

from typing import Any, NamedTuple

import optax

from fedjax_muon import core
from fedjax_muon.algorithms.fedavg import fedavg
from fedjax_muon.algorithms.fedmuon import fedmuon
from fedjax_muon.algorithms.registry import Method, Source, by_name
from fedjax_muon.algorithms.scaffold import scaffold
from fedjax_muon.algorithms.scaffold_m import scaffold_m
from fedjax_muon.algorithms.stem import stem
from fedjax_muon.core import tree
from fedjax_muon.core.pair import Pair, as_pair, per_variable
from fedjax_muon.transforms import Polar, normalize, unit_directions


class _State(NamedTuple):
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
        return _State(moved, tree.mix(z, core.value_at(follow, round), moved.x))

    def init(params):
        return _State(params, params.x)

    main = core.Exchange(core.broadcast_params, client, server)
    return core.Algorithm(init, core.no_client_state, (main,))


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
    rule = per_variable(normalize())
    return scaffold_m(lr=lr, server_lr=server_lr, momentum=momentum, rule=rule)


@core.recorded
def fedmuon_da(
    lr: core.Hyper = 0.01,
    *,
    server_lr: core.Hyper = 1.0,
    momentum: core.Hyper = core.after_first(0.9),
    polar: Polar | None = None,
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
    rule = unit_directions(polar, normalize_vectors=normalize_vectors)
    return scaffold_m(lr=lr, server_lr=server_lr, momentum=momentum, rule=rule)


@core.recorded
def fedsgda_clip(
    lr: core.Hyper = 0.1,
    *,
    server_lr: core.Hyper = 1.0,
    momentum: core.Hyper = core.after_first(0.9),
    clip_norm: core.Number = 0.1,
) -> core.Algorithm:
    """FedSGDA-Clip: Fed-NSGDA-M that clips the direction of each variable instead.

    Source: Zhang and Gao 2025, arXiv:2511.04456. Checked against the paper's text. The
    same as `fm.scaffold_m()` with a rule that clips x and y, each to `clip_norm`.

    Args:
      clip_norm: Largest norm of the direction of each variable.
    """
    core.check_range("clip_norm", clip_norm, open_low=True, schedules=False)
    rule = per_variable(optax.clip_by_global_norm(clip_norm))
    return scaffold_m(lr=lr, server_lr=server_lr, momentum=momentum, rule=rule)


@core.recorded
def local_sgda(lr: core.Hyper = 0.1, *, server_lr: core.Hyper = 1.0) -> core.Algorithm:
    """LocalSGDA: local stochastic gradient descent ascent.

    Source: Deng and Mahdavi 2021, AISTATS, arXiv:2102.13152. Checked against
    independent code. The same as `fm.fedavg()`.
    """
    return fedavg(lr=lr, server_lr=server_lr)


@core.recorded
def local_sgdam(lr: core.Hyper = 0.1, *, momentum: core.Hyper = 0.9) -> core.Algorithm:
    """LocalSGDAM: local descent ascent with averaged momenta, written from memory.

    Source: Sharma et al. 2022, arXiv:2203.04850. Not verified. The same as
    `fm.fedmuon(rule=optax.identity())` with other defaults. Its step size alpha is 1.
    The first momentum, and the order of the step and the momentum, are choices.
    """
    return fedmuon(lr=lr, momentum=momentum, rule=optax.identity())


@core.recorded
def fedsgda_m(lr: core.Hyper = 0.1, *, momentum: core.Hyper = 0.9) -> core.Algorithm:
    """FedSGDA-M: descent ascent of all clients, as STEM; written from memory.

    Source: Wu et al. 2023, Solving a Class of Non-Convex Minimax Optimization in
    Federated Learning, NeurIPS. Not verified. The same as `fm.stem()` with other
    defaults, and its order of averaging and steps.
    """
    return stem(lr=lr, momentum=momentum)


@core.recorded
def sagda(lr: core.Hyper = 0.1, *, server_lr: core.Hyper = 1.0) -> core.Algorithm:
    """SAGDA: descent ascent with control variates, written from memory.

    Source: Yang et al. 2022, arXiv:2210.00611. Not verified. The same as
    `fm.scaffold()` with other defaults. The abstract does not say how control variates
    are made; those of SCAFFOLD are a choice.
    """
    return scaffold(lr=lr, server_lr=server_lr)


@core.recorded
def fsgda(lr: core.Hyper = 0.1, *, server_lr: core.Hyper = 1.0) -> core.Algorithm:
    """FSGDA: LocalSGDA, with separate local and server rates.

    Source: Yang et al. 2022, arXiv:2210.00611. Checked against independent code. The
    same as `fm.fedavg()`.
    """
    return fedavg(lr=lr, server_lr=server_lr)


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

ALL = by_name(
    Method(fed_nsgda_m, "Fed-NSGDA-M", ZHANG, Source.TEXT, GRID),
    Method(fedmuon_da, "FedMuon-DA", ZHANG, Source.TEXT, GRID, color="#8e44ad"),
    Method(fedsgda_clip, "FedSGDA-Clip", ZHANG, Source.TEXT, GRID),
    Method(local_sgda, "LocalSGDA", DENG, Source.INDEPENDENT, GRID),
    Method(local_sgdam, "LocalSGDAM", SHARMA, grid=GRID),
    Method(fedsgda_m, "FedSGDA-M", WU, grid=GRID),
    Method(sagda, "SAGDA", YANG, grid=GRID),
    Method(fsgda, "FSGDA", YANG, Source.INDEPENDENT, GRID),
    Method(fess_gda, "FESS-GDA", SHEN, Source.INDEPENDENT, GRID),
)


def __dir__() -> list[str]:
    return ["ALL", *sorted(ALL)]
