"""Local and server rules: optax transformations without a learning rate.

They map an ascent direction, such as a gradient, to another one. Transformations of
optax in this form, such as `optax.scale_by_adam()`, are rules too.
"""

from fedjax_muon.transforms.directions import (
    biclip,
    heavy_ball,
    normalize,
    sign_scalars,
)
from fedjax_muon.transforms.fedopt import (
    scale_by_fadas,
    scale_by_fedadagrad,
    scale_by_fedadam,
    scale_by_fedyogi,
)
from fedjax_muon.transforms.hyperball import hyperball
from fedjax_muon.transforms.layout import hidden_matrices, muon_dimension_numbers
from fedjax_muon.transforms.lora import lora_muon
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
from fedjax_muon.transforms.scion import (
    clip_by_dual_norm,
    input_direction,
    output_direction,
    rms_direction,
    scale_by_scion,
    sign_direction,
    spectral_direction,
)
from fedjax_muon.transforms.soap import scale_by_soap
from fedjax_muon.transforms.variants import (
    equilibrate,
    normalize_axes,
    orthogonalize_blocks,
    scale_by_adamuon,
    scale_by_mars,
    scale_by_muon2,
    scale_by_normuon,
)

__all__ = [
    "Polar",
    "ShapeScale",
    "biclip",
    "by_rank",
    "clip_by_dual_norm",
    "default_rule",
    "equilibrate",
    "heavy_ball",
    "hidden_matrices",
    "hyperball",
    "input_direction",
    "jordan",
    "lora_muon",
    "moonlight",
    "muon",
    "muon_dimension_numbers",
    "normalize",
    "normalize_axes",
    "orthogonalize",
    "orthogonalize_blocks",
    "output_direction",
    "rms_direction",
    "scale_by_adamuon",
    "scale_by_fadas",
    "scale_by_fedadagrad",
    "scale_by_fedadam",
    "scale_by_fedyogi",
    "scale_by_lmo",
    "scale_by_mars",
    "scale_by_muon",
    "scale_by_muon2",
    "scale_by_normuon",
    "scale_by_scion",
    "scale_by_shape",
    "scale_by_soap",
    "sign_direction",
    "sign_scalars",
    "spectral",
    "spectral_direction",
    "unit_directions",
    "unscaled",
]
