"""The traces that tests of methods run through."""

import numpy as np

from .problem import draw_params, draw_trace

SIZES = [3, 9, 5, 14, 7]
X = draw_params(0)
PARTIAL = draw_trace(1, 5, 3, 4, 6, 5, SIZES)
FULL = draw_trace(2, 5, 5, 4, 6, 5, SIZES)
ONE_STEP = draw_trace(3, 5, 5, 1, 6, 6, SIZES)
ONE_STEP_PARTIAL = draw_trace(4, 5, 3, 1, 6, 8, SIZES)
ALONE = draw_trace(5, 1, 1, 4, 6, 4, [9])
COSINE = lambda r: 0.05 * 0.5 * (1 + np.cos(np.pi * r / 6))
