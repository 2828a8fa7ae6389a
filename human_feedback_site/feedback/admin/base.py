"""What the pages of the admin have in common."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import Field, Model, Q, QuerySet
from django.forms import Field as FormField
from django.forms import ModelForm as _ModelForm
from django.forms import MultipleHiddenInput, Textarea, TextInput, model_to_dict
from django.http import HttpRequest

from human_feedback_site.feedback.selectors import browse

if TYPE_CHECKING:  # they are generic for type checkers alone
    _ModelAdmin: TypeAlias = admin.ModelAdmin[Any]
    TabularInline: TypeAlias = admin.TabularInline[Any, Any]
    ModelForm: TypeAlias = _ModelForm[Any]
else:
    ModelForm = _ModelForm
    _ModelAdmin, TabularInline = admin.ModelAdmin, admin.TabularInline

_CHANGED = (
    "Somebody changed this to “{}” after you opened the page. Nothing was saved; load the page again, "
    "and change what is still to be changed."
)


class SeenForm(ModelForm):
    """A form that writes over nothing that somebody else has written since it was opened.

    Each of its fields remembers what it showed. Where another admin has changed the same field meanwhile, the
    form is refused and says what the field holds now.
    """

    def clean(self) -> dict[str, Any]:
        """Compare what was shown with what is there, which is locked until the form is saved."""
        cleaned: dict[str, Any] = super().clean() or {}
        if self.instance.pk is None or not self.changed_data:
            return cleaned
        rows = self._meta.model._base_manager.select_for_update(no_key=True)
        row = rows.filter(pk=self.instance.pk).first()
        now = {} if row is None else model_to_dict(row, self.changed_data)
        for name, value in now.items():
            if isinstance(value, datetime):
                value = value.replace(microsecond=0)  # noqa: PLW2901 (as forms show it)
            if self._differs(name, value, shown=True) and self._differs(name, value, shown=False):
                self.add_error(name, _CHANGED.format(_said(value)))
        return cleaned

    def _differs(self, name: str, value: Any, *, shown: bool) -> bool:
        """Say whether a value is another than the field has now, or than it had when it was ``shown``."""
        bound = self[name]
        if not bound.field.show_hidden_initial:
            return False
        widget = bound.field.hidden_widget() if shown else bound.field.widget
        key = bound.html_initial_name if shown else bound.html_name
        if widget.value_omitted_from_data(self.data, self.files, key) and shown:
            return not bound.field.required and isinstance(widget, MultipleHiddenInput) and bool(value)
        return bool(bound.field.has_changed(value, widget.value_from_datadict(self.data, self.files, key)))

    def _save_m2m(self) -> None:
        """Write those lists alone that were changed here."""
        cleaned = self.cleaned_data
        if self.instance.pk is not None:
            self.cleaned_data = {name: cleaned[name] for name in self.changed_data if name in cleaned}
        super()._save_m2m()  # type: ignore[misc]
        self.cleaned_data = cleaned


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


class GuardedModelAdmin(_ModelAdmin):
    """Where nobody writes over another's change, and texts have a direction of their own.

    A search finds rows by how a UUID begins, in the fields of ``search_fields`` that end so.
    """

    class Media:
        css = {"all": ("feedback/css/admin.css",)}  # noqa: RUF012 (as Django has it)

    def formfield_for_dbfield(
        self, db_field: "Field[Any, Any]", request: HttpRequest, **options: Any
    ) -> "FormField | None":
        """Let a field remember what it showed, and what is typed have its direction."""
        field = super().formfield_for_dbfield(db_field, request, **options)
        if field is not None:
            field.show_hidden_initial = True
            if isinstance(field.widget, TextInput | Textarea):
                field.widget.attrs["dir"] = "auto"
        return field

    def get_search_results(
        self, request: HttpRequest, queryset: "QuerySet[Any]", search_term: str
    ) -> "tuple[QuerySet[Any], bool]":
        """Find rows by the first digits of a UUID, too, as the comparison browser does."""
        found, may_repeat = super().get_search_results(request, queryset, search_term)
        uuids = [name.removeprefix("=") for name in self.search_fields if name.endswith("uuid")]
        if not uuids or not browse.BEGINS_A_UUID.fullmatch(search_term.strip()):
            return found, may_repeat
        first_and_last = browse.uuids_from(search_term.strip())
        begins = Q(*((f"{name}__range", first_and_last) for name in uuids), _connector=Q.OR)
        return queryset.filter(Q(pk__in=found.values("pk")) | begins), may_repeat

    def save_model(self, request: HttpRequest, obj: Any, form: "_ModelForm[Any]", change: bool) -> None:
        """Write what was changed here alone."""
        if not change:
            super().save_model(request, obj, form, change)
            return
        columns = {field.name for field in obj._meta.concrete_fields}
        obj.save(update_fields=columns & set(form.changed_data))


class ModelAdmin(GuardedModelAdmin):
    """Django's, with care."""

    form = SeenForm


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


class DeletedOnlyUnused:
    """A row is offered for deletion alone, and only where nothing refers to it that would have to go, too.

    ``LOST_WITH_IT`` are models whose rows may go with it.
    """

    LOST_WITH_IT: "frozenset[type[Model]]" = frozenset()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Say yes to who may, for a row that nothing refers to."""
        return (
            obj is not None
            and ModelAdmin.has_delete_permission(cast("ModelAdmin", self), request, obj)
            and not any(
                relation.related_model._base_manager.filter(**{relation.field.name: obj}).exists()
                for relation in obj._meta.related_objects
                if relation.related_model not in self.LOST_WITH_IT
            )
        )


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
