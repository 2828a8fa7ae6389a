"""Authentication of HTTP requests with a researcher's API token."""

from urllib.parse import quote

import requests
from requests.auth import AuthBase


class BearerToken(AuthBase):
    """Adds an ``Authorization: Bearer`` header to requests, and keeps ``requests`` from using ~/.netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Set the request's ``Authorization`` header."""
        # A token that was copied badly may contain characters that headers don't allow.
        request.headers["Authorization"] = f"Bearer {quote(self._token, errors='replace')}"
        return request
