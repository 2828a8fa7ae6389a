"""Links to objects in S3 that expire, signed as AWS Signature Version 4 says ("query parameters").

A labeler is given two with each pair. botocore signs them as well, but works out anew for each where the
bucket is and whether the request is valid, which took a third of the time of a request for work.
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
    """Signs links for one bucket.

    Attributes:
        base: address of the bucket's objects, up to their keys.
        region: whose keys sign.
        credentials: asked each time, because some are replaced every hour.
    """

    base: str
    region: str
    credentials: Credentials

    @classmethod
    def after(cls, example: str, key: str, credentials: Credentials) -> "LinkSigner":
        """Sign as ``example`` is signed, a link to ``key`` by botocore, which knows address and region."""
        address, _, query = example.partition("?")
        scope = parse_qs(query)["X-Amz-Credential"][0].split("/")
        return cls(address.removesuffix(key), scope[2], credentials)

    def link(self, key: str, seconds: int) -> str:
        """Return a link to read ``key``, which needs no quoting in an address, for so long."""
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        keys = self.credentials.get_frozen_credentials()
        named = {
            "X-Amz-Algorithm": _ALGORITHM,
            "X-Amz-Credential": f"{keys.access_key}/{scope}",
            "X-Amz-Date": now,
            "X-Amz-Expires": str(seconds),
            **({"X-Amz-Security-Token": keys.token} if keys.token else {}),
            "X-Amz-SignedHeaders": "host",
        }  # in the order of their names, as they are signed
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in named.items())
        address = urlsplit(self.base + key)
        is_default = address.port in {None, _DEFAULT_PORTS[address.scheme]}
        host = address.hostname if is_default else f"{address.hostname}:{address.port}"
        request = f"GET\n{address.path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
        told = "\n".join((_ALGORITHM, now, scope, hashlib.sha256(request.encode()).hexdigest()))
        signing_key = f"AWS4{keys.secret_key}".encode()
        for part in scope.split("/"):
            signing_key = hmac.digest(signing_key, part.encode(), "sha256")
        signature = hmac.digest(signing_key, told.encode(), "sha256").hex()
        return f"{self.base}{key}?{query}&X-Amz-Signature={signature}"
