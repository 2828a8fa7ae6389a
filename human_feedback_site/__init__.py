"""Django project of the labeling site, which doesn't depend on the training code."""
