"""URL patterns of the HTML pages."""

from django.urls import path, register_converter
from django.urls.converters import IntConverter

from human_feedback_site.feedback.pages import (
    browser,
    clips,
    consent,
    ending,
    examples,
    experiment,
    exports,
    joining,
    labelers,
    labeling,
    people,
    sign_in,
    steering,
    views,
    watching,
)


class NumberConverter(IntConverter):
    """URL converter for non-negative integers that fit in a database column.

    PostgreSQL and SQLite raise errors for larger integers.
    """

    regex = "[0-9]{1,18}"


register_converter(NumberConverter, "number")

_ANSWER = "experiments/<slug:name>/history/<uuid:label_uuid>"
_COMPARISON = "experiments/<slug:name>/comparisons/<uuid:uuid>"

urlpatterns = [
    path("", views.home, name="home"),
    path("experiments/<slug:name>/", experiment.experiment, name="experiment"),
    path("experiments/<slug:name>/live", experiment.live, name="live"),
    path("experiments/<slug:name>/examples/<uuid:uuid>", examples.use, name="use-as-example"),
    path("experiments/<slug:name>/examples/<uuid:uuid>/remove", examples.remove, name="remove-example"),
    path("experiments/<slug:name>/label", labeling.label, name="label"),
    path("experiments/<slug:name>/history", labeling.history, name="history"),
    path(_ANSWER, labeling.change, name="change"),
    *(
        path(f"{_ANSWER}/{side}", clips.of_answer, {"side": side}, f"{side}-clip")
        for side in ("left", "right")
    ),
    path("experiments/<slug:name>/episodes/<number:step>", clips.of_episode, name="episode"),
    path("experiments/<slug:name>/done", ending.done, name="done"),
    path("experiments/<slug:name>/invite", views.invite, name="invite"),
    path("experiments/<slug:name>/<slug:table>.<slug:extension>", exports.export, name="export"),
    *(
        path(f"experiments/<slug:name>/{step}", steering.steer, {"step": step}, name=step)
        for step in steering.STEPS
    ),
    path("experiments/<slug:name>/finish", steering.finish, name="finish"),
    path("experiments/<slug:name>/prompt", steering.edit_prompt, name="prompt"),
    path("experiments/<slug:name>/comparisons", browser.comparisons, name="comparisons"),
    path(_COMPARISON, browser.comparison, name="comparison"),
    *(
        path(f"{_COMPARISON}/{side}", clips.of_comparison, {"side": side}, f"{side}-clip")
        for side in ("first", "second")
    ),
    path(f"{_COMPARISON}/act", browser.act, name="act"),
    path("experiments/<slug:name>/labelers/<number:number>", labelers.labeler, name="labeler"),
    path("experiments/<slug:name>/labelers/<number:number>/block", labelers.block, name="block"),
    path("experiments/<slug:name>/labelers/<number:number>/readmit", labelers.readmit, name="readmit"),
    path("experiments/<slug:name>/invites", people.invites, name="invites"),
    path("experiments/<slug:name>/invites/<number:number>/revoke", people.revoke, name="revoke"),
    path("experiments/<slug:name>/consent", consent.consent, name="consent"),
    path("experiments/<slug:name>/consent/text", consent.edit, name="consent-text"),
    path("experiments/<slug:name>/participants", people.participants, name="participants"),
    path("experiments/<slug:name>/participants/forget", people.forget, name="forget"),
    path("join/<str:token>", joining.join, name="join"),
    path("j/<str:token>", joining.join, name="short-join"),
    path("w/<str:token>", watching.watch, name="watch"),
    path("session", labeling.session, name="session"),
    path("accounts/login/", sign_in.SignIn.as_view(), name="login"),
    path("accounts/logout/", sign_in.SignOut.as_view(), name="logout"),
    path("i18n/setlang/", views.set_language, name="set_language"),
]
