"""Gradient inversion: reconstruction of examples from what an agent releases.

An attack receives a release, a pytree with the parameters' shapes. It knows the model,
its parameters and the number of examples that were averaged. `releases` has releases as
functions of the examples: a gradient, a gradient of clipped examples, an innovation of
STORM, and the mean of several releases. `analytic` reads the input from the gradient of
the first layer, `matching` searches for examples that would have caused the release,
and `scores` compares them with the truth. These are audits: a failed attack proves
nothing, since a better one may exist. Only noise calibrated by `fedjax_muon.privacy`
gives a guarantee.
"""

from experiments.inversion.analytic import (
    analytic,
    dense_layers,
    first_layer_input,
    last_layer_label,
)
from experiments.inversion.matching import cosine_matching, deep_leakage
from experiments.inversion.releases import (
    Gradient,
    Reconstruction,
    average,
    clipped,
    cross_entropy_gradient,
    innovation,
)
from experiments.inversion.scores import (
    Score,
    matched,
    mean_guess,
    psnr,
    score,
    ssim,
)

__all__ = [
    "Gradient",
    "Reconstruction",
    "Score",
    "analytic",
    "average",
    "clipped",
    "cosine_matching",
    "cross_entropy_gradient",
    "deep_leakage",
    "dense_layers",
    "first_layer_input",
    "innovation",
    "last_layer_label",
    "matched",
    "mean_guess",
    "psnr",
    "score",
    "ssim",
]
