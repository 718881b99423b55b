"""Runs: their configuration, directories and resumption."""
