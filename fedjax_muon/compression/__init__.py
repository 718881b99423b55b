"""Compression of the messages that clients send."""

from fedjax_muon.compression.compress import compress
from fedjax_muon.compression.compressors import (
    Compressor,
    Rank,
    memory_share,
    no_compression,
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
    "memory_share",
    "no_compression",
    "power_iteration",
    "quantize",
    "rank_share",
    "top_k",
    "truncated_svd",
]
