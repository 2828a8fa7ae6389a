"""URL patterns of the HTML pages."""

from django.urls import include, path, register_converter
from django.urls.converters import IntConverter

from human_feedback_site.feedback.pages import browser, clips, experiment, joining, labeling, people, views


class NumberConverter(IntConverter):
    """URL converter for non-negative integers that fit in a database column.

    PostgreSQL and SQLite raise errors for larger integers.
    """

    regex = "[0-9]{1,18}"


register_converter(NumberConverter, "number")

_ANSWER = "history/<uuid:label_uuid>"
_COMPARISON = "comparisons/<uuid:uuid>"
_experiment = [
    path("", experiment.experiment, name="experiment"),
    path("live", experiment.live, name="live"),
    path("examples/<uuid:uuid>", experiment.use_as_example, name="use-as-example"),
    path("examples/<uuid:uuid>/remove", experiment.remove_example, name="remove-example"),
    path("label", labeling.label, name="label"),
    path("history", labeling.history, name="history"),
    path(_ANSWER, labeling.change, name="change"),
    *(
        path(f"{_ANSWER}/{side}", clips.of_answer, {"side": side}, f"{side}-clip")
        for side in ("left", "right")
    ),
    path("episodes/<number:step>", clips.of_episode, name="episode"),
    path("done", labeling.done, name="done"),
    path("invite", views.invite, name="invite"),
    path("<slug:table>.<slug:extension>", experiment.export, name="export"),
    *(path(step, experiment.steer, {"step": step}, name=step) for step in experiment.STEPS),
    path("finish", experiment.finish, name="finish"),
    path("prompt", experiment.edit_prompt, name="prompt"),
    path("comparisons", browser.comparisons, name="comparisons"),
    path(_COMPARISON, browser.comparison, name="comparison"),
    *(
        path(f"{_COMPARISON}/{side}", clips.of_comparison, {"side": side}, f"{side}-clip")
        for side in ("first", "second")
    ),
    path(f"{_COMPARISON}/act", browser.act, name="act"),
    path("labelers/<number:number>", people.labeler, name="labeler"),
    path("labelers/<number:number>/block", people.block, name="block"),
    path("labelers/<number:number>/readmit", people.readmit, name="readmit"),
    path("invites", people.invites, name="invites"),
    path("invites/<number:number>/revoke", people.revoke, name="revoke"),
    path("consent", people.consent, name="consent"),
    path("consent/text", people.edit_consent, name="consent-text"),
    path("participants", people.participants, name="participants"),
    path("participants/forget", people.forget, name="forget"),
]
urlpatterns = [
    path("", views.home, name="home"),
    path("experiments/<slug:name>/", include(_experiment)),
    path("join/<str:token>", joining.join, name="join"),
    path("j/<str:token>", joining.join, name="short-join"),
    path("w/<str:token>", joining.watch, name="watch"),
    path("session", labeling.session, name="session"),
    path("accounts/login/", joining.SignIn.as_view(), name="login"),
    path("accounts/logout/", joining.SignOut.as_view(), name="logout"),
    path("i18n/setlang/", views.set_language, name="set_language"),
]
