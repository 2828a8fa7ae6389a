"""Addresses of the pages."""

from django.contrib.auth.views import LogoutView
from django.urls import include, path

from human_feedback_site.feedback.pages import (
    examples,
    experiment,
    exports,
    labeling,
    sign_in,
    steering,
    views,
)
from human_feedback_site.feedback.table_files import FILE_TYPES
from human_feedback_site.feedback.tables import TABLES

urlpatterns = [
    path("", views.home, name="home"),
    path("experiments/<slug:name>/", experiment.experiment, name="experiment"),
    path("experiments/<slug:name>/live", experiment.live, name="live"),
    path("experiments/<slug:name>/examples/<uuid:uuid>", examples.use, name="use-as-example"),
    path("experiments/<slug:name>/examples/<uuid:uuid>/remove", examples.remove, name="remove-example"),
    path("experiments/<slug:name>/label", labeling.label, name="label"),
    path("experiments/<slug:name>/history", labeling.history, name="history"),
    path("experiments/<slug:name>/history/<uuid:label_uuid>", labeling.change, name="change"),
    path("experiments/<slug:name>/done", labeling.done, name="done"),
    path("experiments/<slug:name>/invite", views.invite, name="invite"),
    *(
        path(
            f"experiments/<slug:name>/{table}.{extension}",
            exports.export,
            {"table": table, "extension": extension},
            name=f"{table}-{extension}",
        )
        for table in TABLES
        for extension in FILE_TYPES
    ),
    *(
        path(f"experiments/<slug:name>/{step}", steering.steer, {"step": step}, name=step)
        for step in steering.STEPS
    ),
    path("experiments/<slug:name>/finish", steering.finish, name="finish"),
    path("experiments/<slug:name>/prompt", steering.edit_prompt, name="prompt"),
    path("join/<str:token>", views.join, name="join"),
    path("session", labeling.session, name="session"),
    path("accounts/login/", sign_in.SignIn.as_view(), name="login"),
    path("accounts/logout/", LogoutView.as_view(), name="logout"),
    path("i18n/", include("django.conf.urls.i18n")),
]
