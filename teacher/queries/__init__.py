"""Query selection, label schedules, scripted teachers, and learning from the labels."""
