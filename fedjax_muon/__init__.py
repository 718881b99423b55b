"""Federated optimization built around Muon, in JAX."""

__version__ = "0.1.0"
