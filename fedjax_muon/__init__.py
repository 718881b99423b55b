"""Federated optimization built around Muon, in JAX."""

from fedjax_muon.versions import PACKAGE_VERSION, check_versions

check_versions()

__version__ = PACKAGE_VERSION
