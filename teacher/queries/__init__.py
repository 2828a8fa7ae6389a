"""Which pairs are asked about, when, and of whom; and what is learned from the answers."""
