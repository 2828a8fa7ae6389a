"""Celery application for render workers: ``celery --app teacher.render_tasks worker --concurrency 2``."""

from teacher.clips.tasks import app

__all__ = ["app"]
