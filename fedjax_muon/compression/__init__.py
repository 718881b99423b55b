"""Compression of what clients send."""

from fedjax_muon.compression.compress import compress

__all__ = ["compress"]
