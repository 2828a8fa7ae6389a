"""Presigned S3 URLs, which expire (AWS Signature Version 4 in query parameters).

Each comparison shown to a labeler needs two of these URLs. botocore can also create them, but it resolves the
endpoint and validates the request for every URL, which took a third of the time of a lease request.
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
    """Creates presigned URLs for the objects in one bucket.

    Attributes:
        base: base URL, to which an object's key is appended.
        region: AWS region that the URLs are signed for.
        credentials: AWS credentials, reread for every URL because temporary credentials are refreshed hourly.
    """

    base: str
    region: str
    credentials: Credentials

    @classmethod
    def after(cls, example: str, key: str, credentials: Credentials) -> "LinkSigner":
        """Create a signer from ``example``, a URL that botocore presigned for ``key``."""
        address, _, query = example.partition("?")
        scope = parse_qs(query)["X-Amz-Credential"][0].split("/")
        return cls(address.removesuffix(key), scope[2], credentials)

    def link(self, key: str, seconds: int) -> str:
        """Return a presigned URL for reading ``key``, valid for ``seconds``.

        ``key`` is not URL-quoted, so it must contain only URL-safe characters.
        """
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
