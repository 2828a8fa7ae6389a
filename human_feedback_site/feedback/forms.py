"""Forms that two people can have open at the same time."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from django import forms
from django.forms import MultipleHiddenInput, model_to_dict
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:  # generic only in the type stubs
    ModelForm: TypeAlias = forms.ModelForm[Any]
else:
    ModelForm = forms.ModelForm

_CHANGED = _(
    "Someone else changed this to “{}” after you opened the page. Nothing was saved. Reload the page and "
    "make your changes again."
)


class SeenForm(ModelForm):
    """Model form that never overwrites changes made by someone else since the form was opened.

    This is optimistic locking: each field's initial value is submitted in a hidden input. If a field edited
    in this form has been changed by someone else in the meantime, validation fails with an error that shows
    the field's current value.
    """

    def clean(self) -> dict[str, Any]:
        """Lock the row until the form is saved, and add an error for each field with a conflicting change."""
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
                self.add_error(name, _CHANGED.format(_text_of(value)))
        return cleaned

    def _differs(self, name: str, value: Any, *, shown: bool) -> bool:
        """Return True if ``value`` differs from the submitted value or, if ``shown``, the initial one."""
        bound = self[name]
        if not bound.field.show_hidden_initial:
            return False
        widget = bound.field.hidden_widget() if shown else bound.field.widget
        key = bound.html_initial_name if shown else bound.html_name
        if widget.value_omitted_from_data(self.data, self.files, key) and shown:
            return not bound.field.required and isinstance(widget, MultipleHiddenInput) and bool(value)
        return bool(bound.field.has_changed(value, widget.value_from_datadict(self.data, self.files, key)))

    def _save_m2m(self) -> None:
        cleaned = self.cleaned_data
        if self.instance.pk is not None:
            self.cleaned_data = {name: cleaned[name] for name in self.changed_data if name in cleaned}
        super()._save_m2m()  # type: ignore[misc]
        self.cleaned_data = cleaned


def _text_of(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
