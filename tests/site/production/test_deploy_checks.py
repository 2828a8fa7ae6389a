"""``manage.py check --deploy`` finds nothing behind https, and by http says what http costs."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from tests.site.conftest import settings_of

if TYPE_CHECKING:
    from tests.site.production.conftest import Production


def check(site: Production, address: str) -> str:
    """Check in this process, with the settings of a site that is reached at an address."""
    values = settings_of(**site.environment | {"TEACHER_PUBLIC_URL": address})
    del values["DATABASES"]  # Django would not notice that they change
    out = io.StringIO()
    with override_settings(**values):
        call_command("check", deploy=True, fail_level="WARNING", stdout=out, stderr=out)
    return out.getvalue()


def test_an_https_address_leaves_nothing_to_say(site: Production) -> None:
    assert check(site, "https://localhost:8443") == "System check identified no issues (2 silenced).\n"
    done = site.run("-W", "error", "manage.py", "check", "--deploy", "--fail-level", "WARNING")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "System check identified no issues (2 silenced).\n"


def test_an_http_address_is_warned_of_for_what_only_https_can_protect(site: Production) -> None:
    with pytest.raises(CommandError) as caught:
        check(site, "http://192.168.1.5:8000")
    no_hsts_no_redirect_no_secure_cookies = ["W004", "W008", "W012", "W016"]
    assert re.findall(r"security\.(\w+)", str(caught.value)) == no_hsts_no_redirect_no_secure_cookies
