"""Authentication of requests with a researcher's API token."""

from urllib.parse import quote

import requests
from requests.auth import AuthBase


class BearerToken(AuthBase):
    """Adds the token to requests; as ``auth`` it also takes precedence over a password in ~/.netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the token to a request."""
        # A badly copied token may have characters that headers do not allow.
        request.headers["Authorization"] = f"Bearer {quote(self._token, errors='replace')}"
        return request
