"""Accounts and groups: Django's own pages, where no admin writes over what another has changed."""

from typing import TYPE_CHECKING, TypeAlias

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import UserChangeForm as DjangoUserChangeForm
from django.contrib.auth.models import Group, User

from human_feedback_site.feedback.admin.base import DeletedOnlyUnused, GuardedModelAdmin, SeenForm
from human_feedback_site.feedback.models import ApiToken

if TYPE_CHECKING:  # they are generic for type checkers alone
    _UserChangeForm: TypeAlias = DjangoUserChangeForm[User]
    _UserAdmin: TypeAlias = DjangoUserAdmin[User]
else:
    _UserChangeForm, _UserAdmin = DjangoUserChangeForm, DjangoUserAdmin

admin.site.unregister([User, Group])


class UserChangeForm(SeenForm, _UserChangeForm):
    """Django's, which remembers what it showed."""


@admin.register(User)
class UserAdmin(DeletedOnlyUnused, GuardedModelAdmin, _UserAdmin):
    """Who may sign in; one that did something is made inactive instead of deleted."""

    LOST_WITH_IT = frozenset({ApiToken})
    form = UserChangeForm


@admin.register(Group)
class GroupAdmin(GuardedModelAdmin, DjangoGroupAdmin):
    """Groups of users, which this site does not use itself."""

    form = SeenForm
