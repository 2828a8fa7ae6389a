"""Pages for people: labeling, experiments, invitations."""
