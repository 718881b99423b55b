"""FedAvg on the same workloads by other software: one file each, with one function

    run(workload, weights, turns, *, cores, rounds)

It starts from the same weights (arrays by Flax's names) and has the same data. It runs
one round per turn, `rounds` in all, and finishes with its loss.
"""

from typing import NamedTuple


class Peer(NamedTuple):
    """A peer's label, and the packages that it needs."""

    label: str
    needs: tuple[str, ...] = ()  # modules
    packages: tuple[str, ...] = ()  # names for pip
    by_default: bool = True  # else only if it is named


PEERS = {
    "handwritten": Peer("JAX by hand"),
    "torch_loop": Peer("PyTorch loop", ("torch",), ("torch",)),
    "torch_vmap": Peer("PyTorch vmap", ("torch",), ("torch",), False),  # for GPUs
    "flower": Peer("Flower", ("flwr", "ray", "torch"), ("flwr", "ray")),
    "pfl": Peer("pfl", ("pfl", "torch"), ("pfl",)),
    "fedjax": Peer("FedJAX", ("fedjax",), ("fedjax",)),
}
