"""``manage.py check --deploy`` finds nothing behind https, and by http says what http costs."""

import io
import re

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from human_feedback_site.feedback.system_checks import sign_in_obstacle
from tests.site.conftest import settings_of
from tests.site.production.conftest import Production


def check(site: Production, address: str, **variables: str) -> str:
    """Check in this process, with the settings of a site that is reached at an address."""
    values = settings_of(**site.environment | {"TEACHER_PUBLIC_URL": address} | variables)
    del values["DATABASES"]  # Django would not notice that they change
    out = io.StringIO()
    with override_settings(**values):
        call_command("check", deploy=True, fail_level="WARNING", stdout=out, stderr=out)
    return out.getvalue()


def test_https_address_gives_no_warnings(site: Production) -> None:
    assert check(site, "https://localhost:8443") == "System check identified no issues (2 silenced).\n"
    done = site.run("-W", "error", "manage.py", "check", "--deploy", "--fail-level", "WARNING")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "System check identified no issues (2 silenced).\n"


def test_hsts_warning_is_silenced_below_a_path(site: Production) -> None:
    assert check(site, "https://localhost/teacher") == "System check identified no issues (1 silenced).\n"


def test_http_address_gives_warnings(site: Production) -> None:
    with pytest.raises(CommandError) as caught:
        check(site, "http://192.168.1.5:8000")
    no_hsts_no_redirect_no_secure_cookies = ["W004", "W008", "W012", "W016"]
    assert re.findall(r"security\.(\w+)", str(caught.value)) == no_hsts_no_redirect_no_secure_cookies


def obstacle(host: str) -> str:
    return (
        f"ALLOWED_HOSTS allows {host}, but no one can sign in or use an invitation over http. "
        "Set TEACHER_PUBLIC_URL to the URL that people open in their browsers, "
        "such as http://lab.local:8000 or https://lab.local."
    )


@pytest.mark.parametrize(
    ("hosts", "shown"), [("lab.local", "lab.local"), ("127.0.0.1,.lab.local,x", ".lab.local"), ("*", "*")]
)
def test_hosts_without_an_address_are_warned_about(site: Production, hosts: str, shown: str) -> None:
    with pytest.raises(CommandError) as caught:
        check(site, "", ALLOWED_HOSTS=hosts)
    [line] = [line for line in str(caught.value).splitlines() if "feedback.W001" in line]
    assert line == f"?: (feedback.W001) {obstacle(shown)}"


@pytest.mark.parametrize(
    ("address", "variables"),
    [
        ("", {}),  # for this machine alone
        ("http://lab.local:8000", {"ALLOWED_HOSTS": "lab.local"}),
        ("https://lab.local", {"ALLOWED_HOSTS": "lab.local"}),
        ("", {"ALLOWED_HOSTS": "lab.local", "CSRF_TRUSTED_ORIGINS": "https://lab.local"}),
    ],
)
def test_no_warning_where_sign_in_works(site: Production, address: str, variables: dict[str, str]) -> None:
    values = settings_of(**site.environment | {"TEACHER_PUBLIC_URL": address} | variables)
    del values["DATABASES"]
    with override_settings(**values):
        assert sign_in_obstacle() is None


def test_production_warns_once_at_start(site: Production) -> None:
    site.start(TEACHER_PUBLIC_URL="", ALLOWED_HOSTS="lab.local", WEB_CONCURRENCY="2")
    assert site.url
    [line] = [line for line in site.log() if line["level"] == "WARNING"]
    assert line["message"] == obstacle("lab.local")
