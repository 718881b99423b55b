"""Compression of the messages that clients send."""

from fedjax_muon.compression.compress import compress
from fedjax_muon.compression.compressors import (
    Compressor,
    Rank,
    identity,
    memory_share,
    power_iteration,
    quantize,
    rank_share,
    top_k,
    truncated_svd,
)

__all__ = [
    "Compressor",
    "Rank",
    "compress",
    "identity",
    "memory_share",
    "power_iteration",
    "quantize",
    "rank_share",
    "top_k",
    "truncated_svd",
]
