"""The labeling site, seen from the trainer."""
