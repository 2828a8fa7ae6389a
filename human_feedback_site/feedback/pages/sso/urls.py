"""URL patterns of single sign-on."""

from django.urls import path

from human_feedback_site.feedback.pages.sso import views

urlpatterns = [
    path("", views.leave, name="sso"),
    path("callback/", views.come_back, name="sso-callback"),
]
