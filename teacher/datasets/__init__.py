"""Files in and out: preferences, predictors, trajectories, and other libraries' formats."""
