"""The trainer's side of the labeling site."""
