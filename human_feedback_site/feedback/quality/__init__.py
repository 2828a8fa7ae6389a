"""Statistics of labels: aggregating them into decisions, and measuring how far labelers agree."""
