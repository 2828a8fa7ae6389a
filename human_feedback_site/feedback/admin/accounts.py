"""Django's admin pages for users and groups, which never overwrite concurrent edits; identities."""

from typing import TYPE_CHECKING, TypeAlias

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import UserChangeForm as DjangoUserChangeForm
from django.contrib.auth.models import Group, User

from human_feedback_site.feedback.admin.base import (
    DeletedOnlyUnused,
    GuardedModelAdmin,
    ModelAdmin,
    ReadOnly,
    SeenForm,
)
from human_feedback_site.feedback.models import ApiToken, Identity

if TYPE_CHECKING:  # generic only in the type stubs
    _UserChangeForm: TypeAlias = DjangoUserChangeForm[User]
    _UserAdmin: TypeAlias = DjangoUserAdmin[User]
else:
    _UserChangeForm, _UserAdmin = DjangoUserChangeForm, DjangoUserAdmin

admin.site.unregister([User, Group])


class UserChangeForm(SeenForm, _UserChangeForm):
    """Variant of Django's user change form that rejects conflicting edits.

    An edit conflicts if another admin has changed the field since the form was opened.
    """


@admin.register(User)
class UserAdmin(DeletedOnlyUnused, GuardedModelAdmin, _UserAdmin):
    """Admin page for users. A user that other rows reference can't be deleted, only deactivated."""

    LOST_WITH_IT = frozenset({ApiToken})
    form = UserChangeForm


@admin.register(Group)
class GroupAdmin(GuardedModelAdmin, DjangoGroupAdmin):
    """Admin page for user groups, which the site itself does not use."""

    form = SeenForm


@admin.register(Identity)
class IdentityAdmin(ReadOnly, ModelAdmin):
    """Admin page for users' accounts at the identity provider."""

    list_display = ("user", "issuer", "subject", "created_at")
    list_select_related = ("user",)
    search_fields = ("user__username", "=subject")
    date_hierarchy = "created_at"
