"""Reward prediction: networks, losses, ensembles and normalization."""
