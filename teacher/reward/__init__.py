"""Reward models: networks, preference loss, ensemble fitting and reward normalization."""
