"""Template filter for user-written text, whose direction may differ from that of the page.

An element that contains only such text uses ``dir="auto"`` or is a ``<bdi>``. Translated sentences, titles
and options can't contain elements, so this filter isolates the text with Unicode control characters instead.
"""

import unicodedata

from django import template

register = template.Library()
_RIGHT_TO_LEFT = {"R", "AL", "AN"}
_FIRST_STRONG_ISOLATE, _POP_DIRECTIONAL_ISOLATE = "\u2068", "\u2069"


@register.filter
def isolated(value: object) -> str:
    """Return ``value`` as text, wrapped in directional isolates (UAX 9) if it has right-to-left letters.

    The isolates keep it from changing the direction of the text around it. Other text is returned unchanged,
    because all of the site's own languages are left-to-right.
    """
    text = str(value)
    if not any(unicodedata.bidirectional(letter) in _RIGHT_TO_LEFT for letter in text):
        return text
    return f"{_FIRST_STRONG_ISOLATE}{text}{_POP_DIRECTIONAL_ISOLATE}"
