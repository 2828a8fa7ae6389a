"""Writes: one module for each thing that changes."""
