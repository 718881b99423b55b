"""Minimax methods; `ALL` has each of them with its paper and published grid.

Parameters are a `Pair` (`core.pair`).
"""

from fedjax_muon.minimax.fess_gda import fess_gda
from fedjax_muon.minimax.methods import ALL, fed_nsgda_m, fedmuon_da

__all__ = ["ALL", "fed_nsgda_m", "fedmuon_da", "fess_gda"]
