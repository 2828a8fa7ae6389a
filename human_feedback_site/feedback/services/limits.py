"""How often passwords and tokens may be tried.

Attempts are counted in the database, so all processes of the site share the count, and before they are made,
so that many at the same moment are no more than many in turn. A wait ends at a fixed time, however often
somebody tries meanwhile. A name is counted together with an address: whoever guesses at another's password
locks out only those who sit at the same address.
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
MOST_OF_NAME = 5  # at one address
MOST_OF_ADDRESS = 50  # whatever the names: an office may share one
MOST_WRONG_TOKENS = 50
_IPV6_NETWORK = 64  # bits; one customer has all addresses of such a network


def begin_sign_in(name: str, address: str) -> None:
    """Count an attempt to sign in; raises :class:`TooManyAttemptsError` before a password is looked at."""
    _count(_of_name(name, address), MOST_OF_NAME)
    _count(_of_address(address), MOST_OF_ADDRESS)


def end_sign_in(name: str, address: str) -> None:
    """The attempt succeeded: forget the failures under this name, and this attempt of the address."""
    Attempts.objects.filter(digest=_of_name(name, address)).delete()
    Attempts.objects.filter(digest=_of_address(address), count__gt=0).update(count=F("count") - 1)


def count_wrong_token(address: str) -> None:
    """Count a wrong API token; raises :class:`TooManyAttemptsError`.

    Right ones are never refused: nobody guesses 256 bits, and a lab's trainers may share an address.
    """
    _count(_digest("token", network(address)), MOST_WRONG_TOKENS)


def forget_attempts() -> int:
    """Delete what is not counted any more; return how many rows there were."""
    deleted, _ = Attempts.objects.filter(ends_at__lt=Now()).delete()
    return deleted


def network(address: str) -> str:
    """Return an address as it is counted: of an IPv6 address the network."""
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
    """People mistake the field of the name for that of the password: what was typed is not kept."""
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
    """Return the seconds until it is counted anew; the clocks of site and database may differ a little."""
    ends_at = Attempts.objects.filter(digest=digest).values_list("ends_at", flat=True).first()
    left = 0.0 if ends_at is None else (ends_at - timezone.now()).total_seconds()
    return math.ceil(min(max(left, 1.0), WINDOW.total_seconds()))
