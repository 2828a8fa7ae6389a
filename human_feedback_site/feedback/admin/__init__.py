"""Django admin: pause and resume experiments, make tokens, and look at everything that was ever answered.

What labelers did is evidence: it can be read here, not changed.
"""

from human_feedback_site.feedback.admin import accounts, comparisons, evidence, experiments, invites, people

__all__ = ["accounts", "comparisons", "evidence", "experiments", "invites", "people"]
