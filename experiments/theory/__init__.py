"""Theorems on federated Muon, measured on matrix quadratics."""
