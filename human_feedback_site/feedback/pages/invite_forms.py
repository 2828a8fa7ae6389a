"""Forms that create invitations: one for a named labeler, one for many anonymous labelers."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.models import Experiment, Invite, validate_labeler_name
from human_feedback_site.feedback.services import accounts
from human_feedback_site.feedback.services.invites import PROLIFIC_RETURN_URL

if TYPE_CHECKING:  # generic only in the type stubs
    ModelForm: TypeAlias = forms.ModelForm[Invite]
else:
    ModelForm = forms.ModelForm

MOST_DAYS = 365
_MOST = 1_000_000


class InviteForm(ModelForm):
    """Base class of both invitation forms, with fields for the expiry and the number of answers."""

    days = forms.IntegerField(min_value=1, max_value=MOST_DAYS, initial=30)
    answers_wanted = forms.IntegerField(min_value=1, max_value=_MOST, required=False)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for field in self.fields.values():
            if type(field.widget) is forms.TextInput:
                field.widget.attrs["dir"] = "auto"

    def save_for(self, experiment: Experiment) -> Invite:
        """Save and return the invitation described by this form, which must be valid."""
        self.instance.experiment = experiment
        self.instance.expires_at = timezone.now() + timedelta(days=self.cleaned_data["days"])
        self.instance.save()
        return self.instance


class NamedForm(InviteForm):
    """Form for a link that signs in one named labeler."""

    labeler_name = forms.CharField(validators=[validate_labeler_name])
    once = forms.BooleanField(required=False)

    class Meta:
        model = Invite
        fields = ("answers_wanted",)

    def save_for(self, experiment: Experiment) -> Invite:
        """Add the labeler to the experiment, creating the labeler if needed, and save the invitation."""
        self.instance.kind = Invite.Kind.NAMED
        self.instance.labeler = accounts.invite(experiment, self.cleaned_data["labeler_name"])
        self.instance.limit = 1 if self.cleaned_data["once"] else None
        return super().save_for(experiment)


class AnonymousForm(InviteForm):
    """Form for a link that many people can use, each under a new pseudonym.

    A platform such as Prolific may recruit these labelers.
    """

    limit = forms.IntegerField(min_value=1, max_value=_MOST, initial=20)
    return_url = forms.URLField(required=False, initial=PROLIFIC_RETURN_URL, assume_scheme="https")

    class Meta:
        model = Invite
        fields = (
            *("note", "limit", "answers_wanted", "platform", "study"),
            *("completion_code", "screen_out_code", "return_url"),
        )

    def clean(self) -> dict[str, object]:
        """Require a completion code if a platform is chosen; otherwise clear the platform fields.

        The ``Invite`` model checks that the completion and screen-out codes differ.
        """
        cleaned: dict[str, object] = super().clean() or {}
        if cleaned.get("platform") and cleaned.get("completion_code") == "":
            self.add_error(
                "completion_code", _("Enter the completion code that the platform uses to pay participants.")
            )
        if not cleaned.get("platform"):
            for name in ("study", "completion_code", "screen_out_code", "return_url"):
                cleaned[name] = ""
        return cleaned

    def save_for(self, experiment: Experiment) -> Invite:
        """Save and return an invitation for anonymous labelers."""
        self.instance.kind = Invite.Kind.ANONYMOUS
        return super().save_for(experiment)
