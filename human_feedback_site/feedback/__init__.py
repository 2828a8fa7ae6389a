"""Django app of the site: comparisons, leases, labels and decisions."""
