"""A site that is an identity provider, by django-oauth-toolkit.

``python -m tests.identity_provider_site FOLDER PORT ORIGIN...`` runs it, with its database in the folder, for
a labeling site at these origins. Whatever needs Django's settings is imported once they are made.
"""

import sys
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIServer, make_server

CLIENT_ID, CLIENT_SECRET = "rl-teacher", "a-secret-of-the-client"
PASSWORD = "a-password-at-the-provider"
PEOPLE = {"ada": "researchers", "mia": "staff", "root": "admins"}  # and the group of each
LOGIN_PAGE = """<form method="post">{% csrf_token %}{{ form }}<button>Sign in</button></form>"""


def configure(folder: Path) -> None:
    """Make Django's settings for a provider whose database is in ``folder``."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from django.conf import settings

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    settings.configure(
        ALLOWED_HOSTS=["127.0.0.1"],
        SECRET_KEY="of-the-provider-" + "0123456789" * 4,
        SESSION_COOKIE_NAME="provider",  # cookies ignore ports
        CSRF_COOKIE_NAME="provider_csrf",
        ROOT_URLCONF=sys.modules[__name__],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(folder / "provider.sqlite3"),
                "CONN_MAX_AGE": None,
                "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;"},
            }
        },
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "oauth2_provider",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "OPTIONS": {
                    "loaders": [
                        ("django.template.loaders.locmem.Loader", {"registration/login.html": LOGIN_PAGE}),
                    ]
                },
            }
        ],
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        LOGIN_URL="/login/",
        USE_TZ=True,
        OAUTH2_PROVIDER={
            "OIDC_ENABLED": True,
            "OIDC_RP_INITIATED_LOGOUT_ENABLED": True,
            "OIDC_RP_INITIATED_LOGOUT_ALWAYS_PROMPT": False,
            "OIDC_RSA_PRIVATE_KEY": key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ).decode(),
            "OAUTH2_VALIDATOR_CLASS": validator_class,
            "PKCE_REQUIRED": True,
            "SCOPES": {"openid": "", "profile": ""},
        },
    )


def validator_class(*args: object, **options: object) -> Any:
    """Make the validator, which adds the claims; its class can't be made before the settings."""
    from oauth2_provider.oauth2_validators import OAuth2Validator

    class Validator(OAuth2Validator):  # type: ignore[misc]
        oidc_claim_scope = None  # every claim, whatever the scopes

        def get_additional_claims(self, request: Any) -> dict[str, object]:
            groups = [group.name for group in request.user.groups.all()]
            return {"preferred_username": f"{request.user.username}@example.org", "groups": groups}

    return Validator(*args, **options)


def fill(origins: list[str]) -> None:
    """Make the tables, the users and the client."""
    from django.contrib.auth.models import Group, User
    from django.core.management import call_command
    from oauth2_provider.models import Application

    call_command("migrate", verbosity=0)
    for username, group in PEOPLE.items():
        user = User.objects.create_user(username, password=PASSWORD)
        user.groups.add(Group.objects.create(name=group))
    Application.objects.create(
        client_id=CLIENT_ID,
        client_secret=CLIENT_SECRET,
        client_type=Application.CLIENT_CONFIDENTIAL,
        authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        redirect_uris=" ".join(f"{origin}/accounts/sso/callback/" for origin in origins),
        post_logout_redirect_uris=" ".join(f"{origin}/accounts/login/" for origin in origins),
        algorithm=Application.RS256_ALGORITHM,
        skip_authorization=True,
    )


class Server(ThreadingMixIn, WSGIServer):
    """Answers requests at the same time."""

    daemon_threads = True


def main(folder: str, port: str, *origins: str) -> None:
    """Serve until the process is ended."""
    import django
    from django.core.wsgi import get_wsgi_application

    configure(Path(folder))
    django.setup()
    fill(list(origins))

    make_server("127.0.0.1", int(port), get_wsgi_application(), Server).serve_forever()


def __getattr__(name: str) -> Any:
    """Return the provider's URL patterns, which import models: Django asks for them once it is set up."""
    if name != "urlpatterns":
        raise AttributeError(name)
    from django.contrib.auth.views import LoginView
    from django.urls import include, path

    return [path("login/", LoginView.as_view()), path("", include("oauth2_provider.urls"))]


if __name__ == "__main__":
    main(*sys.argv[1:])
