"""What the pages of the admin have in common."""

from typing import TYPE_CHECKING, Any, TypeAlias

from django.contrib import admin
from django.http import HttpRequest

if TYPE_CHECKING:  # they are generic for type checkers alone
    ModelAdmin: TypeAlias = admin.ModelAdmin[Any]
    TabularInline: TypeAlias = admin.TabularInline[Any, Any]
else:
    ModelAdmin, TabularInline = admin.ModelAdmin, admin.TabularInline


class ReadOnly:
    """Nothing is added, changed or deleted here."""

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Say no."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Say no."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Say no."""
        return False
