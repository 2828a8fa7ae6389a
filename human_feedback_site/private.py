"""The site's secrets, and files and folders that only their owner can access.

Functions that read an environment variable raise :class:`~django.core.exceptions.ImproperlyConfigured` with a
one-line message if its value is invalid.
"""

import importlib.util
import os
import re
import secrets
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

SECRET_KEY_MIN_LENGTH = 50  # as in Django's system check
SECRET_KEY_MIN_DIFFERENT = 5  # minimum number of different characters, as in Django's system check
METRICS_TOKEN_MIN_LENGTH = 32
CODE_SYMBOLS = "23456789abcdefghjkmnpqrstuvwxyz"  # none that look alike
CODE_LENGTH = 17  # symbols of a code that opens researchers' pages: 84 bits
_KEY_RECIPE = "python -c 'import secrets; print(secrets.token_urlsafe(50))'"


def read_secret_key(state_dir: Path, *, embedded: bool) -> str:
    """Read ``SECRET_KEY``; an embedded site without it uses a random key saved in its state folder.

    Other sites must set ``SECRET_KEY``, because they may run on several machines that must share the key.
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
            f"SECRET_KEY must be set if DATABASE_URL is set; make one with: {_KEY_RECIPE}"
        )
    return _saved_secret(state_dir / "secret_key")


def random_code() -> str:
    """Return a random code for a link that opens researchers' pages."""
    return "".join(secrets.choice(CODE_SYMBOLS) for _ in range(CODE_LENGTH))


def read_metrics_token(name: str) -> str | None:
    """Read the token that protects ``/metrics`` from the environment variable ``name``; None if unset."""
    token = os.environ.get(name, "").strip()
    if not token:
        return None
    if len(token) < METRICS_TOKEN_MIN_LENGTH or not re.fullmatch("[!-~]+", token):
        raise ImproperlyConfigured(
            f"{name} must be at least {METRICS_TOKEN_MIN_LENGTH} random ASCII characters without spaces; "
            f"make one with: {_KEY_RECIPE}"
        )  # the message leaves out the value because it is secret
    if importlib.util.find_spec("prometheus_client") is None:
        raise ImproperlyConfigured(
            f"{name} needs prometheus_client; unset it, or run: pip install 'rl-teacher[metrics]'"
        )
    return token


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner can access; an existing folder keeps its permissions."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, content: str) -> None:
    """Atomically write a text file that only its owner can access."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _saved_secret(path: Path) -> str:
    """Return the secret saved in ``path``, created if needed, the same for all processes."""
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
        raise ImproperlyConfigured(
            f"{path} contains no valid secret key; delete the file, and the site will create a new one."
        )
    return key
