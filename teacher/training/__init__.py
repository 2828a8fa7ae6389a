"""Training runs: their setup, training loop, metrics, checkpoints and videos."""
