"""Reading settings from environment variables, and the state folder of a site that has none.

Every function fails loudly: a value that cannot be understood stops the site with one line.
"""

import json
import os
import re
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from human_feedback_site.logs import FORMATTERS

WEB_PROCESSES = 2
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
SECRET_KEY_MIN_LENGTH = 50  # and fewer than five characters that differ are a placeholder: as Django has it
SECRET_KEY_MIN_DIFFERENT = 5
_KEY_RECIPE = "python -c 'import secrets; print(secrets.token_urlsafe(50))'"
# A PostgreSQL server that does not answer is given up in seconds: the kernel would try for a quarter of an
# hour to reach a host that has vanished, and all requests would wait for it.
POSTGRESQL_OPTIONS = {
    "connect_timeout": 5,
    "tcp_user_timeout": 20_000,  # milliseconds
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    # Statements that come again stay prepared on their connection: most take longer to plan than to run.
    "server_side_binding": True,
    "prepare_threshold": 5,
}
# What the site's own addresses begin with. Of such a path nobody could tell whether a proxy has cut it off.
OWN_ADDRESSES = (
    *("accounts", "admin", "api", "experiments", "i18n", "join"),
    *("livez", "media", "readyz", "session", "static"),
)
_HOST = r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]"
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}


def read_bool(name: str) -> bool:
    """Return the truth value of the variable ``name``; unset is false."""
    value = os.environ.get(name, "").strip().lower()
    if value not in _TRUE | _FALSE:
        raise ImproperlyConfigured(f"{name} must be 1 or 0, not {value!r}.")
    return value in _TRUE


def read_list(name: str) -> list[str]:
    """Return the comma-separated values of the variable ``name``."""
    return [item.strip() for item in os.environ.get(name, "").split(",") if item.strip()]


def read_hosts(name: str) -> list[str]:
    """Return the comma-separated hosts in the variable ``name``, as Django's ``ALLOWED_HOSTS`` has them."""
    hosts = read_list(name)
    for host in hosts:
        if host != "*" and not re.fullmatch(_HOST, host):
            raise ImproperlyConfigured(
                f"{name} must be hosts without scheme, port and path, separated by commas, not {host!r}."
            )
    return hosts


def read_count(name: str, default: int, *, least: int = 0, most: int = 9999) -> int:
    """Return the whole number in the variable ``name``; unset, ``default``."""
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    if not re.fullmatch(r"[0-9]{1,5}", value) or not least <= int(value) <= most:
        raise ImproperlyConfigured(
            f"{name} must be a whole number from {least} to {most}, not {value!r}; unset, it is {default}."
        )
    return int(value)


def read_url(name: str) -> str | None:
    """Return the address in the variable ``name`` without a slash at its end, or None where it is unset."""
    value = os.environ.get(name, "").strip().rstrip("/")
    if not value:
        return None
    parts = _split(value)
    if parts is None or parts.scheme not in {"http", "https"} or "@" in parts.netloc:
        raise ImproperlyConfigured(
            f"{name} must look like https://host[:port], without blanks, user, query and fragment."
        )  # the value may hold a password
    return parts._replace(netloc=parts.netloc.lower()).geturl()  # as browsers send it


def read_s3_endpoint(name: str, storage: str, announced: str = "") -> str | None:
    """Return the address of the S3 server in the variable ``name``.

    Unset, it is that of the ``announced`` store; None is Amazon's.
    """
    value = read_url(name) or announced or None
    bucket = urlsplit(storage).netloc
    if value is not None and bucket and urlsplit(value).path.rpartition("/")[2] == bucket:
        raise ImproperlyConfigured(
            f"{name} must not contain the bucket, which TEACHER_STORAGE names; "
            f"use {value.rpartition('/')[0]}, not {value}."
        )
    return value


def read_origin(name: str) -> str | None:
    """Return ``scheme://host[:port]`` from the variable ``name``, or None where it is unset."""
    value = read_url(name)
    if value is not None and urlsplit(value).path:
        raise ImproperlyConfigured(
            f"{name} must look like https://host[:port], without a path, not {value!r}."
        )
    return value


def read_public_url(name: str) -> str | None:
    """Return ``scheme://host[:port][/path]`` from the variable ``name``, or None where it is unset."""
    value = read_url(name)
    path = path_of(value)
    if not re.fullmatch(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*", path):
        raise ImproperlyConfigured(
            f"{name} must have a path of letters, digits, - _ ~ and . alone, such as https://host/teacher, "
            f"not {value!r}."
        )
    if path and path.split("/")[1] in OWN_ADDRESSES:
        raise ImproperlyConfigured(
            f"{name} must have another path than {path}, such as /teacher: "
            f"the site's own addresses begin with /{path.split('/')[1]}."
        )
    return value


def read_redis_url() -> str:
    """Return ``REDIS_URL``, which the site's chores need and nothing else here does."""
    value = os.environ.get("REDIS_URL", "").strip()
    parts = _split(value)
    if parts is None or parts.scheme != "redis" or not re.fullmatch(r"(/[0-9]*)?", parts.path):
        raise ImproperlyConfigured(
            "REDIS_URL must look like redis://:password@host:6379/0, "
            "where / ? # in the password are written %2F %3F %23."
        )  # the value may hold a password
    return value


def _split(url: str) -> SplitResult | None:
    """Return the parts of an address; None where it has blanks, a query or a fragment, or is none."""
    try:
        parts = urlsplit(url)
        if parts.port == 0 or re.search(r"[\s?#]", url):
            return None
    except ValueError:  # a port or an IPv6 address that is none
        return None
    host_and_port = parts.netloc.rpartition("@")[2]
    return parts if re.fullmatch(f"({_HOST})(:[0-9]+)?", host_and_port) else None


def origin_of(url: str) -> str:
    """Return ``scheme://host[:port]`` of an address."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def path_of(url: str | None) -> str:
    """Return the path of an address without a slash at its end; empty where there is none."""
    return urlsplit(url or "").path.rstrip("/")


def host_of(url: str) -> str:
    """Return the host of an address as a browser sends it, an IPv6 address in brackets."""
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host


def read_database(state_dir: Path) -> dict[str, Any]:
    """Return Django's settings of the database named by ``DATABASE_URL``.

    Unset, it is a SQLite file in the state folder. SQLite runs with a write-ahead log, full synchronisation
    (an acknowledged label survives a power cut) and immediate transactions (a writer waits for its turn at
    the start of its transaction, so it never acts on what it read before another writer finished).
    Connections to PostgreSQL are kept for ten minutes, so that what is prepared on them pays, and tried
    before each request that uses one.
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
        if config.get("HOST") or ":memory:" in config["NAME"]:  # "//" for "///"; and labels are to last
            raise _no_database()
        config["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
        }
    elif config["ENGINE"] == "django.db.backends.postgresql":
        if not config["NAME"] or not (config["HOST"] or options.get("host")):
            raise _no_database()
        config["OPTIONS"] = POSTGRESQL_OPTIONS | options
    else:
        raise ImproperlyConfigured("DATABASE_URL must name a PostgreSQL or a SQLite database.")
    return config


def _no_database() -> ImproperlyConfigured:
    return ImproperlyConfigured(  # the value may hold a password
        "DATABASE_URL must look like postgresql://user:password@host:port/name or sqlite:////path/to/file."
    )


def read_log_format() -> str:
    """Return ``LOG_FORMAT``; unset, plain for the embedded site and JSON for one on a database of its own."""
    value = os.environ.get("LOG_FORMAT", "").strip() or (
        "json" if os.environ.get("DATABASE_URL") else "plain"
    )
    if value not in FORMATTERS:
        raise ImproperlyConfigured(f"LOG_FORMAT must be {' or '.join(sorted(FORMATTERS))}, not {value!r}.")
    return value


def announced_store(state_dir: Path) -> tuple[str, str]:
    """Return the clip store of the embedded site that served a state folder last, and its S3 endpoint.

    ``site/lock`` keeps what the site was started with (:mod:`human_feedback_site.embedded`). Each is empty
    where it says nothing of it, the first also where the clips are in the state folder.
    """
    try:
        site = json.loads((state_dir / "site" / "lock").read_text(encoding="utf-8"))
        storage, endpoint = str(site["storage"]), str(site.get("s3_endpoint_url", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "", ""  # no embedded site has served it
    if not storage.startswith("s3://") and not Path(storage).is_absolute():
        return "", ""  # as seen from a folder that nobody knows
    return storage, endpoint


def read_storage(state_dir: Path, announced: str = "") -> str:
    """Return ``TEACHER_STORAGE``: ``s3://bucket/prefix`` or a folder.

    Unset, it is the ``announced`` store, and without one a folder in the state folder.
    """
    value = os.environ.get("TEACHER_STORAGE", "").strip() or announced
    if value.startswith("s3://"):
        if not re.fullmatch(r"s3://[A-Za-z0-9._-]+(/[^\s?#]*)?", value):
            raise ImproperlyConfigured(
                "TEACHER_STORAGE must look like s3://bucket/prefix, without blanks, user, port and query."
            )
        return value
    if "://" in value:
        raise ImproperlyConfigured(f"TEACHER_STORAGE must be s3://bucket/prefix or a folder, not {value!r}.")
    return str(Path(value).resolve() if value else state_dir / "media")


def require_s3_credentials(endpoint: str | None) -> None:
    """Refuse to start where boto3 finds no keys for the store in variables, files and roles.

    The store is not contacted. A role of the machine itself counts for Amazon's own store alone; asking it
    takes two seconds at most.
    """
    from botocore.exceptions import (  # noqa: PLC0415 (only where clips are in S3)
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
        raise ImproperlyConfigured(f"AWS_PROFILE: {error}; correct or unset it.") from error
    except InvalidRegionError as error:
        region = session.get_config_variable("region")
        raise ImproperlyConfigured(
            f"AWS_DEFAULT_REGION must be a region such as us-east-1, not {region!r}."
        ) from error
    except BotoCoreError:  # half of them, or a file that cannot be read
        found = None
    if found is None:
        raise ImproperlyConfigured(
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set where TEACHER_STORAGE is in S3."
        )


def read_secret_key(state_dir: Path, *, embedded: bool) -> str:
    """Return ``SECRET_KEY``, or for an embedded site the random secret kept in its state folder.

    A site on a database of its own may run as several processes on several machines, which must share the
    key, so there it has to be given.
    """
    key = os.environ.get("SECRET_KEY", "").strip()
    if key:
        if len(key) < SECRET_KEY_MIN_LENGTH or len(set(key)) < SECRET_KEY_MIN_DIFFERENT:
            raise ImproperlyConfigured(
                f"SECRET_KEY must have at least {SECRET_KEY_MIN_LENGTH} random characters; make one with: "
                f"{_KEY_RECIPE}"
            )
        return key
    if not embedded:
        raise ImproperlyConfigured(
            f"SECRET_KEY must be set beside DATABASE_URL; make one with: {_KEY_RECIPE}"
        )
    return _kept_secret(state_dir / "secret_key")


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its owner may enter; whoever made one before has decided for himself."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, content: str) -> None:
    """Write a file that only its owner may read, replacing it in one step."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _kept_secret(path: Path) -> str:
    """Return the secret in ``path``, made on the first call; processes that race for it agree on one."""
    if not path.exists():
        make_private_folder(path.parent)
        own = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        write_private(own, secrets.token_urlsafe(50) + "\n")
        try:
            path.hardlink_to(own)
        except FileExistsError:
            pass
        finally:
            own.unlink()
    key = path.read_text(encoding="utf-8", errors="replace").strip()
    if len(key) < SECRET_KEY_MIN_LENGTH or not key.isascii() or not key.isprintable():
        raise ImproperlyConfigured(f"{path} holds no secret; delete it to have a new one made.")
    return key
