"""Admin pages for users and groups: Django's own, plus protection against overwriting concurrent edits."""

from typing import TYPE_CHECKING, TypeAlias

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import UserChangeForm as DjangoUserChangeForm
from django.contrib.auth.models import Group, User

from human_feedback_site.feedback.admin.base import DeletedOnlyUnused, GuardedModelAdmin, SeenForm
from human_feedback_site.feedback.models import ApiToken

if TYPE_CHECKING:  # generic only in the type stubs
    _UserChangeForm: TypeAlias = DjangoUserChangeForm[User]
    _UserAdmin: TypeAlias = DjangoUserAdmin[User]
else:
    _UserChangeForm, _UserAdmin = DjangoUserChangeForm, DjangoUserAdmin

admin.site.unregister([User, Group])


class UserChangeForm(SeenForm, _UserChangeForm):
    """Django's user form, which also rejects changes to fields that another admin has just edited."""


@admin.register(User)
class UserAdmin(DeletedOnlyUnused, GuardedModelAdmin, _UserAdmin):
    """Users. A user that other rows refer to can't be deleted, only deactivated."""

    LOST_WITH_IT = frozenset({ApiToken})
    form = UserChangeForm


@admin.register(Group)
class GroupAdmin(GuardedModelAdmin, DjangoGroupAdmin):
    """User groups, which the site itself does not use."""

    form = SeenForm
