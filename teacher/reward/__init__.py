"""The reward predictor: networks, losses, ensemble and normalization."""
