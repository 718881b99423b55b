"""FedAvg on the same works by other means: one file each, with one function

    play(work, weights, turns, *, cores, rounds)

that starts from the same weights (names of Flax to arrays), has the same data, plays a
round at every turn, `rounds` in all, and ends with its loss.
"""

from typing import NamedTuple


class Peer(NamedTuple):
    """What a peer is called, and what must be installed for it."""

    label: str
    needs: tuple[str, ...] = ()  # modules
    packages: tuple[str, ...] = ()  # what pip calls them


PEERS = {
    "handwritten": Peer("JAX by hand"),
    "torch_loop": Peer("PyTorch loop", ("torch",), ("torch",)),
    "flower": Peer("Flower", ("flwr", "ray", "torch"), ("flwr", "ray")),
    "pfl": Peer("pfl", ("pfl", "torch"), ("pfl",)),
    "fedjax": Peer("FedJAX", ("fedjax",), ("fedjax",)),
}
