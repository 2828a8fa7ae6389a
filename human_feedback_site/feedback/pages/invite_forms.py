"""The two forms that make invitations: for one person, and for many who come without names."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.models import Experiment, Invite, validate_labeler_name
from human_feedback_site.feedback.services import accounts
from human_feedback_site.feedback.services.invites import PROLIFIC_RETURN_URL

if TYPE_CHECKING:  # it is generic for type checkers alone
    ModelForm: TypeAlias = forms.ModelForm[Invite]
else:
    ModelForm = forms.ModelForm

MOST_DAYS = 365
_MOST = 1_000_000


class InviteForm(ModelForm):
    """What both ask for."""

    days = forms.IntegerField(min_value=1, max_value=MOST_DAYS, initial=30)
    answers_wanted = forms.IntegerField(min_value=1, max_value=_MOST, required=False)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for field in self.fields.values():
            if type(field.widget) is forms.TextInput:
                field.widget.attrs["dir"] = "auto"

    def save_for(self, experiment: Experiment) -> Invite:
        """Keep the invitation that the valid form describes."""
        self.instance.experiment = experiment
        self.instance.expires_at = timezone.now() + timedelta(days=self.cleaned_data["days"])
        self.instance.save()
        return self.instance


class NamedForm(InviteForm):
    """A link for one person, by name."""

    labeler_name = forms.CharField(max_length=50, validators=[validate_labeler_name])
    once = forms.BooleanField(required=False)

    class Meta:
        model = Invite
        fields = ("answers_wanted",)

    def save_for(self, experiment: Experiment) -> Invite:
        """Keep it, and let the labeler, made where there is none, into the experiment."""
        self.instance.kind = Invite.Kind.NAMED
        self.instance.labeler = accounts.invite(experiment, self.cleaned_data["labeler_name"])
        self.instance.limit = 1 if self.cleaned_data["once"] else None
        return super().save_for(experiment)


class AnonymousForm(InviteForm):
    """A link for many, each of whom gets a pseudonym; they may come from a platform."""

    limit = forms.IntegerField(min_value=1, max_value=_MOST, initial=20)
    return_url = forms.URLField(required=False, initial=PROLIFIC_RETURN_URL, assume_scheme="https")

    class Meta:
        model = Invite
        fields = (
            *("note", "limit", "answers_wanted", "platform", "study"),
            *("completion_code", "screen_out_code", "return_url"),
        )

    def clean(self) -> dict[str, object]:
        """Ask for a completion code where people come from a platform, which pays by it.

        That it is not that of those who are stopped, the invitation itself sees to.
        """
        cleaned: dict[str, object] = super().clean() or {}
        if cleaned.get("platform") and cleaned.get("completion_code") == "":
            self.add_error("completion_code", _("The platform asks for a code: it pays by it."))
        if not cleaned.get("platform"):
            for name in ("study", "completion_code", "screen_out_code", "return_url"):
                cleaned[name] = ""
        return cleaned

    def save_for(self, experiment: Experiment) -> Invite:
        """Keep it."""
        self.instance.kind = Invite.Kind.ANONYMOUS
        return super().save_for(experiment)
