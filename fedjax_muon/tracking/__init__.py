"""Trackers of training: TensorBoard, Weights & Biases, Trackio, MLflow, JSON lines.

A `Tracker` is given to `train` among its callbacks. What it fails to write stops no
training: a warning says so once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
