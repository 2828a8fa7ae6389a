"""Celery tasks for periodic maintenance ("chores"); imported only by the worker that runs them.

Each task returns a summary for the log.
"""

from human_feedback_site.celery import app
from human_feedback_site.feedback.services import chores, decisions


@app.task(name="chores.stale_runs")
def forget_stale_runs() -> str:
    """Clear ``waiting_for`` in experiments whose trainer hasn't contacted the site for a while."""
    return chores.forget_stale_runs()


@app.task(name="chores.labelers")
def weigh_labelers() -> str:
    """Re-estimate labeler reliability from new labels and update the affected decisions."""
    return chores.weigh_labelers()


@app.task(name="chores.deletions")
def finish_deletions() -> str:
    """Continue experiment deletions that were interrupted or took too long for one request."""
    return chores.finish_deletions()


@app.task(name="chores.labels")
def complete_labels() -> str:
    """Complete labels that processes of 0.1.0 wrote during an upgrade."""
    return decisions.complete_labels()


@app.task(name="chores.leases")
def forget_leases() -> str:
    """Delete leases that expired long ago and were never answered."""
    return chores.forget_leases()


@app.task(name="chores.media")
def expire_media() -> str:
    """Delete the clips of experiments that finished more than ``MEDIA_KEEP_DAYS`` days ago."""
    return chores.expire_media()


@app.task(name="chores.sessions")
def forget_sessions() -> str:
    """Delete expired sessions."""
    return chores.forget_sessions()


@app.task(name="chores.attempts")
def forget_attempts() -> str:
    """Delete expired counts of sign-in attempts and wrong API tokens."""
    return chores.forget_attempts()


@app.task(name="chores.webhooks")
def send_webhooks() -> str:
    """Send the webhooks' events that are due."""
    return chores.send_webhooks()
