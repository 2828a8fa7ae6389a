"""Tasks, their reward and termination rules, and episodes that can be replayed."""
