"""Console, metrics, videos and experiment trackers of a run."""
