"""The labeling site: a Django project that knows nothing of how agents learn."""
