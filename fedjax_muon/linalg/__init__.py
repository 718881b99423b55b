"""Matrix functions: polar factors and linear minimization oracles."""
