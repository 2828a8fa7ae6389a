"""Django settings of the labeling site, read only from environment variables.

If none are set, the settings are those of an embedded site: SQLite, a media folder and a secret key in the
state folder, and access from this machine only. ``.env.example`` lists the variables.
"""

import gc
import hashlib
import os
import re
import shlex
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from human_feedback_site.environment import (
    LOOPBACK,
    announced_store,
    host_of,
    origin_of,
    path_of,
    read_bool,
    read_count,
    read_database,
    read_hosts,
    read_hosts_and_networks,
    read_issuer,
    read_list,
    read_log_format,
    read_origin,
    read_public_url,
    read_s3_endpoint,
    read_scopes,
    read_storage,
    require_package,
    require_s3_credentials,
)
from human_feedback_site.logs import configuration
from human_feedback_site.private import read_metrics_token, read_secret_key

# Collect garbage less often: most loaded objects are permanent, and checking them took a fifth of startup
# time.
gc.set_threshold(50_000, 20, 50)

# State folder, URL and allowed hosts.
STATE_DIR = Path(os.environ.get("TEACHER_STATE_DIR") or "state").resolve()
INSTANCE_ID = os.environ.get("TEACHER_INSTANCE_ID", "")
SIGN_IN_CODE = os.environ.get("TEACHER_SIGN_IN_CODE", "")  # of the link that ``teach site`` prints
REOPEN_COMMAND = ""  # that opens an embedded site again after it has stopped
if INSTANCE_ID and not os.environ.get("DATABASE_URL"):
    REOPEN_COMMAND = f"teach site --state_dir {shlex.quote(str(STATE_DIR))}"
PUBLIC_URL = read_public_url("TEACHER_PUBLIC_URL")  # URL that users open; None: each request's own URL
_PUBLIC_ORIGINS = [origin_of(PUBLIC_URL)] if PUBLIC_URL else []
_PATH = path_of(PUBLIC_URL)  # for example "/teacher" if the site shares its host with other sites
FORCE_SCRIPT_NAME = _PATH or None  # prefix of every URL that the site generates; wsgi.py strips it
_HTTPS = (PUBLIC_URL or "").startswith("https://")
ALLOWED_HOSTS = [*LOOPBACK, *map(host_of, _PUBLIC_ORIGINS), *read_hosts("ALLOWED_HOSTS")]
PROXIES = read_count("TEACHER_PROXIES", 0, most=9)  # proxies in front that append to X-Forwarded-For
CSRF_TRUSTED_ORIGINS = [*_PUBLIC_ORIGINS, *read_list("CSRF_TRUSTED_ORIGINS")]
SERVES_ONLY_THIS_MACHINE = set(ALLOWED_HOSTS) <= {*LOOPBACK}
_EMBEDDED = not os.environ.get("DATABASE_URL")

DEBUG = read_bool("DEBUG")
if DEBUG and not SERVES_ONLY_THIS_MACHINE:
    raise ImproperlyConfigured(
        "DEBUG shows internal data to everyone who can reach the site; unset DEBUG, or allow only this "
        "machine in ALLOWED_HOSTS."
    )
SECRET_KEY = read_secret_key(STATE_DIR, embedded=_EMBEDDED)

DATABASES = {"default": read_database(STATE_DIR)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Clip store: a folder that this site serves itself, or "s3://bucket/prefix", served by the S3 server. For an
# embedded site, manage.py uses the store that the site was started with.
_NAMES_STORE = bool(os.environ.get("TEACHER_STORAGE", "").strip())
_ANNOUNCED_STORE, _ANNOUNCED_S3 = announced_store(STATE_DIR) if _EMBEDDED and not _NAMES_STORE else ("", "")
TEACHER_STORAGE = read_storage(STATE_DIR, _ANNOUNCED_STORE)
S3_ENDPOINT_URL = read_s3_endpoint("S3_ENDPOINT_URL", TEACHER_STORAGE, _ANNOUNCED_S3)
S3_PUBLIC_ENDPOINT_URL = read_origin("S3_PUBLIC_ENDPOINT_URL") or S3_ENDPOINT_URL
if _HTTPS and TEACHER_STORAGE.startswith("s3://") and (S3_PUBLIC_ENDPOINT_URL or "").startswith("http://"):
    raise ImproperlyConfigured(
        "S3_PUBLIC_ENDPOINT_URL must begin with https:// as TEACHER_PUBLIC_URL does: "
        f"browsers block clips from {S3_PUBLIC_ENDPOINT_URL} on an https page."
    )
# manage.py commands for an embedded site mostly don't use clips, so they start without credentials.
if TEACHER_STORAGE.startswith("s3://") and not _ANNOUNCED_STORE:
    require_s3_credentials(S3_ENDPOINT_URL)
MEDIA_LINK_SECONDS = 3600
MEDIA_KEEP_DAYS = read_count("MEDIA_KEEP_DAYS", 30)  # days after an experiment's end; 0: keep clips forever

# Labeling.
LEASE_SECONDS = 60
INVITE_MAX_AGE_SECONDS = 30 * 24 * 3600
ACTIVE_LABELER_SECONDS = 120
TRAINER_AWAY_SECONDS = 180  # without a request from the trainer, which polls every few seconds

# Hosts and networks that webhooks may reach although they are private, even by http.
WEBHOOK_ALLOWED_HOSTS = read_hosts_and_networks("WEBHOOK_ALLOWED_HOSTS")
METRICS_TOKEN = read_metrics_token("TEACHER_METRICS_TOKEN")  # None: /metrics doesn't exist

INSTALLED_APPS = [
    "human_feedback_site.feedback",  # before the admin, because it overrides some admin templates
    "human_feedback_site.feedback.apps.SiteAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
]
MIDDLEWARE = [
    "human_feedback_site.feedback.middleware.request_log",
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",  # early, to cover static files and errors, too
    "human_feedback_site.feedback.middleware.content_security_policy",
    "human_feedback_site.feedback.middleware.readable_body",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "human_feedback_site.feedback.middleware.page_of_refused_methods",
]
ROOT_URLCONF = "human_feedback_site.urls"
WSGI_APPLICATION = "human_feedback_site.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "human_feedback_site.feedback.pages.views.account",
            ],
        },
    },
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = LOGOUT_REDIRECT_URL = "login"
LOGIN_REDIRECT_URL = "home"

# Single sign-on with OpenID Connect, off unless the first three are set. mozilla-django-oidc reads the
# settings OIDC_RP_... and those without an environment variable.
OIDC_ISSUER = read_issuer("OIDC_ISSUER")
OIDC_RP_CLIENT_ID = os.environ.get("OIDC_CLIENT_ID", "").strip()
OIDC_RP_CLIENT_SECRET = os.environ.get("OIDC_CLIENT_SECRET", "").strip()
OIDC_RP_SCOPES = read_scopes("OIDC_SCOPES", "openid profile")
OIDC_NAME = os.environ.get("OIDC_NAME", "").strip()  # on the sign-in button
OIDC_ROLE_CLAIM = os.environ.get("OIDC_ROLE_CLAIM", "").strip() or "groups"
OIDC_RESEARCHERS = read_list("OIDC_RESEARCHERS")  # values of the claim that make a user a researcher
OIDC_ADMINS = read_list("OIDC_ADMINS")
OIDC_SESSION_HOURS = read_count("OIDC_SESSION_HOURS", 8, least=1, most=720)
OIDC_USE_PKCE = True
OIDC_STORE_ID_TOKEN = True  # in the session, for signing out at the provider
OIDC_TIMEOUT = 10  # seconds, for each request to the provider
OIDC_AUTHENTICATION_CALLBACK_URL = "sso-callback"
SINGLE_SIGN_ON = bool(OIDC_ISSUER and OIDC_RP_CLIENT_ID and OIDC_RP_CLIENT_SECRET)
AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend"]
if SINGLE_SIGN_ON:
    require_package()
    AUTHENTICATION_BACKENDS.append("human_feedback_site.feedback.pages.sso.backend.SingleSignOn")

# Security. Cookies are sent over plain HTTP only on this machine, or if the public URL begins with http://.
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _HTTPS or (not SERVES_ONLY_THIS_MACHINE and PUBLIC_URL is None)
SESSION_ENGINE = "human_feedback_site.feedback.sessions"
# Cookies ignore ports: two embedded sites on one machine must not log each other's users out.
SESSION_COOKIE_NAME = (
    f"sessionid_{hashlib.sha256(str(STATE_DIR).encode()).hexdigest()[:8]}" if _EMBEDDED else "sessionid"
)
# A site below a path limits its cookies to that path. It also gives them unique names, because browsers send
# it the cookies of a site at the host's root, too.
if _PATH:
    SESSION_COOKIE_PATH = CSRF_COOKIE_PATH = LANGUAGE_COOKIE_PATH = _PATH
    _OWN = _PATH.replace("/", "_")
    SESSION_COOKIE_NAME += _OWN
    CSRF_COOKIE_NAME = f"csrftoken{_OWN}"
    LANGUAGE_COOKIE_NAME = f"django_language{_OWN}"
    MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"  # Django's cookie has no path
# An https public URL implies a TLS proxy in front, because this site serves only HTTP. The proxy must set
# X-Forwarded-Proto and discard the client's value. HTTP requests are redirected to the public URL, except for
# health probes, metrics and the API: local clients use HTTP, and a remote client would have sent its token
# before the redirect.
if _HTTPS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_SSL_REDIRECT = True
    SECURE_SSL_HOST = _PUBLIC_ORIGINS[0].removeprefix("https://")
    _BELOW = re.escape(_PATH.removeprefix("/") + "/") if _PATH else ""
    SECURE_REDIRECT_EXEMPT = [rf"^{_BELOW}(livez|metrics|readyz)$", rf"^{_BELOW}api/"]
    # Browsers insist on https for a month after the last visit. A site below a path must not decide this for
    # the whole host.
    SECURE_HSTS_SECONDS = 0 if _PATH else 30 * 24 * 3600
# With an http URL, `check --deploy` rightly warns about missing HSTS, redirects and secure cookies (W004,
# W008, W012, W016). The silenced checks ask for HSTS on subdomains (W005) and in browsers' preload lists
# (W021), which would affect other sites; a site below a path sets no HSTS at all (W004).
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021", *(["security.W004"] if _PATH else [])]
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CSRF_FAILURE_VIEW = "human_feedback_site.feedback.api.problems.csrf_failure"

# WhiteNoise serves static files directly from the installed packages, so `collectstatic` is not needed.
STATIC_URL = f"{_PATH}/static/"
WHITENOISE_USE_FINDERS = True

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],  # views set their own; a view that forgets to rejects all requests
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["human_feedback_site.feedback.api.serializers.StrictJSONParser"],
    "DEFAULT_SCHEMA_CLASS": "human_feedback_site.feedback.api.schema.Schema",
    "EXCEPTION_HANDLER": "human_feedback_site.feedback.api.problems.exception_handler",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "RL-Teacher feedback site",
    "DESCRIPTION": "Trainers register comparisons and read decisions; labelers lease comparisons and answer.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "SCHEMA_PATH_PREFIX": "/api/v1/",
    "SERVERS": [{"url": _PATH}] if _PATH else [],
    "ENUM_NAME_OVERRIDES": {
        "ExperimentState": "human_feedback_site.feedback.models.Experiment.State",
        "ComparisonStatus": "human_feedback_site.feedback.models.Comparison.Status",
        "QuestionKind": "human_feedback_site.feedback.models.comparisons.kind_choices",
        "Answer": "human_feedback_site.feedback.models.comparisons.answer_choices",
        "LabelChoice": "human_feedback_site.feedback.models.labels.choice_choices",
        "LabelStatus": "human_feedback_site.feedback.models.Label.Status",
    },
}

LOGGING = configuration(read_log_format())
