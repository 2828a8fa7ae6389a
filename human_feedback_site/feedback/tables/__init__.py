"""Tables that are exported and imported."""
