"""Database session store that ignores malformed session cookies."""

from django.contrib.sessions.backends.db import SessionStore as DatabaseStore


class SessionStore(DatabaseStore):
    """Django's database session store, which also rejects session keys that aren't alphanumeric.

    A forged cookie may contain null characters, for which PostgreSQL raises an error.
    """

    def _validate_session_key(self, key: str | None) -> bool:
        return bool(super()._validate_session_key(key)) and key is not None and key.isalnum()  # type: ignore[misc]
