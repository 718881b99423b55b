from . import (
    agents as agents,
    bounds as bounds,
    canary as canary,
    clients as clients,
    findings as findings,
    worlds as worlds,
)

__all__: list[str]
