"""Execution of rounds of any algorithm on simulated clients."""

from fedjax_muon.engine.round import (
    Draw,
    State,
    Steps,
    Traffic,
    check_stacks,
    exchange_keys,
    init,
    make_prologue,
    make_round,
    traffic,
)

__all__ = [
    "Draw",
    "State",
    "Steps",
    "Traffic",
    "check_stacks",
    "exchange_keys",
    "init",
    "make_prologue",
    "make_round",
    "traffic",
]
