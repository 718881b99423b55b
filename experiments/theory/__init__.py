"""What the papers on federated Muon claim, measured on matrix quadratics."""
