"""The site's log: one format for all that a process says, and the id of the request that a line belongs to.

Nothing here needs Django's settings: gunicorn's master, which never loads the site, logs the same way.
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
_NOT_IN_JSON = (*RESERVED_ATTRS, "request", "status_code")  # Django's two; a request would show its address
_current: ContextVar[str | None] = ContextVar("request_id", default=None)

# What opens a door, wherever it turns up: in an address that Django complains about, in a traceback, ...
_SECRETS = (
    re.compile(r"[\w.-]+(?::|%3A)[\w-]+(?::|%3A)[\w-]{43,}"),  # signed: links of invitations and clips
    re.compile(r"\btt_[\w-]{8,}"),  # API tokens
    re.compile(r"(?<=X-Amz-Signature=)\w+"),  # presigned links of the media store
    re.compile(r"(?<=PROLIFIC_PID=)\w+|(?<=SESSION_ID=)\w+"),  # who somebody is on another site
    re.compile(r"(?<=://)[^\s/:@]*:[^\s/@]+(?=@)"),  # user and password of a database or a queue
)


@contextmanager
def request(given: str | None) -> Iterator[str]:
    """Give all that is logged in this context one id: the ``given`` one if well-formed, else a new one."""
    request_id = given if given and _WELL_FORMED.fullmatch(given) else uuid.uuid4().hex
    token = _current.set(request_id)
    try:
        yield request_id
    finally:
        _current.reset(token)


def current_request_id() -> str | None:
    """Return the id of the request that is being answered, if one is."""
    return _current.get()


class RequestId(logging.Filter):
    """Gives each record the attribute ``request_id``."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record."""
        record.request_id = current_request_id()
        return True


class OnlyExceptions(logging.Filter):
    """For ``django.request``: that an answer has a bad status is in the line about the request already."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep what has a traceback."""
        return record.exc_info is not None


class PlainFormatter(logging.Formatter):
    """Lines for people, without secrets."""

    def __init__(self) -> None:
        super().__init__("{asctime} {levelname} {name} [{request_id}]: {message}", style="{")

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and a traceback below it."""
        return _without_secrets(super().format(record))


class JsonFormatter(BaseJsonFormatter):
    """One JSON object a line, without secrets: time (UTC), level, logger, request_id, message, ``extra``."""

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
        """Return one line."""
        return _without_secrets(super().format(record))


FORMATTERS: dict[str, type[logging.Formatter]] = {"json": JsonFormatter, "plain": PlainFormatter}


def configuration(log_format: str) -> dict[str, Any]:
    """Return what ``logging.config.dictConfig`` is to be given for a format of ``FORMATTERS``."""
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
            "gunicorn.http.wsgi": {"level": "ERROR"},  # it warns of each HEAD, whose body it has to leave out
        },
    }


def _without_secrets(text: str) -> str:
    for secret in _SECRETS:
        text = secret.sub("***", text)
    return text
