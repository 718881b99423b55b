"""Functions from algorithms to algorithms: compressed, robust, personal and others."""

from fedjax_muon.wrappers import (
    aggregators,
    attacks,
    compression,
    personalization,
    secure_sums,
    spheres,
)

__all__ = [
    "aggregators",
    "attacks",
    "compression",
    "personalization",
    "secure_sums",
    "spheres",
]
