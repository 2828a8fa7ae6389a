"""What a run reports: console, metrics, videos, experiment trackers."""
