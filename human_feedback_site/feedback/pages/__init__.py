"""HTML pages for labelers and researchers: labeling, experiments, invitations."""
