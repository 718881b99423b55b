"""Grids of hyper-parameters and seeds, in one compiled program, on several machines."""
