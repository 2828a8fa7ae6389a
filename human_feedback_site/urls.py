"""URL configuration of the site."""

from django.conf import settings
from django.contrib import admin
from django.urls import include, path

from human_feedback_site.feedback.api.views import livez, metrics, readyz
from human_feedback_site.feedback.media.view import serve_clip

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/", include("human_feedback_site.feedback.api.urls")),
    path("livez", livez, name="livez"),
    path("readyz", readyz, name="readyz"),
    path("metrics", metrics, name="metrics"),
    path("media/<str:token>", serve_clip, name="media"),
    path("", include("human_feedback_site.feedback.pages.urls")),
]
if settings.SINGLE_SIGN_ON:
    urlpatterns.append(path("accounts/sso/", include("human_feedback_site.feedback.pages.sso.views")))

handler400 = "human_feedback_site.feedback.api.problems.bad_request"
handler403 = "human_feedback_site.feedback.api.problems.permission_denied"
handler404 = "human_feedback_site.feedback.api.problems.page_not_found"
handler500 = "human_feedback_site.feedback.api.problems.server_error"
