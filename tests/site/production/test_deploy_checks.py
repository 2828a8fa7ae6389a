"""``manage.py check --deploy`` finds nothing behind https, and by http says what http costs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.site.production.conftest import Production

CHECK = ("-W", "error", "manage.py", "check", "--deploy", "--fail-level", "WARNING")


@pytest.mark.parametrize("address", ["https://teach.example.org", "https://localhost:8443"])
def test_an_https_address_leaves_nothing_to_say(site: Production, address: str) -> None:
    done = site.run(*CHECK, TEACHER_PUBLIC_URL=address)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "System check identified no issues (2 silenced).\n"


def test_an_http_address_is_warned_of_for_what_only_https_can_protect(site: Production) -> None:
    done = site.run(*CHECK, TEACHER_PUBLIC_URL="http://192.168.1.5:8000")
    assert done.returncode == 1
    no_hsts_no_redirect_no_secure_cookies = ["W004", "W008", "W012", "W016"]
    assert re.findall(r"security\.(\w+)", done.stderr) == no_hsts_no_redirect_no_secure_cookies
