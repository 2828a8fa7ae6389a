"""Data of a run: segments, preferences, the ledger, checkpoints and demonstrations."""
