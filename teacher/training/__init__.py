"""Training runs: setup, training loop and checkpoints."""
