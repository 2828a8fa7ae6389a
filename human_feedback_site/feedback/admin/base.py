"""Base classes and mixins for the admin pages."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import Field, Model, Q, QuerySet
from django.forms import Field as FormField
from django.forms import ModelForm, Textarea, TextInput
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from human_feedback_site.feedback.forms import SeenForm
from human_feedback_site.feedback.models.names import normalized
from human_feedback_site.feedback.selectors import browse

if TYPE_CHECKING:  # generic only in the type stubs
    _ModelAdmin: TypeAlias = admin.ModelAdmin[Any]
    TabularInline: TypeAlias = admin.TabularInline[Any, Any]
else:
    _ModelAdmin, TabularInline = admin.ModelAdmin, admin.TabularInline


class GuardedModelAdmin(_ModelAdmin):
    """Common base class of :class:`ModelAdmin` and of the admins for Django's users and groups.

    Saves only changed fields. Entries of ``search_fields`` whose names end in ``uuid`` are searched by
    prefix. Text inputs get ``dir="auto"`` for right-to-left text. The ``form`` must inherit from
    :class:`SeenForm`.
    """

    class Media:
        css = {"all": ("feedback/css/admin.css",)}  # noqa: RUF012 (as Django has it)

    def formfield_for_dbfield(
        self, db_field: "Field[Any, Any]", request: HttpRequest, **options: Any
    ) -> "FormField | None":
        """Return the form field with the hidden initial input that :class:`SeenForm` needs."""
        field = super().formfield_for_dbfield(db_field, request, **options)
        if field is not None:
            field.show_hidden_initial = True
            if isinstance(field.widget, TextInput | Textarea):
                field.widget.attrs["dir"] = "auto"
        return field

    def get_search_results(
        self, request: HttpRequest, queryset: "QuerySet[Any]", search_term: str
    ) -> "tuple[QuerySet[Any], bool]":
        """Extend Django's search results with rows whose UUID starts with the search term."""
        found, may_repeat = super().get_search_results(request, queryset, normalized(search_term))
        uuids = [name.removeprefix("=") for name in self.search_fields if name.endswith("uuid")]
        if not uuids or not browse.BEGINS_A_UUID.fullmatch(search_term.strip()):
            return found, may_repeat
        first_and_last = browse.uuids_from(search_term.strip())
        begins = Q(*((f"{name}__range", first_and_last) for name in uuids), _connector=Q.OR)
        return queryset.filter(Q(pk__in=found.values("pk")) | begins), may_repeat

    def save_model(self, request: HttpRequest, obj: Any, form: "ModelForm[Any]", change: bool) -> None:
        """Save only the fields that were changed in the form."""
        if not change:
            super().save_model(request, obj, form, change)
            return
        columns = {field.name for field in obj._meta.concrete_fields}
        obj.save(update_fields=columns & set(form.changed_data))


class ModelAdmin(GuardedModelAdmin):
    """Base class of all admins except those for users and groups; the form is :class:`SeenForm`."""

    form = SeenForm


class ReadOnly:
    """Mixin that forbids adding, changing and deleting rows."""

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Return False: rows can't be deleted."""
        return False


class DeletedOnlyUnused:
    """Mixin that allows deleting only one row at a time, and only if no other rows reference it.

    Referencing rows of the models in ``LOST_WITH_IT`` don't prevent the deletion; the deletion cascades
    to them.
    """

    LOST_WITH_IT: "frozenset[type[Model]]" = frozenset()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return True if the user may delete ``obj`` and only ``LOST_WITH_IT`` rows reference it."""
        return (
            obj is not None
            and ModelAdmin.has_delete_permission(cast("ModelAdmin", self), request, obj)
            and not any(
                relation.related_model._base_manager.filter(**{relation.field.name: obj}).exists()
                for relation in obj._meta.related_objects
                if relation.related_model not in self.LOST_WITH_IT
            )
        )


def audited(
    do: "Callable[[QuerySet[Any]], int]",
    text: str,
    description: str,
    permissions: Sequence[str] | None = ("view",),
) -> "Callable[[Any, HttpRequest, QuerySet[Any]], None]":
    """Return an admin action for :class:`Audited` admins, which calls ``do``."""

    @admin.action(permissions=permissions, description=description)
    def action(self: Audited, request: HttpRequest, chosen: "QuerySet[Any]") -> None:
        self.act(request, chosen, do, text)

    return action


class Audited:
    """Mixin for admin actions that show their result in a message and write it to the admin log."""

    def act(
        self, request: HttpRequest, chosen: "QuerySet[Any]", do: "Callable[[QuerySet[Any]], int]", text: str
    ) -> None:
        """Call ``do`` on the selected rows; show and log ``text`` with the count that it returns."""
        # Select by ID, because the queryset may filter on a column that the action changes.
        rows = chosen.model._default_manager.filter(pk__in=list(chosen.values_list("pk", flat=True)))
        named = cast("QuerySet[Any]", list(rows.all()))  # read now, because the action may delete rows
        result = text.format(do(rows))
        LogEntry.objects.log_actions(cast("int", request.user.pk), named, CHANGE, result)
        messages.success(request, result)


class SecretOnce:
    """Mixin for rows with a secret, which is shown only when it is created or replaced."""

    SHOWN: tuple[str, str, str]  # the page's title, its template, and the row's name there

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Show the secret of a new row."""
        return self.show_secret(request, obj, obj.secret)

    def replace(
        self, request: HttpRequest, chosen: "QuerySet[Any]", do: Callable[[Any], str], texts: tuple[str, str]
    ) -> HttpResponse | None:
        """Replace the only chosen row's secret; ``texts`` are an error message and what is logged."""
        admin_of_rows = cast("ModelAdmin", self)
        if len(chosen) != 1:
            admin_of_rows.message_user(request, texts[0], messages.ERROR)
            return None
        row = chosen.get()
        secret = do(row)
        admin_of_rows.log_change(request, row, texts[1])
        return self.show_secret(request, row, secret)

    def show_secret(self, request: HttpRequest, row: Any, secret: str) -> HttpResponse:
        """Return a page with the secret."""
        title, template, name = self.SHOWN
        context = cast("ModelAdmin", self).admin_site.each_context(request)
        return TemplateResponse(request, template, {**context, "title": title, name: row, "secret": secret})
