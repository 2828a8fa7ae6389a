"""What is kept: episodes' segments, preferences, the ledger, checkpoints, demonstrations."""
