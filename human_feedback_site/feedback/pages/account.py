"""Template context processor that adds the signed-in user's display name."""

from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from human_feedback_site.feedback.models import Labeler


def account(request: HttpRequest) -> dict[str, Any]:
    """Add ``account_name``, the user's display name, to every template context (looked up lazily)."""
    return {"account_name": SimpleLazyObject(lambda: name_of(getattr(request, "user", AnonymousUser())))}


def name_of(user: User | AnonymousUser) -> str:
    """Return the labeler's name as researchers see it; for staff and other users, return the username.

    Labeler names needn't be unique across researchers, so a labeler's username has a random suffix.
    """
    labeler = None if user.is_staff else Labeler.objects.filter(user=user.pk).first()
    return user.get_username() if labeler is None else labeler.name
