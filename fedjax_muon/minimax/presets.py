"""Minimax presets: algorithms of minimization with separate rules for both variables.

Zhang and Gao, "Federated stochastic minimax optimization under heavy-tailed noises",
arXiv:2511.04456, and the baselines of their comparison.
"""

import optax

from fedjax_muon.algorithms import fedavg, fedmuon, scaffold, scaffold_m, stem
from fedjax_muon.core import (
    Algorithm,
    Hyper,
    Number,
    after_first,
    check_range,
    recorded,
)
from fedjax_muon.core.pair import per_variable
from fedjax_muon.transforms import (
    Polar,
    default_rule,
    normalize,
    unit_directions,
)


@recorded
def fed_nsgda_m(
    lr: Hyper = 0.01,
    *,
    server_lr: Hyper = 1.0,
    momentum: Hyper = after_first(0.9),
) -> Algorithm:
    """Fed-NSGDA-M: normalized descent ascent with momentum and control variates.

    Zhang and Gao, Algorithm 1.

    Args:
      lr: Local learning rates, the lengths of local moves.
      server_lr: Server learning rate; 1 is plain averaging.
      momentum: Weight of the past; by default 0 in round 0, which has no past.

    Returns:
      An algorithm that sends a model and a control each way; weights must be uniform.
    """
    rule = per_variable(normalize())
    return scaffold_m(lr=lr, server_lr=server_lr, momentum=momentum, rule=rule)


@recorded
def fedmuon_da(
    lr: Hyper = 0.01,
    *,
    server_lr: Hyper = 1.0,
    momentum: Hyper = after_first(0.9),
    polar: Polar | None = None,
    normalize_vectors: bool = True,
) -> Algorithm:
    """FedMuon-DA: orthogonalized descent ascent with momentum and control variates.

    Zhang and Gao, Algorithm 3, which orthonormalizes every variable. Vectors are
    divided by their Euclidean norms, as matrices of one column would be, and scalars
    by their absolute values. So no gradient makes a step long (Lemma B.1).

    Args:
      server_lr: Server learning rate; 1 is plain averaging.
      momentum: Weight of the past; by default 0 in round 0, which has no past.
      polar: Polar factor of matrices; Newton-Schulz by default.
      normalize_vectors: Whether vectors are divided by their norms. If not, they move
        along their momentum itself, and the lemma does not hold.

    Returns:
      An algorithm that sends a model and a control each way; weights must be uniform.
    """
    make = lambda polar: unit_directions(polar, normalize_vectors=normalize_vectors)
    rule = default_rule(None, polar, make)
    return scaffold_m(lr=lr, server_lr=server_lr, momentum=momentum, rule=rule)


@recorded
def fedsgda_clip(
    lr: Hyper = 0.1,
    *,
    server_lr: Hyper = 1.0,
    momentum: Hyper = after_first(0.9),
    clip_norm: Number = 0.1,
) -> Algorithm:
    """FedSGDA-Clip: clipped descent ascent with momentum and control variates.

    Zhang and Gao, the clipped baseline.

    Args:
      server_lr: Server learning rate; 1 is plain averaging.
      momentum: Weight of the past; by default 0 in round 0, which has no past.
      clip_norm: Largest norm of the direction of each variable.

    Returns:
      An algorithm that sends a model and a control each way; weights must be uniform.
    """
    check_range("clip_norm", clip_norm, open_low=True, schedules=False)
    rule = per_variable(optax.clip_by_global_norm(clip_norm))
    return scaffold_m(lr=lr, server_lr=server_lr, momentum=momentum, rule=rule)


@recorded
def local_sgda(
    lr: Hyper = 0.1,
    *,
    server_lr: Hyper = 1.0,
) -> Algorithm:
    """LocalSGDA: local stochastic gradient descent ascent.

    Deng and Mahdavi 2021, AISTATS.

    Args:
      server_lr: Server learning rate; 1 is plain averaging.

    Returns:
      An algorithm that sends one model each way per round.
    """
    return fedavg(lr=lr, server_lr=server_lr)


@recorded
def local_sgdam(
    lr: Hyper = 0.1,
    *,
    momentum: Hyper = 0.9,
) -> Algorithm:
    """LocalSGDAM: local descent ascent with averaged momenta.

    Sharma et al. 2022, arXiv:2203.04850, with its step size alpha = 1. Written from
    memory, not checked against a source: the first momentum and the order of the step
    and the momentum are choices.

    Returns:
      An algorithm that sends a model and a momentum each way per round.
    """
    return fedmuon(lr=lr, momentum=momentum, rule=optax.identity())


@recorded
def fedsgda_m(
    lr: Hyper = 0.1,
    *,
    momentum: Hyper = 0.9,
) -> Algorithm:
    """FedSGDA-M: descent ascent along variance-reduced momentum.

    Wu et al. 2023, NeurIPS; defined for full participation. Written from memory,
    not checked against a source: the order of averaging and steps is that of STEM.

    Returns:
      An algorithm that sends a model and a momentum each way per round.
    """
    return stem(lr=lr, momentum=momentum)


@recorded
def sagda(
    lr: Hyper = 0.1,
    *,
    server_lr: Hyper = 1.0,
) -> Algorithm:
    """SAGDA: descent ascent with control variates.

    Yang et al. 2022, arXiv:2210.00611. Written from memory, not checked against a
    source: the abstract does not say how control variates are made, and those of
    SCAFFOLD are a choice.

    Args:
      server_lr: Server learning rate; 1 is plain averaging.

    Returns:
      An algorithm that sends a model and a control each way; weights must be uniform.
    """
    return scaffold(lr=lr, server_lr=server_lr)


@recorded
def fsgda(
    lr: Hyper = 0.1,
    *,
    server_lr: Hyper = 1.0,
) -> Algorithm:
    """FSGDA: federated descent ascent with separate local and server rates.

    Yang et al. 2022, arXiv:2210.00611.

    Args:
      lr: Local learning rate.
      server_lr: Server learning rate; 1 is plain averaging.

    Returns:
      An algorithm that sends one model each way per round.
    """
    return fedavg(lr=lr, server_lr=server_lr)
