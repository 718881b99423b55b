"""Functions from algorithms to algorithms: compressed, robust, attacked, personal."""

from fedjax_muon.wrappers import aggregators, attacks, compression, personalization

__all__ = ["aggregators", "attacks", "compression", "personalization"]
