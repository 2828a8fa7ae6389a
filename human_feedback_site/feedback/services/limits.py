"""Rate limits for passwords and API tokens.

Attempts are counted in the database, so all processes of the site share the counts. Sign-ins are counted
before the password is checked, so simultaneous attempts can't exceed the limit. A time window has a fixed end
and is not extended by further attempts. Attempts on a username are counted per IP address, so guessing a
password locks out only users at the guesser's address.
"""

import ipaddress
import math
import unicodedata
from datetime import timedelta

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.crypto import salted_hmac

from human_feedback_site.feedback.errors import TooManyAttemptsError
from human_feedback_site.feedback.models import Attempts

WINDOW = timedelta(minutes=10)
MOST_OF_NAME = 5  # per user name and IP address
MOST_OF_ADDRESS = 50  # per IP address, which an office may share
MOST_WRONG_TOKENS = 50
_IPV6_NETWORK = 64  # prefix length; a customer usually has all addresses in such a network


def begin_sign_in(name: str, address: str) -> None:
    """Count a sign-in attempt before the password is checked, or raise :class:`TooManyAttemptsError`."""
    _count(_of_name(name, address), MOST_OF_NAME)
    _count(_of_address(address), MOST_OF_ADDRESS)


def end_sign_in(name: str, address: str) -> None:
    """Reset the username's attempt counter after a successful sign-in; decrement the IP address's."""
    Attempts.objects.filter(digest=_of_name(name, address)).delete()
    Attempts.objects.filter(digest=_of_address(address), count__gt=0).update(count=F("count") - 1)


def count_wrong_token(address: str) -> None:
    """Count a wrong API token or link; raise :class:`TooManyAttemptsError` if an IP address sent too many.

    Valid ones are never rate-limited: their random bits can't be guessed, and a lab's trainers and labelers
    may share an IP address.
    """
    _count(_digest("token", network(address)), MOST_WRONG_TOKENS)


def forget_attempts() -> int:
    """Delete the counters whose time window has ended, and return how many there were."""
    deleted, _ = Attempts.objects.filter(ends_at__lt=Now()).delete()
    return deleted


def network(address: str) -> str:
    """Return the network whose attempts are counted together: an IPv4 address, or an IPv6 address's /64."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _IPV6_NETWORK), strict=False))


def _of_name(name: str, address: str) -> str:
    return _digest("name", network(address), unicodedata.normalize("NFKC", name).casefold())


def _of_address(address: str) -> str:
    return _digest("address", network(address))


def _digest(*what: str) -> str:
    """Return the HMAC that identifies the counter for ``what``: the kind, IP network and any username.

    Usernames are not stored in plain text, because people sometimes type their password into the username
    field.
    """
    return salted_hmac("feedback.limits", "\n".join(what), algorithm="sha256").hexdigest()


def _count(digest: str, most: int) -> None:
    with transaction.atomic():
        now_ends = {"count": 0, "ends_at": Now() + WINDOW}
        Attempts.objects.get_or_create(digest=digest, defaults=now_ends)
        own = Attempts.objects.filter(digest=digest)
        own.filter(ends_at__lte=Now()).update(**now_ends)
        own.update(count=F("count") + 1)
        count = own.values_list("count", flat=True).get()
    if count > most:
        raise TooManyAttemptsError(_wait(digest))


def _wait(digest: str) -> int:
    """Return the seconds until the counter's window ends, within it despite clock skew, rounded up."""
    ends_at = Attempts.objects.filter(digest=digest).values_list("ends_at", flat=True).first()
    left = 0.0 if ends_at is None else (ends_at - timezone.now()).total_seconds()
    return math.ceil(min(max(left, 1.0), WINDOW.total_seconds()))
