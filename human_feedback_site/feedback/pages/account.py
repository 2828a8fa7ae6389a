"""The name by which the pages call whoever is signed in."""

from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from human_feedback_site.feedback.models import Labeler


def account(request: HttpRequest) -> dict[str, Any]:
    """Let each template have ``account_name``."""
    return {"account_name": SimpleLazyObject(lambda: name_of(getattr(request, "user", AnonymousUser())))}


def name_of(user: User | AnonymousUser) -> str:
    """Return the name that a labeler has in lists and on the labeling page; of staff, the account's.

    A labeler's account has more letters in its name, for two researchers may know a labeler by the same one.
    """
    labeler = None if user.is_staff else Labeler.objects.filter(user=user.pk).first()
    return user.get_username() if labeler is None else labeler.name
