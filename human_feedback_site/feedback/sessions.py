"""Sessions in the database, which is asked for nothing that cannot be the key of one."""

from django.contrib.sessions.backends.db import SessionStore as DatabaseStore


class SessionStore(DatabaseStore):
    """Django's, where a cookie may hold anything: PostgreSQL fails at a NUL."""

    def _validate_session_key(self, key: str | None) -> bool:
        return bool(super()._validate_session_key(key)) and key is not None and key.isalnum()  # type: ignore[misc]
