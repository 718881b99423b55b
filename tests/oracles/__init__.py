"""Literal NumPy transcriptions of the papers' pseudo-code, in float64.

Nothing here imports the library under test, or JAX. Every oracle is a function
``f(x, trace, **hyperparameters)`` that returns the parameters after each round, a list
of dicts of arrays. Rates are numbers or functions of the round, and a ``direction``
makes an array of each leaf's array.
"""
