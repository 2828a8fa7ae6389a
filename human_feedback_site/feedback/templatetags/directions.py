"""Filter for user-written text inside a page whose text direction may differ.

An element that contains only such text uses ``dir="auto"`` or is a ``<bdi>``. Inside a sentence, a title or
an option, where there can be no element, Unicode characters isolate the text.
"""

import unicodedata

from django import template

register = template.Library()
_RIGHT_TO_LEFT = {"R", "AL", "AN"}
_FIRST_STRONG_ISOLATE, _POP_DIRECTIONAL_ISOLATE = "\u2068", "\u2069"


@register.filter
def isolated(value: object) -> str:
    """Return ``value`` as text, wrapped in isolation characters if it has right-to-left letters (UAX 9).

    The wrapped text doesn't affect the direction of the text around it. Other text is returned unchanged,
    because the pages' own languages are written from left to right.
    """
    text = str(value)
    if not any(unicodedata.bidirectional(letter) in _RIGHT_TO_LEFT for letter in text):
        return text
    return f"{_FIRST_STRONG_ISOLATE}{text}{_POP_DIRECTIONAL_ISOLATE}"
