"""What the pages of the admin have in common."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import Field, QuerySet
from django.forms import Field as FormField
from django.forms import Textarea, TextInput
from django.http import HttpRequest

if TYPE_CHECKING:  # they are generic for type checkers alone
    _ModelAdmin: TypeAlias = admin.ModelAdmin[Any]
    TabularInline: TypeAlias = admin.TabularInline[Any, Any]
else:
    _ModelAdmin, TabularInline = admin.ModelAdmin, admin.TabularInline


class ModelAdmin(_ModelAdmin):
    """Django's, where texts that people wrote have a direction of their own."""

    class Media:
        css = {"all": ("feedback/css/admin.css",)}  # noqa: RUF012 (as Django has it)

    def formfield_for_dbfield(
        self, db_field: "Field[Any, Any]", request: HttpRequest, **options: Any
    ) -> "FormField | None":
        """Let what is typed have its direction, too."""
        field = super().formfield_for_dbfield(db_field, request, **options)
        if field is not None and isinstance(field.widget, TextInput | Textarea):
            field.widget.attrs["dir"] = "auto"
        return field


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


class Audited:
    """What is done to rows of a list is said, and goes into the admin's log."""

    def act(
        self, request: HttpRequest, chosen: "QuerySet[Any]", do: "Callable[[QuerySet[Any]], int]", text: str
    ) -> None:
        """Do something to these rows, say with ``text`` to how many, and log it for each."""
        # By their ids: what was chosen may be filtered by what changes now.
        rows = chosen.model._default_manager.filter(pk__in=list(chosen.values_list("pk", flat=True)))
        named = cast("QuerySet[Any]", list(rows.all()))  # read now: what is done may delete them
        said = text.format(do(rows))
        LogEntry.objects.log_actions(cast("int", request.user.pk), named, CHANGE, said)
        messages.success(request, said)
