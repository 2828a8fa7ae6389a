"""Tools for saved runs: play, export, extend, plot."""
