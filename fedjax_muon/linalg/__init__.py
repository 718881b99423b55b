"""Matrix functions: polar factors and linear minimization oracles."""

from fedjax_muon.linalg import lmo, newton_schulz

__all__ = ["lmo", "newton_schulz"]
