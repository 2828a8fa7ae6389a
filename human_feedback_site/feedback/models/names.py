"""Names of people in any script: letters with their combining marks, digits and some punctuation.

``\\w`` in regular expressions has no combining marks, without which Hindi or Tamil names can't be written.
"""

import re
import unicodedata
from typing import TYPE_CHECKING, Any, TypeAlias

from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:  # generic only in the type stubs
    _CharField: TypeAlias = models.CharField[str, str]
else:
    _CharField = models.CharField

MAX_LABELER_NAME = 50
_VIRAMA = 9  # canonical combining class
# Letters and marks that nobody sees: with them, two names could look the same.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
# Joiners (J), also invisible, only where a script needs them: after an Arabic letter (A) or a virama (V).
_NAME = re.compile("(?:P|[LA][MV]*|(?<=[AV])J(?=[LA]))+")


def normalized(name: str) -> str:
    """Return a name in Unicode's normalization form C, in which names are stored and compared."""
    return unicodedata.normalize("NFC", name)


def is_name(text: str, punctuation: str = "_.-") -> bool:
    """Return True if ``text`` has only letters with their combining marks, digits and ``punctuation``."""
    return _NAME.fullmatch("".join(_kind(each, punctuation) for each in text)) is not None


def name_from(text: str) -> str:
    """Return a name made from any text, with hyphens for what names can't have; empty if nothing is left."""
    kinds = [(each, _kind(each, "_.-")) for each in normalized(text)]
    kept = "".join("-" if kind == "X" else each for each, kind in kinds if kind != "J")
    name = re.sub("-+", "-", kept).strip("-.")
    return name if is_name(name) else ""


def validate_labeler_name(name: str) -> None:
    """Raise ``ValidationError`` if a labeler can't be invited by this name."""
    if len(normalized(name)) > MAX_LABELER_NAME or not is_name(normalized(name)):
        message = _("Use 1 to 50 letters, digits, underscores, hyphens and dots.")
        raise ValidationError(message, code="invalid_labeler_name")


def validate_username(name: str) -> None:
    """Raise ``ValidationError`` as Django's own validator does, but not because of combining marks."""
    if not is_name(normalized(name), "_.-@+"):
        raise ValidationError(UnicodeUsernameValidator.message, code=UnicodeUsernameValidator.code)


class NameField(_CharField):
    """Text field for names, which are stored and looked up in normalization form C."""

    def deconstruct(self) -> Any:
        """Describe the field as a ``CharField``, which it is for migrations."""
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.CharField", args, kwargs

    def get_prep_value(self, value: Any) -> Any:
        """Normalize a value that is saved or compared."""
        value = super().get_prep_value(value)
        return normalized(value) if isinstance(value, str) else value


def _kind(character: str, punctuation: str) -> str:
    """Return a letter for the kind of character, as in :data:`_NAME`; X if names can't have it."""
    if _INVISIBLE.match(character):
        return "X"
    if unicodedata.category(character) in {"Mn", "Mc"}:
        return "V" if unicodedata.combining(character) == _VIRAMA else "M"
    if character in punctuation:
        return "P"
    if character.isalnum():
        return "A" if unicodedata.bidirectional(character) == "AL" else "L"
    return "J" if character in "\u200c\u200d" else "X"
