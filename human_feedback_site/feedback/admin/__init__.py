"""Django admin: manage experiments, labelers, invitations and API tokens, and view all labels.

Labels, undos and decisions are read-only here, because they are research data.
"""

from human_feedback_site.feedback.admin import comparisons, experiments, people, webhooks

__all__ = ["comparisons", "experiments", "people", "webhooks"]
