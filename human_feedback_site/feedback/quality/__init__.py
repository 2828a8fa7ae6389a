"""Label statistics: aggregation into decisions, and agreement between labelers."""
