"""Import and export: preferences, predictors, trajectories, and other libraries' formats."""
