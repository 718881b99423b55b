"""The command `fedjax-muon`."""
