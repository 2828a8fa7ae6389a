"""The site's one app: comparisons, leases, labels and the decisions they lead to."""
