"""Who is given which pair to judge, and for how long: leases and the queue they are taken from."""
