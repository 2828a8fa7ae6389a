"""The trainer's connection to the labeling site."""
