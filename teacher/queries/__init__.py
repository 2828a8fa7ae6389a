"""Query selection, label schedules, scripted teachers and preference learning."""
