"""Orthogonalizations and scales of shapes that public codes have."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tests.oracles.problem import polar

Direction = Callable[[np.ndarray], np.ndarray]
ROUNDING = 1e-13

JORDAN = [(3.4445, -4.7750, 2.0315)]
EXPRESS = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845749, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.875, -1.25, 0.375),
]
SAFE = [(a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in EXPRESS[:-1]] + EXPRESS[-1:]
CUSHIONED = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]
GROWING = [
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]
SERIES: Mapping[str, Sequence[tuple[float, ...]]] = {
    "Jordan x5": JORDAN * 5,
    "Jordan x2": JORDAN * 2,
    "Jordan x3": JORDAN * 3,
    "Jordan x4": JORDAN * 4,
    "Jordan x6": JORDAN * 6,
    "Jordan x10": JORDAN * 10,
    "Jordan x5, spectral norm": JORDAN * 5,
    "Polar Express x5, cushion 0.02": CUSHIONED,
    "Polar Express x5, safety 1.01": SAFE[:5],
    "Polar Express x5": EXPRESS[:5],
    "Polar Express x8, safety 1.01": SAFE + SAFE[-1:],
    "cubic (1.5, -0.5) x5": [(1.5, -0.5, 0)] * 5,
    "cubic (1.5, -0.5) x10": [(1.5, -0.5, 0)] * 10,
    "quintic (2, -1.5, 0.5) x5": [(2, -1.5, 0.5)] * 5,
    "Jordan x8, (2, -1.5, 0.5) x2": JORDAN * 8 + [(2, -1.5, 0.5)] * 2,
    "growing quintics (4.0848, ...) x5": GROWING,
}
SCALES: dict[str, Callable[[int, int], float]] = {
    "none": lambda r, c: 1.0,
    "sqrt(max(1, rows/cols))": lambda r, c: max(1, r / c) ** 0.5,
    "sqrt(max(1, cols/rows))": lambda r, c: max(1, c / r) ** 0.5,
    "0.2 sqrt(max(rows, cols))": lambda r, c: 0.2 * max(r, c) ** 0.5,
    "sqrt(max(rows, cols))": lambda r, c: max(r, c) ** 0.5,
    "sqrt(rows/cols)": lambda r, c: (r / c) ** 0.5,
    "sqrt(cols/rows)": lambda r, c: (c / r) ** 0.5,
    "max(1, rows/cols)": lambda r, c: max(1, r / c),
    "max(1, cols/rows)": lambda r, c: max(1, c / r),
    "rows/cols": lambda r, c: r / c,
    "sqrt(rows cols)": lambda r, c: (r * c) ** 0.5,
    "0.2 sqrt(rows cols)": lambda r, c: 0.2 * (r * c) ** 0.5,
    "1/sqrt(cols)": lambda r, c: c**-0.5,
    "1/sqrt(rows)": lambda r, c: r**-0.5,
    "1/sqrt(min(rows, cols))": lambda r, c: min(r, c) ** -0.5,
}


def orthogonalized(m: np.ndarray, name: str) -> np.ndarray:
    """The exact polar factor, or a series of (a X + b X X'X + c (X X')^2 X)."""
    if name == "exact":  # of differences that are zero but for rounding, zero
        return polar(m) if np.linalg.norm(m) > ROUNDING else np.zeros_like(m)
    if name == "none":
        return m
    wide = m.T if m.shape[0] > m.shape[1] else m
    cushion = 1.01 if "safety" in name else 1.02 if "cushion" in name else 1.0
    size = np.linalg.norm(wide, 2 if "spectral" in name else None)
    X = wide / (size * cushion + 1e-7)
    for a, b, c in SERIES[name]:
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X.T if m.shape[0] > m.shape[1] else X


def direction(
    orthogonalization: str, scale: str, norm: Direction | None = None
) -> Direction:
    """The direction of a matrix [rows, columns]; `norm` stands for the polar factor."""
    turn = norm or (lambda m: orthogonalized(m, orthogonalization))
    return lambda m: SCALES[scale](*m.shape) * turn(m)
