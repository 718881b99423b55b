"""Gradient inversion: what a neighbour can reconstruct from what an agent releases.

An attack is given a release, a pytree of the parameters' shapes, and knows the model,
its parameters and how many examples were averaged. `releases` says what was released as
a function of the examples: a gradient, one with clipped examples, an innovation of
STORM, and the mean of several releases. `analytic` reads the input out of the first
layer, `matching` searches for examples that would have caused the release, `scores`
compares them with the truth. These are audits: a failed attack proves nothing, since a
better one may exist, and only noise calibrated by `fedjax_muon.privacy` is a promise.
"""

from fedjax_muon.attacks.inversion.analytic import (
    analytic,
    dense_layers,
    first_layer_input,
    last_layer_label,
)
from fedjax_muon.attacks.inversion.matching import cosine_matching, deep_leakage
from fedjax_muon.attacks.inversion.releases import (
    Gradient,
    Restored,
    average,
    clipped,
    cross_entropy_gradient,
    innovation,
)
from fedjax_muon.attacks.inversion.scores import (
    Score,
    matched,
    mean_guess,
    psnr,
    score,
    ssim,
)

__all__ = [
    "Gradient",
    "Restored",
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
