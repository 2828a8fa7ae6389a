"""Short signed codes for the links that a run prints; like longer signed tokens, they are not stored.

A code such as ``1-2-b4yz-k7f3m2p9qx`` consists of the experiment's ID, the labeler's ID, the hour in which it
was made, and a message authentication code of 49 bits, which must be guessed online.
"""

import re
import time
from dataclasses import dataclass

from django.conf import settings
from django.core import signing
from django.utils.crypto import constant_time_compare, salted_hmac
from django.utils.http import base36_to_int, int_to_base36

_SYMBOLS = "23456789abcdefghjkmnpqrstuvwxyz"  # none that look alike
_SIGNATURE_LENGTH = 10
_CODE = re.compile(rf"([0-9a-z]{{1,12}})-([0-9a-z]{{1,12}})-([0-9a-z]{{1,6}})-([{_SYMBOLS}]{{10}})")
_HOUR = 3600


@dataclass(frozen=True)
class ShortCode:
    """Content of a code whose signature has not been checked yet."""

    experiment: int
    labeler: int
    hour: int
    signature: str

    def check(self, salt: str, secret: str = "") -> bool:
        """Return True if the code was made with this salt and secret.

        Raises :class:`django.core.signing.SignatureExpired` if it was, but too long ago.
        """
        signatures = [
            _signature(f"{salt}.{secret}", (self.experiment, self.labeler, self.hour), key)
            for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
        ]
        if not any(constant_time_compare(self.signature, each) for each in signatures):
            return False
        if time.time() - self.hour * _HOUR > settings.INVITE_MAX_AGE_SECONDS:
            raise signing.SignatureExpired("The link is too old.")
        return True


def make_code(experiment: int, labeler: int, salt: str, secret: str = "") -> str:
    """Return a new code for a link.

    Args:
        experiment: ID of the experiment.
        labeler: ID of the labeler.
        salt: name of the kind of link; codes of one kind are not valid for another.
        secret: value that must be the same when the code is checked.
    """
    numbers = experiment, labeler, int(time.time()) // _HOUR
    signature = _signature(f"{salt}.{secret}", numbers, settings.SECRET_KEY)
    return "-".join([*map(int_to_base36, numbers), signature])


def parse_code(token: str) -> ShortCode | None:
    """Return the content of a code, or None if ``token`` is something else, such as an earlier long token."""
    found = _CODE.fullmatch(token)
    if found is None:
        return None
    experiment, labeler, hour = (base36_to_int(number) for number in found.groups()[:3])
    return ShortCode(experiment, labeler, hour, found[4])


def _signature(salt: str, numbers: tuple[int, ...], key: str | bytes) -> str:
    digest = salted_hmac(salt, repr(numbers), secret=key, algorithm="sha256").digest()
    number, symbols = int.from_bytes(digest), ""
    for _ in range(_SIGNATURE_LENGTH):
        number, symbol = divmod(number, len(_SYMBOLS))
        symbols += _SYMBOLS[symbol]
    return symbols
