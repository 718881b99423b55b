from . import bounds as bounds, canary as canary

__all__: list[str]
