"""Numerics for agents and reward models: Adam on joined parameters, running moments, correlation."""
