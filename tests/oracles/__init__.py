"""Literal NumPy transcriptions of the papers' pseudo-code, in float64.

Nothing here imports the library under test, or JAX. Every oracle is a function
``f(x, trace, **hyperparameters)`` that returns the parameters after each round.
"""
