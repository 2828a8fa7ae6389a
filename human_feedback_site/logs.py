"""The site's log configuration: plain or JSON lines, with request IDs and without secrets.

Doesn't depend on Django's settings.
"""

import logging
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter as BaseJsonFormatter

_WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,64}")
_JSON_NAMES = {"asctime": "time", "levelname": "level", "name": "logger", "exc_info": "traceback"}
_NOT_IN_JSON = (*RESERVED_ATTRS, "request", "status_code")  # Django's extras; a request would show its URL
_current: ContextVar[str | None] = ContextVar("request_id", default=None)

# Secrets and personal IDs to replace anywhere in a log line, including URLs and tracebacks.
_SECRETS = (
    re.compile(r"[\w.-]+(?::|%3A)[\w-]+(?::|%3A)[\w-]{43,}"),  # signatures in links to invitations and clips
    re.compile(r"\b[0-9a-z]{1,12}-[0-9a-z]{1,12}-[0-9a-z]{1,6}-[2-9a-z]{10}\b"),  # codes of short links
    re.compile(r"\btt_[\w-]{8,}"),  # API tokens
    re.compile(r"\bwhsec_[\w+/=-]{8,}"),  # secrets of webhooks
    re.compile(r"(?<=X-Amz-Signature=)\w+"),  # signatures in presigned S3 links
    re.compile(r"(?<=PROLIFIC_PID=)\w+|(?<=SESSION_ID=)\w+"),  # a labeler's IDs on Prolific
    re.compile(r"(?<=://)[^\s/:@]*:[^\s/@]+(?=@)"),  # user and password of a database or a queue
)


@contextmanager
def request(given: str | None) -> Iterator[str]:
    """Set and yield the request ID of all log records in the block: ``given`` if well-formed, or random."""
    request_id = given if given and _WELL_FORMED.fullmatch(given) else uuid.uuid4().hex
    token = _current.set(request_id)
    try:
        yield request_id
    finally:
        _current.reset(token)


def current_request_id() -> str | None:
    """Return the ID of the request in progress, or None outside of a request."""
    return _current.get()


class RequestId(logging.Filter):
    """Logging filter that adds the attribute ``request_id`` to each record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Set ``record.request_id``, and return True to keep the record."""
        record.request_id = current_request_id()
        return True


class OnlyExceptions(logging.Filter):
    """Logging filter for ``django.request`` that keeps only records with a traceback.

    Django's other records only repeat the error status, which the site's own request log already has.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record has a traceback."""
        return record.exc_info is not None


class PlainFormatter(logging.Formatter):
    """Formats log records as plain text, with secrets replaced by ``***``."""

    def __init__(self) -> None:
        super().__init__("{asctime} {levelname} {name} [{request_id}]: {message}", style="{")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line, followed by its traceback if it has one."""
        return _without_secrets(super().format(record))


class JsonFormatter(BaseJsonFormatter):
    """Formats each log record as a JSON object on one line, with secrets replaced by ``***``.

    The fields are time (in UTC), level, logger, request_id, message and the record's ``extra`` fields.
    """

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__(
            ("asctime", "levelname", "name", "request_id", "message"),
            rename_fields=_JSON_NAMES,
            reserved_attrs=_NOT_IN_JSON,
            json_ensure_ascii=False,
        )

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object on one line."""
        return _without_secrets(super().format(record))


FORMATTERS: dict[str, type[logging.Formatter]] = {"json": JsonFormatter, "plain": PlainFormatter}


def configuration(log_format: str) -> dict[str, Any]:
    """Return a configuration for ``logging.config.dictConfig``; ``log_format`` is ``json`` or ``plain``."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"request_id": {"()": RequestId}, "only_exceptions": {"()": OnlyExceptions}},
        "formatters": {"console": {"()": FORMATTERS[log_format]}},
        "handlers": {
            "console": {"class": "logging.StreamHandler", "formatter": "console", "filters": ["request_id"]}
        },
        "root": {"handlers": ["console"], "level": "WARNING"},
        "loggers": {
            "human_feedback_site": {"level": "INFO"},
            "django": {"handlers": [], "level": "WARNING"},
            "django.request": {"level": "ERROR", "filters": ["only_exceptions"]},
            "django.server": {"handlers": [], "level": "WARNING", "propagate": True},
            "celery": {"level": "INFO"},
            "gunicorn.error": {"handlers": ["console"], "level": "INFO", "propagate": False},
            "waitress.queue": {"level": "ERROR"},  # hides a warning about each waiting request
        },
    }


def _without_secrets(text: str) -> str:
    for secret in _SECRETS:
        text = secret.sub("***", text)
    return text
