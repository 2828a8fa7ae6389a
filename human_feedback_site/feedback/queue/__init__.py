"""The labeling queue: choosing comparisons for labelers and leasing them."""
