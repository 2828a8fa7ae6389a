"""Reads the site's settings from environment variables; default paths are in the state folder.

Functions raise :class:`~django.core.exceptions.ImproperlyConfigured` with a one-line message if a variable's
value is invalid.
"""

import ctypes
import errno
import importlib.util
import ipaddress
import json
import mmap
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from human_feedback_site.logs import FORMATTERS
from human_feedback_site.private import make_private_folder

WEB_PROCESSES = 2
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# These timeouts end connections to an unreachable PostgreSQL server within seconds. The kernel's defaults
# would block requests for a quarter of an hour.
POSTGRESQL_OPTIONS = {
    "connect_timeout": 5,
    "tcp_user_timeout": 20_000,  # milliseconds
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    # Prepare repeated statements on the server, because most take longer to plan than to run.
    "server_side_binding": True,
    "prepare_threshold": 5,
}
# First path segments of the site's own URLs. TEACHER_PUBLIC_URL can't have a path that begins with one of
# them, because the site couldn't detect if a proxy has removed it.
OWN_ADDRESSES = (
    *("accounts", "admin", "api", "experiments", "i18n", "j", "join"),
    *("livez", "media", "metrics", "readyz", "session", "static"),
)
_HOST = r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]"
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}


def read_bool(name: str) -> bool:
    """Read a boolean from the environment variable ``name``; False if unset."""
    value = os.environ.get(name, "").strip().lower()
    if value not in _TRUE | _FALSE:
        raise ImproperlyConfigured(f"{name} must be 1 or 0, not {value!r}.")
    return value in _TRUE


def read_list(name: str) -> list[str]:
    """Read comma-separated values from the environment variable ``name``, skipping empty ones."""
    return [item.strip() for item in os.environ.get(name, "").split(",") if item.strip()]


def read_hosts(name: str) -> list[str]:
    """Read comma-separated hosts from the environment variable ``name``, for Django's ``ALLOWED_HOSTS``."""
    hosts = read_list(name)
    for host in hosts:
        if host != "*" and not re.fullmatch(_HOST, host):
            raise ImproperlyConfigured(
                f"{name} must be comma-separated hosts without scheme, port or path, not {host!r}."
            )
    return hosts


def read_hosts_and_networks(name: str) -> list[str]:
    """Read comma-separated host names, lowercased, and IP networks from the environment variable ``name``."""
    entries = [entry.lower() for entry in read_list(name)]
    for index, entry in enumerate(entries):
        try:
            entries[index] = str(ipaddress.ip_network(entry))
        except ValueError:
            if not re.fullmatch(r"[a-z0-9._-]*[a-z][a-z0-9._-]*", entry):
                raise ImproperlyConfigured(
                    f"{name} must be comma-separated hosts and networks such as 10.0.0.0/8, not {entry!r}."
                ) from None
    return entries


def read_count(name: str, default: int, *, least: int = 0, most: int = 9999) -> int:
    """Read an integer from the environment variable ``name``; return ``default`` if it is unset."""
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    if not re.fullmatch(r"[0-9]{1,5}", value) or not least <= int(value) <= most:
        raise ImproperlyConfigured(
            f"{name} must be a whole number from {least} to {most}, not {value!r}; the default is {default}."
        )
    return int(value)


def read_url(name: str) -> str | None:
    """Read an HTTP or HTTPS URL from the environment variable ``name``; None if unset."""
    value = os.environ.get(name, "").strip().rstrip("/")
    if not value:
        return None
    parts = _split(value)
    if parts is None or parts.scheme not in {"http", "https"} or "@" in parts.netloc:
        raise ImproperlyConfigured(
            f"{name} must look like https://host[:port], with no spaces, username, query or fragment."
        )  # the message leaves out the value because it may contain a password
    return parts._replace(netloc=parts.netloc.lower()).geturl()  # browsers send the host in lowercase


def read_s3_endpoint(name: str, storage: str, announced: str = "") -> str | None:
    """Read the S3 server's URL from ``name``, or return ``announced``; None for Amazon S3."""
    value = read_url(name) or announced or None
    bucket = urlsplit(storage).netloc
    if value is not None and bucket and urlsplit(value).path.rpartition("/")[2] == bucket:
        raise ImproperlyConfigured(
            f"{name} must not contain the bucket, which is set in TEACHER_STORAGE; "
            f"use {value.rpartition('/')[0]}, not {value}."
        )
    return value


def read_origin(name: str) -> str | None:
    """Read ``scheme://host[:port]`` from the environment variable ``name``; None if unset."""
    value = read_url(name)
    if value is not None and urlsplit(value).path:
        raise ImproperlyConfigured(
            f"{name} must look like https://host[:port], without a path, not {value!r}."
        )
    return value


def read_public_url(name: str) -> str | None:
    """Read ``scheme://host[:port][/path]`` from the environment variable ``name``; None if unset."""
    value = read_url(name)
    path = path_of(value)
    if not re.fullmatch(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*", path):
        raise ImproperlyConfigured(
            f"{name} must be a URL whose path has only letters, digits, - _ ~ and ., such as "
            f"https://host/teacher, not {value!r}."
        )
    if path and path.split("/")[1] in OWN_ADDRESSES:
        raise ImproperlyConfigured(
            f"The path in {name} can't be {path}, because the site's own URLs begin with "
            f"/{path.split('/')[1]}; use a different one, such as /teacher."
        )
    return value


def read_redis_url() -> str:
    """Read ``REDIS_URL``, which must be set if Celery runs the periodic tasks."""
    value = os.environ.get("REDIS_URL", "").strip()
    parts = _split(value)
    if parts is None or parts.scheme != "redis" or not re.fullmatch(r"(/[0-9]*)?", parts.path):
        raise ImproperlyConfigured(
            "REDIS_URL must look like redis://:password@host:6379/0, "
            "with / ? # in the password written as %2F %3F %23."
        )  # the message leaves out the value because it may contain a password
    return value


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL, or None if it's invalid or has whitespace, a query or a fragment."""
    try:
        parts = urlsplit(url)
        if parts.port == 0 or re.search(r"[\s?#]", url):
            return None
    except ValueError:  # invalid port or IPv6 address
        return None
    host_and_port = parts.netloc.rpartition("@")[2]
    return parts if re.fullmatch(f"({_HOST})(:[0-9]+)?", host_and_port) else None


def origin_of(url: str) -> str:
    """Return the origin ``scheme://host[:port]`` of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def path_of(url: str | None) -> str:
    """Return a URL's path without a trailing slash; empty if there is none."""
    return urlsplit(url or "").path.rstrip("/")


def host_of(url: str) -> str:
    """Return a URL's host as browsers send it: lowercase, and with brackets around an IPv6 address."""
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host


def read_database(state_dir: Path) -> dict[str, Any]:
    """Return the Django ``DATABASES`` entry for the database that ``DATABASE_URL`` specifies.

    If the variable is unset, the database is a SQLite file in the state folder. SQLite uses a write-ahead
    log (a rollback journal on a network file system), ``synchronous=FULL`` (an acknowledged label survives a
    power failure) and immediate transactions (a transaction takes the write lock before it reads, so it never
    acts on outdated data).

    PostgreSQL connections are persistent (for ten minutes), so that prepared statements can be reused. Each
    request health-checks its connection before using it.
    """
    url = os.environ.get("DATABASE_URL", "").strip()
    if not url:
        make_private_folder(state_dir)
        url = f"sqlite:///{state_dir / 'site.sqlite3'}"
    try:
        config: dict[str, Any] = dict(dj_database_url.parse(url, conn_max_age=600, conn_health_checks=True))
    except (ValueError, KeyError):
        raise _no_database() from None
    options = config.get("OPTIONS", {})
    if config["ENGINE"] == "django.db.backends.sqlite3":
        if config.get("HOST") or ":memory:" in config["NAME"]:  # "//" instead of "///", or not persistent
            raise _no_database()
        journal = "WAL" if shares_memory(Path(config["NAME"]).absolute().parent) else "DELETE"
        config["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": f"PRAGMA journal_mode={journal}; PRAGMA synchronous=FULL;",
        }
    elif config["ENGINE"] == "django.db.backends.postgresql":
        if not config["NAME"] or not (config["HOST"] or options.get("host")):
            raise _no_database()
        config["OPTIONS"] = POSTGRESQL_OPTIONS | options
    else:
        raise ImproperlyConfigured("DATABASE_URL must be the URL of a PostgreSQL or SQLite database.")
    return config


def _no_database() -> ImproperlyConfigured:
    return ImproperlyConfigured(  # the message leaves out the value because it may contain a password
        "DATABASE_URL must look like postgresql://user:password@host:port/name or sqlite:////path/to/file."
    )


def read_log_format() -> str:
    """Read ``LOG_FORMAT``; if unset, return ``json`` if ``DATABASE_URL`` is set, else ``plain``."""
    value = os.environ.get("LOG_FORMAT", "").strip() or (
        "json" if os.environ.get("DATABASE_URL") else "plain"
    )
    if value not in FORMATTERS:
        raise ImproperlyConfigured(f"LOG_FORMAT must be {' or '.join(sorted(FORMATTERS))}, not {value!r}.")
    return value


def announced_store(state_dir: Path) -> tuple[str, str]:
    """Return the clip store and S3 endpoint that an embedded site wrote to ``site/lock`` in the state folder.

    Both are empty if there was no such site, or if its clips are in the state folder.
    """
    site = _announcement(state_dir)
    storage, endpoint = str(site.get("storage", "")), str(site.get("s3_endpoint_url", ""))
    if not storage.startswith("s3://") and not Path(storage).is_absolute():
        return "", ""  # empty, or a relative path whose base is unknown
    return storage, endpoint


def announced_url(state_dir: Path) -> str | None:
    """Return the URL of the embedded site that runs in the state folder, or None."""
    site = _announcement(state_dir)
    url = site.get("public_url") or site.get("url")
    return str(url) if site.get("url") and url else None


def _announcement(state_dir: Path) -> dict[str, Any]:
    """Return what an embedded site wrote to ``site/lock``; empty if none has used the folder."""
    try:
        site = json.loads((state_dir / "site" / "lock").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return site if isinstance(site, dict) else {}


def read_storage(state_dir: Path, announced: str = "") -> str:
    """Read ``TEACHER_STORAGE``, a bucket or folder; the default is ``announced`` or else ``media``."""
    value = os.environ.get("TEACHER_STORAGE", "").strip()
    name = "TEACHER_STORAGE" if value else f"The clip store in {state_dir / 'site' / 'lock'}"
    value = value or announced
    if value.startswith("s3://"):
        if not re.fullmatch(r"s3://[A-Za-z0-9._-]+(/[^\s?#]*)?", value):
            raise ImproperlyConfigured(
                f"{name} must look like s3://bucket/prefix, with no spaces, username, port or query."
            )
        return value
    if "://" in value:
        raise ImproperlyConfigured(f"{name} must be s3://bucket/prefix or a folder, not {value!r}.")
    return str(Path(value).resolve() if value else state_dir / "media")


def require_s3_credentials(endpoint: str | None) -> None:
    """Check that boto3 finds S3 credentials, without contacting the S3 server.

    The machine's IAM role is considered only for Amazon S3 (when ``endpoint`` is None).
    """
    from botocore.exceptions import (  # noqa: PLC0415 (only needed if clips are in S3)
        BotoCoreError,
        InvalidRegionError,
        ProfileNotFound,
    )
    from botocore.session import Session  # noqa: PLC0415
    from botocore.utils import validate_region_name  # noqa: PLC0415

    session = Session()
    try:
        validate_region_name(session.get_config_variable("region"))
        if endpoint is not None:
            session.get_component("credential_provider").remove("iam-role")
        found = session.get_credentials()
    except ProfileNotFound as error:
        raise ImproperlyConfigured(f"AWS_PROFILE is invalid: {error}; correct or unset it.") from error
    except InvalidRegionError as error:
        region = session.get_config_variable("region")
        raise ImproperlyConfigured(
            f"AWS_DEFAULT_REGION must be a region such as us-east-1, not {region!r}."
        ) from error
    except BotoCoreError:  # incomplete credentials, or a file that can't be read
        found = None
    if found is None:
        raise ImproperlyConfigured(
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set if TEACHER_STORAGE is in S3."
        )


# Magic numbers (statfs(2)) of ext2 to ext4, XFS, Btrfs, tmpfs, overlay, ZFS, F2FS, ramfs and bcachefs.
_LOCAL = frozenset(
    (0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0x2FC12FC1, 0xF2F52010, 0x858458F6, 0xCA451A4E)
)


def shares_memory(folder: Path) -> bool:
    """Return True if processes can share memory through files in a folder, as a write-ahead log needs.

    On Linux, a file system that is not known to be local is taken for a network file system such as NFS,
    whose machines don't see each other's memory.
    """
    if sys.platform == "linux":
        status = ctypes.create_string_buffer(1024)
        failed = ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(folder), status)
        if not failed and ctypes.c_ulong.from_buffer(status).value not in _LOCAL:
            return False
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(mmap.PAGESIZE)
            mmap.mmap(file.fileno(), mmap.PAGESIZE).close()
    except PermissionError:
        return True  # a folder that can't be written, which is another problem
    except OSError as error:
        return error.errno != errno.ENODEV
    return True


def is_safe(url: str) -> bool:
    """Return True if a URL's scheme is https, or if its host is this machine."""
    return url.startswith("https://") or (url.startswith("http://") and host_of(url) in LOOPBACK)


def read_issuer(name: str) -> str | None:
    """Read an OpenID Connect issuer's URL from the environment variable ``name``; None if unset."""
    value = read_url(name)
    if value is not None and not is_safe(value):
        raise ImproperlyConfigured(
            f"{name} must begin with https:// unless the provider runs on this machine, not {value!r}."
        )
    return value


def read_scopes(name: str, default: str) -> str:
    """Read space-separated OpenID Connect scopes; ``openid``, which every provider requires, is added."""
    scopes = os.environ.get(name, "").split() or default.split()
    return " ".join(dict.fromkeys(["openid", *scopes]))


def require_package() -> None:
    """Raise ``ImproperlyConfigured`` if the package that single sign-on needs is not installed."""
    if importlib.util.find_spec("mozilla_django_oidc") is None:
        raise ImproperlyConfigured(
            "Single sign-on (OIDC_ISSUER) needs mozilla-django-oidc, which is not installed; "
            "to install: pip install 'rl-teacher[sso]'"
        )


def missing_variables(settings: object) -> str | None:
    """If the variables of single sign-on are incomplete, return a message that names them; otherwise None."""
    required = {
        "OIDC_ISSUER": "OIDC_ISSUER",
        "OIDC_CLIENT_ID": "OIDC_RP_CLIENT_ID",
        "OIDC_CLIENT_SECRET": "OIDC_RP_CLIENT_SECRET",
    }
    optional = {name: name for name in ("OIDC_NAME", "OIDC_RESEARCHERS", "OIDC_ADMINS")}
    given = [name for name, setting in (required | optional).items() if getattr(settings, setting)]
    missing = [name for name in required if name not in given]
    if not missing or not given:
        return None
    return (
        "Single sign-on needs OIDC_ISSUER, OIDC_CLIENT_ID and OIDC_CLIENT_SECRET; "
        f"set {' and '.join(missing)}, or unset {' and '.join(given)}."
    )


def require_all_variables(settings: object) -> None:
    """Raise ``ImproperlyConfigured`` if :func:`missing_variables` returns a message for the settings."""
    problem = missing_variables(settings)
    if problem is not None:
        raise ImproperlyConfigured(problem)
