from . import canary as canary
from . import inversion as inversion

__all__: list[str]
