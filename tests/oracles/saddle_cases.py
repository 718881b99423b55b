"""The minimax traces and the table of oracles that their own tests run through."""

from collections.abc import Callable
from typing import Any

from . import minimax as oracle
from .problem import Params
from .saddle import Saddle, draw_saddle, draw_saddle_trace

START = draw_saddle(0)
PARTIAL = draw_saddle_trace(1)
FULL = draw_saddle_trace(2, cohort_size=5)

RATES: dict[str, Any] = {"lr_x": 0.05, "lr_y": 0.15}
SERVER: dict[str, Any] = {"server_lr_x": 1.2, "server_lr_y": 0.7}
FRESH: dict[str, Any] = {"b_x": 0.3, "b_y": 0.2}

# every setting differs between x and y, so that none can take the other's place
ORACLES: dict[str, tuple[Callable[..., list[Saddle]], dict[str, Any]]] = {
    "fed_nsgda_m": (oracle.fed_nsgda_m, RATES | FRESH | SERVER),
    "fedmuon_da": (oracle.fedmuon_da, RATES | FRESH | SERVER),
    "fedsgda_clip": (oracle.fedsgda_clip, RATES | FRESH | SERVER),
    "local_sgda": (oracle.local_sgda, RATES),
    "local_sgdam": (oracle.local_sgdam, RATES | FRESH),
    "fedsgda_m": (oracle.fedsgda_m, RATES | {"a_x": 0.3, "a_y": 0.2}),
    "fsgda": (oracle.fsgda, RATES | SERVER),
    "sagda": (oracle.sagda, RATES | SERVER),
    "fess_gda": (oracle.fess_gda, RATES | SERVER),
}
FULL_ONLY = {"fedsgda_m"}


# ---------------------------------------------------------------------- comparison
def flat(history: list[Saddle]) -> list[Params]:
    """{"x": {"w": ..}, "y": {"v": ..}} as one dict with the keys x.w and y.v."""
    return [
        {f"{part}.{k}": leaf for part in point for k, leaf in point[part].items()}
        for point in history
    ]
