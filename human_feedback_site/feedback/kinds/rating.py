"""Questions about one clip, which is rated from 1 to 5."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.kinds.base import CANT_TELL, Scale

_LEVELS = {str(level): str(level) for level in range(1, 6)}
_TEXTS = {level: format_lazy(_("Rating: {level}"), level=level) for level in _LEVELS}


class Rating(Scale):
    """Question how good a clip is, on a scale from 1 to 5."""

    name: ClassVar[str] = "rating"
    order: ClassVar[int] = 3
    title: ClassVar[Promise] = _("ratings")
    size: ClassVar[int] = 1
    item_names: ClassVar[Sequence[Promise | str]] = (_("Clip"),)
    texts: ClassVar[Mapping[str, Promise | str]] = _TEXTS
    choice_texts: ClassVar[Mapping[str, Promise | str]] = _LEVELS
    sentences: ClassVar[Mapping[str, Promise | str]] = _TEXTS
    personal: ClassVar[bool] = True

    def passes(self, answer: str, known: str) -> bool:
        """Return True if the two ratings are at most one level apart, because people's scales differ."""
        return answer != CANT_TELL and abs(int(answer) - int(known)) <= 1
