"""Grids of hyperparameters and seeds, in one compiled program, on several machines."""
