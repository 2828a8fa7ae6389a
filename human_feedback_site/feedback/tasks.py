"""The chores as Celery tasks. Only the process that does chores imports this."""

from human_feedback_site.celery import app
from human_feedback_site.feedback.services import chores


@app.task(name="chores.stale_runs")
def forget_stale_runs() -> str:
    """See :func:`.chores.forget_stale_runs`."""
    return chores.forget_stale_runs()


@app.task(name="chores.waiting_labels")
def settle_labels() -> str:
    """See :func:`.chores.settle_labels`."""
    return chores.settle_labels()


@app.task(name="chores.labelers")
def weigh_labelers() -> str:
    """See :func:`.chores.weigh_labelers`."""
    return chores.weigh_labelers()


@app.task(name="chores.deletions")
def finish_deletions() -> str:
    """See :func:`.chores.finish_deletions`."""
    return chores.finish_deletions()


@app.task(name="chores.leases")
def forget_leases() -> str:
    """See :func:`.chores.forget_leases`."""
    return chores.forget_leases()


@app.task(name="chores.media")
def expire_media() -> str:
    """See :func:`.chores.expire_media`."""
    return chores.expire_media()


@app.task(name="chores.sessions")
def forget_sessions() -> str:
    """See :func:`.chores.forget_sessions`."""
    return chores.forget_sessions()


@app.task(name="chores.attempts")
def forget_attempts() -> str:
    """See :func:`.chores.forget_attempts`."""
    return chores.forget_attempts()
