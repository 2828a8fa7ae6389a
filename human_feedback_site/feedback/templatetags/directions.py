"""The direction of what people wrote: right to left or left to right, whatever the page's own is.

An element that holds such a text alone has ``dir="auto"``, or is a ``<bdi>``. A text within a sentence, a
title or an option, where there can be no element, is isolated by characters.
"""

import unicodedata

from django import template

register = template.Library()
_RIGHT_TO_LEFT = {"R", "AL", "AN"}
_FIRST_STRONG_ISOLATE, _POP_DIRECTIONAL_ISOLATE = "\u2068", "\u2069"


@register.filter
def isolated(value: object) -> str:
    """Return a text whose direction is its own, and changes nothing around it (Unicode UAX 9).

    One without letters that are written from right to left stays as it is, as the pages' languages are.
    """
    text = str(value)
    if not any(unicodedata.bidirectional(letter) in _RIGHT_TO_LEFT for letter in text):
        return text
    return f"{_FIRST_STRONG_ISOLATE}{text}{_POP_DIRECTIONAL_ISOLATE}"
