from . import (
    canary as canary,
    clients as clients,
    findings as findings,
    inversion as inversion,
    simulated as simulated,
)

__all__: list[str]
