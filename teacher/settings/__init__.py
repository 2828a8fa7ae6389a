"""The settings of a run and its parts, and what their values have to be."""
