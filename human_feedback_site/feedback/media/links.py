"""Presigned S3 links, which expire (AWS Signature Version 4, query parameters).

Each comparison shown to a labeler needs two. botocore can sign links too, but resolves the endpoint and
validates the request for every link, which took a third of the time of a lease request.
"""

import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qs, quote, urlsplit

from botocore.credentials import Credentials

_ALGORITHM = "AWS4-HMAC-SHA256"
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class LinkSigner:
    """Signs links to the objects of one bucket.

    Attributes:
        base: URL that an object's key is appended to.
        region: AWS region for which links are signed.
        credentials: read for every link, because temporary credentials are replaced every hour.
    """

    base: str
    region: str
    credentials: Credentials

    @classmethod
    def after(cls, example: str, key: str, credentials: Credentials) -> "LinkSigner":
        """Create a signer with the URL and region of ``example``, botocore's presigned link to ``key``."""
        address, _, query = example.partition("?")
        scope = parse_qs(query)["X-Amz-Credential"][0].split("/")
        return cls(address.removesuffix(key), scope[2], credentials)

    def link(self, key: str, seconds: int) -> str:
        """Return a link to read ``key`` that expires after ``seconds``; ``key`` must not need URL quoting."""
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        keys = self.credentials.get_frozen_credentials()
        parameters = {
            "X-Amz-Algorithm": _ALGORITHM,
            "X-Amz-Credential": f"{keys.access_key}/{scope}",
            "X-Amz-Date": now,
            "X-Amz-Expires": str(seconds),
            **({"X-Amz-Security-Token": keys.token} if keys.token else {}),
            "X-Amz-SignedHeaders": "host",
        }  # sorted by name, as the signature requires
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
        address = urlsplit(self.base + key)
        is_default = address.port in {None, _DEFAULT_PORTS[address.scheme]}
        host = address.hostname if is_default else f"{address.hostname}:{address.port}"
        request = f"GET\n{address.path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
        string_to_sign = "\n".join((_ALGORITHM, now, scope, hashlib.sha256(request.encode()).hexdigest()))
        signing_key = f"AWS4{keys.secret_key}".encode()
        for part in scope.split("/"):
            signing_key = hmac.digest(signing_key, part.encode(), "sha256")
        signature = hmac.digest(signing_key, string_to_sign.encode(), "sha256").hex()
        return f"{self.base}{key}?{query}&X-Amz-Signature={signature}"
