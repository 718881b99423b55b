from . import canary as canary
from . import clients as clients
from . import findings as findings
from . import inversion as inversion
from . import simulated as simulated

__all__: list[str]
