"""The reward predictor: networks, losses, ensemble and normalisation."""
