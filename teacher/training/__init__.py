"""What makes a run: its parts, the loop around them, and what is told of it."""
