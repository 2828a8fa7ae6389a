"""A researcher's API token, as it is sent with a request."""

from urllib.parse import quote

import requests
from requests.auth import AuthBase


class BearerToken(AuthBase):
    """Sends the token; being ``auth``, it also keeps a password in ~/.netrc from taking its place."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Sign the request with the token."""
        # One that was not copied well may have characters that no header has.
        request.headers["Authorization"] = f"Bearer {quote(self._token, errors='replace')}"
        return request
