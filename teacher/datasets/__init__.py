"""Import and export of preferences, predictors and trajectories, including other libraries' formats."""
