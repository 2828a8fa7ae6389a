"""Training runs: setup, training loop, metrics, checkpoints and videos."""
