"""URL patterns of the HTML pages."""

from django.urls import path, register_converter
from django.urls.converters import IntConverter

from human_feedback_site.feedback.kinds import ITEMS
from human_feedback_site.feedback.pages import (
    browser,
    clips,
    experiment,
    joining,
    labeling,
    people,
    settings,
    views,
)


class NumberConverter(IntConverter):
    """URL converter for non-negative integers that fit in a database column.

    PostgreSQL and SQLite raise errors for larger integers.
    """

    regex = "[0-9]{1,18}"


register_converter(NumberConverter, "number")

_ANSWER = "experiments/<slug:name>/history/<uuid:label_uuid>"
_COMPARISON = "experiments/<slug:name>/comparisons/<uuid:uuid>"
_EXAMPLE = "experiments/<slug:name>/examples/<uuid:uuid>"

urlpatterns = [
    path("", views.home, name="home"),
    path("experiments/<slug:name>/", experiment.experiment, name="experiment"),
    path("experiments/<slug:name>/live", experiment.live, name="live"),
    path(_EXAMPLE, experiment.use_as_example, name="use-as-example"),
    path(f"{_EXAMPLE}/remove", experiment.remove_example, name="remove-example"),
    path("experiments/<slug:name>/label", labeling.label, name="label"),
    path("experiments/<slug:name>/history", labeling.history, name="history"),
    path(_ANSWER, labeling.change, name="change"),
    path(f"{_ANSWER}/clips/<number:place>", clips.of_answer, name="answer-clip"),
    # Addresses on history pages of 0.1.0 that are still open.
    path(f"{_ANSWER}/left", clips.of_answer, {"place": 1}, "left-clip"),
    path(f"{_ANSWER}/right", clips.of_answer, {"place": 2}, "right-clip"),
    path("experiments/<slug:name>/episodes/<number:step>", clips.of_episode, name="episode"),
    path("experiments/<slug:name>/done", labeling.done, name="done"),
    path("experiments/<slug:name>/invite", views.invite, name="invite"),
    path("experiments/<slug:name>/<slug:table>.<slug:extension>", experiment.export, name="export"),
    *(
        path(f"experiments/<slug:name>/{step}", experiment.steer, {"step": step}, name=step)
        for step in experiment.STEPS
    ),
    path("experiments/<slug:name>/finish", experiment.finish, name="finish"),
    path("experiments/<slug:name>/prompt", settings.edit_prompt, name="prompt"),
    path("experiments/<slug:name>/settings", settings.settings, name="settings"),
    path("experiments/<slug:name>/comparisons", browser.comparisons, name="comparisons"),
    path("experiments/<slug:name>/review", browser.review, name="review"),
    path(_COMPARISON, browser.comparison, name="comparison"),
    *(path(f"{_COMPARISON}/{item}", clips.of_comparison, {"item": item}, f"{item}-clip") for item in ITEMS),
    path(f"{_COMPARISON}/act", browser.act, name="act"),
    path("experiments/<slug:name>/labelers/<number:number>", people.labeler, name="labeler"),
    path("experiments/<slug:name>/labelers/<number:number>/block", people.block, name="block"),
    path("experiments/<slug:name>/labelers/<number:number>/readmit", people.readmit, name="readmit"),
    path("experiments/<slug:name>/invites", people.invites, name="invites"),
    path("experiments/<slug:name>/invites/<number:number>/revoke", people.revoke, name="revoke"),
    path("experiments/<slug:name>/consent", people.consent, name="consent"),
    path("experiments/<slug:name>/consent/text", settings.edit_consent, name="consent-text"),
    path("experiments/<slug:name>/participants", people.participants, name="participants"),
    path("experiments/<slug:name>/participants/forget", people.forget, name="forget"),
    path("join/<str:token>", joining.join, name="long-join"),  # as printed by 0.1.0
    path("j/<str:token>", joining.join, name="join"),
    path("session", labeling.session, name="session"),
    path("accounts/login/", joining.SignIn.as_view(), name="login"),
    path("accounts/logout/", joining.SignOut.as_view(), name="logout"),
    path("i18n/setlang/", views.set_language, name="set_language"),
]
