"""Local and server rules: optax transformations without a learning rate.

They map an ascent direction, such as a gradient, to another one. Transformations of
optax in this form, such as `optax.scale_by_adam()`, are rules too.
"""

from fedjax_muon.transforms.directions import biclip, normalize, sign_scalars
from fedjax_muon.transforms.fedopt import (
    scale_by_fedadagrad,
    scale_by_fedadam,
    scale_by_fedyogi,
)
from fedjax_muon.transforms.layout import muon_dimension_numbers
from fedjax_muon.transforms.muon import (
    Polar,
    ShapeScale,
    by_rank,
    default_rule,
    jordan,
    moonlight,
    muon,
    orthogonalize,
    scale_by_lmo,
    scale_by_muon,
    scale_by_shape,
    spectral,
    unit_directions,
    unscaled,
)

__all__ = [
    "Polar",
    "ShapeScale",
    "biclip",
    "by_rank",
    "default_rule",
    "jordan",
    "moonlight",
    "muon",
    "muon_dimension_numbers",
    "normalize",
    "orthogonalize",
    "scale_by_fedadagrad",
    "scale_by_fedadam",
    "scale_by_fedyogi",
    "scale_by_lmo",
    "scale_by_muon",
    "scale_by_shape",
    "sign_scalars",
    "spectral",
    "unit_directions",
    "unscaled",
]
