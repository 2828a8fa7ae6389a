"""Django admin: pause and resume experiments, make tokens, and look at everything that was ever answered.

What labelers did is evidence: it can be read here, not changed.
"""

from django.contrib import admin

from human_feedback_site.feedback.admin import comparisons, evidence, experiments, invites, people
from human_feedback_site.feedback.pages.sign_in import AdminSignInForm

__all__ = ["comparisons", "evidence", "experiments", "invites", "people"]

admin.site.login_form = AdminSignInForm
admin.site.site_header = admin.site.site_title = "RL-Teacher"
