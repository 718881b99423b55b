"""Variants of Muon, whose matrices have a row for every output unit, as in papers."""

import math

import numpy as np


def orth(x):
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    return (u * (s > 1e-12)) @ vt


def norm(x):
    return np.sqrt(np.sum(np.square(x)))


def nesterov(given, beta):
    """Momenta (1 - beta) g + beta m of exponential averages from zero."""
    m, found = np.zeros_like(given[0]), []
    for g in given:
        m = beta * m + (1 - beta) * g
        found.append((1 - beta) * g + beta * m)
    return found


def normuon(given, beta=0.95, beta2=0.95, direction=orth):
    """NorMuon (Li et al. 2025, arXiv 2510.05491): the steps of one matrix."""
    o, i = given[0].shape
    v = np.zeros(o)
    for n in nesterov(given, beta):
        O, hat = direction(n), np.zeros((o, i))
        for p in range(o):
            v[p] = beta2 * v[p] + (1 - beta2) * np.mean(O[p] ** 2)
            hat[p] = O[p] / (np.sqrt(v[p]) + 1e-10)
        yield math.sqrt(max(1, o / i)) * hat * norm(O) / (norm(hat) + 1e-10)


def adamuon(given, beta=0.95, direction=orth):
    """AdaMuon (Si et al. 2025, arXiv 2507.11005): the steps of one matrix."""
    v = np.zeros_like(given[0])
    for n in nesterov(given, beta):
        O = direction(np.sign(n))
        v = beta * v + (1 - beta) * O**2
        hat = O / (np.sqrt(v) + 1e-8)
        yield 0.2 * math.sqrt(v.size) * hat / (norm(hat) + 1e-8)
