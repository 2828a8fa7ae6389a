"""Celery tasks for periodic maintenance ("chores"); imported only by the worker that runs them."""

from human_feedback_site.celery import app
from human_feedback_site.feedback.services.chores import CHORES

_NAMES = {
    "labels of 0.1.0": "labels",
    "expired leases": "leases",
    "expired clips": "media",
    "expired sessions": "sessions",
    "attempts to sign in": "attempts",
}
for _title, _chore in CHORES.items():
    app.task(name=f"chores.{_NAMES.get(_title, _title.replace(' ', '_'))}")(_chore)
