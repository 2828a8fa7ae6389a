"""Settings come from the environment, fail loudly, and are safe where more than this machine is served."""

import contextlib
import json
import os
import socket
import sqlite3
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.conf import global_settings
from django.core.exceptions import ImproperlyConfigured

from human_feedback_site import environment, private
from teacher import platforms
from tests.site.conftest import settings_of

KEY = "only-for-tests-" + "x" * 40
S3 = {"TEACHER_STORAGE": "s3://clips", "AWS_EC2_METADATA_DISABLED": "true"}
KINDS = ("SESSION", "CSRF", "LANGUAGE")
S3_KEYS = {"AWS_ACCESS_KEY_ID": "access", "AWS_SECRET_ACCESS_KEY": "hidden"}


def settings(folder: Path, **variables: str) -> dict[str, Any]:
    return settings_of(TEACHER_STATE_DIR=str(folder), **variables)


def test_with_nothing_set_only_this_machine_is_served(tmp_path: Path) -> None:
    found = settings(tmp_path)
    assert found["ALLOWED_HOSTS"] == ["127.0.0.1", "localhost", "[::1]"]
    assert (found["DEBUG"], found["SESSION_COOKIE_SECURE"], found["PUBLIC_URL"]) == (False, False, None)
    assert found["TEACHER_STORAGE"] == str(tmp_path / "media")
    assert found["SECRET_KEY"] == (tmp_path / "secret_key").read_text().strip()
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600
    assert settings(tmp_path)["SECRET_KEY"] == found["SECRET_KEY"]


def test_a_public_https_address_sets_hosts_origins_and_secure_cookies(tmp_path: Path) -> None:
    found = settings(tmp_path, TEACHER_PUBLIC_URL="https://teach.example.org/")
    assert found["PUBLIC_URL"] == "https://teach.example.org"
    assert "teach.example.org" in str(found["ALLOWED_HOSTS"])
    assert found["CSRF_TRUSTED_ORIGINS"] == ["https://teach.example.org"]
    assert found["SESSION_COOKIE_SECURE"] is found["CSRF_COOKIE_SECURE"] is True


def test_public_path_sets_cookies_and_origins(tmp_path: Path) -> None:
    found = settings(tmp_path, TEACHER_PUBLIC_URL="https://Teach.example.org:8443/group/teacher/")
    assert found["PUBLIC_URL"] == "https://teach.example.org:8443/group/teacher"
    assert found["CSRF_TRUSTED_ORIGINS"] == ["https://teach.example.org:8443"]
    assert found["ALLOWED_HOSTS"][-1] == "teach.example.org"
    assert (found["FORCE_SCRIPT_NAME"], found["STATIC_URL"]) == ("/group/teacher", "/group/teacher/static/")
    cookies = [(found[f"{kind}_COOKIE_PATH"], found[f"{kind}_COOKIE_NAME"]) for kind in KINDS]
    assert {path for path, _ in cookies} == {"/group/teacher"}
    assert all(name.endswith("_group_teacher") for _, name in cookies)


def test_without_a_path_cookies_have_the_names_and_paths_they_always_had(tmp_path: Path) -> None:
    database = {"DATABASE_URL": "postgresql://u:p@h/d", "SECRET_KEY": KEY}
    for address in ("https://teach.example.org", "https://teach.example.org/", ""):
        found = vars(global_settings) | settings(tmp_path, TEACHER_PUBLIC_URL=address, **database)
        assert (found["FORCE_SCRIPT_NAME"], found["STATIC_URL"]) == (None, "/static/")
        names = [found[f"{kind}_COOKIE_NAME"] for kind in KINDS]
        assert names == ["sessionid", "csrftoken", "django_language"]
        assert {found[f"{kind}_COOKIE_PATH"] for kind in KINDS} == {"/"}


def test_further_hosts_and_origins_come_beside_the_public_address_and_this_machine(tmp_path: Path) -> None:
    found = settings(
        tmp_path,
        TEACHER_PUBLIC_URL="https://[2001:db8::1]:8443",
        ALLOWED_HOSTS="lab.example.org",
        CSRF_TRUSTED_ORIGINS="https://lab.example.org",
    )
    hosts = ["127.0.0.1", "localhost", "[::1]", "[2001:db8::1]", "lab.example.org"]
    assert found["ALLOWED_HOSTS"] == hosts
    assert found["CSRF_TRUSTED_ORIGINS"] == ["https://[2001:db8::1]:8443", "https://lab.example.org"]


def test_hosts_and_networks_that_webhooks_may_reach_are_told_apart(tmp_path: Path) -> None:
    found = settings(tmp_path, WEBHOOK_ALLOWED_HOSTS="Hooks.lab, 10.0.0.0/8,127.0.0.1,::1,fade.cafe,")
    expected = ["hooks.lab", "10.0.0.0/8", "127.0.0.1/32", "::1/128", "fade.cafe"]
    assert found["WEBHOOK_ALLOWED_HOSTS"] == expected
    assert settings(tmp_path)["WEBHOOK_ALLOWED_HOSTS"] == []


def test_cookies_are_insecure_elsewhere_only_where_the_public_address_says_http(tmp_path: Path) -> None:
    assert settings(tmp_path, ALLOWED_HOSTS="lab.example.org")["SESSION_COOKIE_SECURE"] is True
    plain = settings(tmp_path, TEACHER_PUBLIC_URL="http://192.168.1.5:8000")
    assert plain["SESSION_COOKIE_SECURE"] is False
    assert plain["CSRF_TRUSTED_ORIGINS"] == ["http://192.168.1.5:8000"]


def test_two_embedded_sites_on_one_machine_do_not_share_a_session_cookie(tmp_path: Path) -> None:
    names = {settings(tmp_path / folder)["SESSION_COOKIE_NAME"] for folder in ("one", "two")}
    assert len(names) == 2


def test_s3_is_public_at_its_endpoint_unless_another_is_given(tmp_path: Path) -> None:
    s3 = {"TEACHER_STORAGE": "s3://clips/here", "S3_ENDPOINT_URL": "http://s3:9000", **S3_KEYS}
    assert settings(tmp_path, **s3)["S3_PUBLIC_ENDPOINT_URL"] == "http://s3:9000"
    found = settings(tmp_path, **s3, S3_PUBLIC_ENDPOINT_URL="https://clips.example.org")
    assert found["S3_PUBLIC_ENDPOINT_URL"] == "https://clips.example.org"
    assert found["TEACHER_STORAGE"] == "s3://clips/here"


def announce(folder: Path, **said: object) -> None:
    """Leave what an embedded site said of itself, which keeps what it was started with."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site/lock").write_text(json.dumps({"url": None, **said}).ljust(400))


def test_the_clips_of_an_embedded_site_are_where_it_was_started_with(tmp_path: Path) -> None:
    announce(tmp_path, storage="s3://clips/here", s3_endpoint_url="http://s3:9000")
    found = settings(tmp_path)  # without keys: most commands need none
    assert (found["TEACHER_STORAGE"], found["S3_ENDPOINT_URL"]) == ("s3://clips/here", "http://s3:9000")
    assert settings(tmp_path, S3_ENDPOINT_URL="http://other:9")["S3_ENDPOINT_URL"] == "http://other:9"
    assert settings(tmp_path, TEACHER_STORAGE="/mine")["TEACHER_STORAGE"] == "/mine"
    database = {"DATABASE_URL": "postgresql://u:p@h/d", "SECRET_KEY": KEY}
    assert settings(tmp_path, **database)["TEACHER_STORAGE"] == str(tmp_path / "media")
    announce(tmp_path, storage="/elsewhere/clips")
    assert settings(tmp_path)["TEACHER_STORAGE"] == "/elsewhere/clips"


def test_a_bad_store_that_an_embedded_site_left_is_not_blamed_on_a_variable(tmp_path: Path) -> None:
    announce(tmp_path, storage="s3://clips?here")
    with pytest.raises(ImproperlyConfigured) as caught:
        settings(tmp_path)
    assert str(caught.value).startswith(f"The clip store in {tmp_path}/site/lock must look like s3://")
    with pytest.raises(ImproperlyConfigured, match=r"^TEACHER_STORAGE must look like s3://"):
        settings(tmp_path, TEACHER_STORAGE="s3://clips?there")


@pytest.mark.parametrize("said", ['{"storage": ""}', '{"storage": "clips"}', "{", "[]", "", "null", "\ud800"])
def test_unset_values_of_an_embedded_site_are_ignored(tmp_path: Path, said: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/lock").write_text(said, errors="surrogatepass")
    assert settings(tmp_path)["TEACHER_STORAGE"] == str(tmp_path / "media")


def test_an_https_address_is_served_by_http_behind_a_proxy(tmp_path: Path) -> None:
    names = ("SECURE_PROXY_SSL_HEADER", "SECURE_SSL_REDIRECT", "SECURE_SSL_HOST", "SECURE_HSTS_SECONDS")

    def found(**variables: str) -> list[object]:
        values = vars(global_settings) | settings(tmp_path, **variables)
        return [values[name] for name in names]

    behind = ("HTTP_X_FORWARDED_PROTO", "https")
    https = found(TEACHER_PUBLIC_URL="https://teach.example.org:8443")
    assert https == [behind, True, "teach.example.org:8443", 2_592_000]
    for variables in ({}, {"TEACHER_PUBLIC_URL": "http://lab:8000"}, {"ALLOWED_HOSTS": "lab"}):
        assert found(**variables) == [None, False, None, 0]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "plain"),
        ({"DATABASE_URL": "postgresql://u:p@h/d"}, "json"),
        ({"DATABASE_URL": "postgresql://u:p@h/d", "LOG_FORMAT": "plain"}, "plain"),
        ({"LOG_FORMAT": "json"}, "json"),
    ],
    ids=str,
)
def test_logs_are_json_for_a_site_on_a_database_of_its_own(variables: dict[str, str], expected: str) -> None:
    with patch.dict(os.environ, variables, clear=True):
        assert environment.read_log_format() == expected


def test_metrics_need_a_token_and_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ({}, {"TEACHER_METRICS_TOKEN": " "}):
        assert settings(tmp_path, **value)["METRICS_TOKEN"] is None
    assert settings(tmp_path, TEACHER_METRICS_TOKEN=f" {KEY}\n")["METRICS_TOKEN"] == KEY
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'rl-teacher\[metrics\]'") as caught:
        settings(tmp_path, TEACHER_METRICS_TOKEN=KEY)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(("query", "seconds"), [("", 5), ("?connect_timeout=2", 2)])
def test_nobody_waits_long_for_a_postgresql_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str, seconds: int
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"postgresql://u:p@h/d{query}")
    found = environment.read_database(tmp_path)
    assert found["OPTIONS"] == {**environment.POSTGRESQL_OPTIONS, "connect_timeout": seconds}
    assert (found["CONN_MAX_AGE"], found["CONN_HEALTH_CHECKS"]) == (600, True)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"DEBUG": "maybe"}, "DEBUG must be 1 or 0"),
        ({"DEBUG": "1", "ALLOWED_HOSTS": "example.org"}, "DEBUG shows"),
        ({"DEBUG": "1", "TEACHER_PUBLIC_URL": "https://example.org"}, "DEBUG shows"),
        ({"LOG_FORMAT": "JSON"}, "LOG_FORMAT must be json or plain, not 'JSON'"),
        ({"TEACHER_METRICS_TOKEN": "hidden"}, "TEACHER_METRICS_TOKEN must be at least 32 random ASCII"),
        ({"TEACHER_METRICS_TOKEN": "hidden " * 9}, "without spaces; make one with: python"),
        ({"TEACHER_METRICS_TOKEN": "hidden-é" * 9}, "at least 32 random ASCII characters"),
        ({"SECRET_KEY": "hidden" * 8}, "at least 50"),
        ({"SECRET_KEY": " " + "hidden" * 8 + " "}, "at least 50"),
        ({"SECRET_KEY": "hide" * 20}, "at least 50 random"),
        ({"DATABASE_URL": "postgresql://u:p@h/d"}, "SECRET_KEY must be set"),
        ({"DATABASE_URL": "mysql://u:hidden@h/d", "SECRET_KEY": KEY}, "PostgreSQL or SQLite"),
        ({"DATABASE_URL": "u:hidden@h", "SECRET_KEY": KEY}, "DATABASE_URL must look like"),
        (
            {"DATABASE_URL": "postgresql://u:hidden@h:port/d", "SECRET_KEY": KEY},
            "DATABASE_URL must look like",
        ),
        ({"DATABASE_URL": "postgresql://", "SECRET_KEY": KEY}, "DATABASE_URL must look like"),
        ({"DATABASE_URL": "postgresql://u:hidden@h", "SECRET_KEY": KEY}, "DATABASE_URL must look like"),
        ({"DATABASE_URL": "postgresql:///teacher", "SECRET_KEY": KEY}, "DATABASE_URL must look like"),
        ({"DATABASE_URL": "sqlite://", "SECRET_KEY": KEY}, "DATABASE_URL must look like"),
        ({"DATABASE_URL": "sqlite://:memory:", "SECRET_KEY": KEY}, "DATABASE_URL must look like"),
        ({"DATABASE_URL": "sqlite:///:memory:", "SECRET_KEY": KEY}, "DATABASE_URL must look like"),
        ({"DATABASE_URL": "sqlite://site/site.sqlite3", "SECRET_KEY": KEY}, "DATABASE_URL must look like"),
        ({"ALLOWED_HOSTS": "https://example.org"}, "ALLOWED_HOSTS must be comma-separated hosts"),
        ({"ALLOWED_HOSTS": "example.org/"}, "ALLOWED_HOSTS must be comma-separated hosts"),
        ({"ALLOWED_HOSTS": "localhost,example.org:8000"}, "ALLOWED_HOSTS must be comma-separated hosts"),
        ({"TEACHER_STORAGE": "http://bucket"}, "TEACHER_STORAGE must be"),
        ({"TEACHER_STORAGE": "s3://"}, "TEACHER_STORAGE must look like"),
        ({"TEACHER_STORAGE": "s3:///prefix"}, "TEACHER_STORAGE must look like"),
        ({"TEACHER_STORAGE": "s3://clips?region=hidden"}, "TEACHER_STORAGE must look like"),
        ({"TEACHER_STORAGE": "s3://user:hidden@clips/here"}, "TEACHER_STORAGE must look like"),
        ({"TEACHER_STORAGE": "s3://clips:9000/here"}, "TEACHER_STORAGE must look like"),
        (S3, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set"),
        (
            {**S3, "S3_ENDPOINT_URL": "http://s3", "AWS_SECRET_ACCESS_KEY": "hidden"},
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set",
        ),
        ({**S3, **S3_KEYS, "S3_ENDPOINT_URL": "http://media:abc"}, "S3_ENDPOINT_URL must look like"),
        (
            {**S3, **S3_KEYS, "AWS_DEFAULT_REGION": "eu central 1"},
            "AWS_DEFAULT_REGION must be a region such as us-east-1, not 'eu central 1'",
        ),
        (
            {**S3, **S3_KEYS, "AWS_PROFILE": "nope"},
            "AWS_PROFILE is invalid: The config profile (nope) could not be",
        ),
        ({"TEACHER_PUBLIC_URL": "example.org"}, "TEACHER_PUBLIC_URL must look like"),
        (
            {"TEACHER_PUBLIC_URL": "https://example.org/a//b"},
            "must be a URL whose path has only letters, digits, ",
        ),
        (
            {"TEACHER_PUBLIC_URL": "https://example.org/../b"},
            "must be a URL whose path has only letters, digits, ",
        ),
        ({"TEACHER_PUBLIC_URL": "https://example.org/%61"}, "must be a URL whose path has only letters, "),
        ({"TEACHER_PUBLIC_URL": "https://example.org/api"}, "the site's own URLs begin with /api;"),
        (
            {"TEACHER_PUBLIC_URL": "https://example.org/media/b"},
            "The path in TEACHER_PUBLIC_URL can't be /media/b, ",
        ),
        ({"S3_PUBLIC_ENDPOINT_URL": "https://example.org/clips"}, "without a path"),
        (
            {**S3, **S3_KEYS, "S3_ENDPOINT_URL": "http://s3:9000/clips/"},
            "must not contain the bucket, which is set in TEACHER_STORAGE; use http://s3:9000,",
        ),
        ({"S3_ENDPOINT_URL": "s3:9000"}, "S3_ENDPOINT_URL must look like"),
        (
            {
                "TEACHER_PUBLIC_URL": "https://example.org",
                "TEACHER_STORAGE": "s3://clips",
                "S3_ENDPOINT_URL": "http://s3:9000",
            },
            "S3_PUBLIC_ENDPOINT_URL must begin with https://",
        ),
        ({"MEDIA_KEEP_DAYS": "a month"}, "MEDIA_KEEP_DAYS must be a whole number"),
        ({"MEDIA_KEEP_DAYS": "-1"}, "MEDIA_KEEP_DAYS must be a whole number"),
        ({"WEBHOOK_ALLOWED_HOSTS": "*"}, "WEBHOOK_ALLOWED_HOSTS must be comma-separated hosts and networks"),
        ({"WEBHOOK_ALLOWED_HOSTS": "lab,10.0.0.1/8"}, "such as 10.0.0.0/8, not '10.0.0.1/8'"),
        ({"WEBHOOK_ALLOWED_HOSTS": "http://lab"}, "such as 10.0.0.0/8, not 'http://lab'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_invalid_settings_are_one_line(tmp_path: Path, variables: dict[str, str], message: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        settings(tmp_path, **variables)
    line = str(caught.value)
    assert message in line
    assert "hidden" not in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://host", "http://", "http://:8000", "http://host:", "http://host:port", "http://host:99999"),
        *("http://host:0", "http://[::1", "http://[zz]", "http://ho st", "http://host /path", "http://ho;st"),
        *("http://hidden@host", "http://user:hidden@host", "http://host#hidden", "http://host/?hidden=1"),
    ],
)
def test_invalid_addresses_are_refused_and_hidden(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", url)
    with pytest.raises(ImproperlyConfigured, match="S3_ENDPOINT_URL must look like https:") as caught:
        environment.read_url("S3_ENDPOINT_URL")
    assert "hidden" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("", None),
        (" http://127.0.0.1:9000/ ", "http://127.0.0.1:9000"),
        ("HTTPS://Teach.Example.org", "https://teach.example.org"),  # as browsers send it
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://s3_server/Some/Path/", "http://s3_server/Some/Path"),
    ],
)
def test_valid_addresses_are_accepted(monkeypatch: pytest.MonkeyPatch, url: str, found: str | None) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", url)
    assert environment.read_url("S3_ENDPOINT_URL") == found


def test_hosts_may_be_names_domains_addresses_and_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOWED_HOSTS", "web, .example.org,192.168.1.5,[2001:db8::1],*,")
    found = environment.read_hosts("ALLOWED_HOSTS")
    assert found == ["web", ".example.org", "192.168.1.5", "[2001:db8::1]", "*"]


def test_secret_key_is_stripped(tmp_path: Path) -> None:
    assert settings(tmp_path, SECRET_KEY=f" {KEY}\n")["SECRET_KEY"] == KEY


def test_keys_of_s3_may_be_in_a_file_and_then_nobody_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = access\naws_secret_access_key = secret\n")
    variables = {"TEACHER_STORAGE": "s3://clips", "AWS_SHARED_CREDENTIALS_FILE": str(file)}
    assert settings(tmp_path, **variables)["TEACHER_STORAGE"] == "s3://clips"


def test_other_stores_ask_no_metadata_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with socket.create_server(("127.0.0.1", 0)) as metadata:
        metadata.settimeout(0.1)
        host, port = metadata.getsockname()
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{host}:{port}")
        with pytest.raises(ImproperlyConfigured, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
            environment.require_s3_credentials("http://s3:9000")
        with pytest.raises(TimeoutError):
            metadata.accept()


def test_an_unreadable_secret_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECRET_KEY", raising=False)
    (tmp_path / "secret_key").write_text("\n")
    with pytest.raises(ImproperlyConfigured, match="contains no valid secret key"):
        private.read_secret_key(tmp_path, embedded=True)


def test_concurrent_starts_share_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECRET_KEY", raising=False)
    with ThreadPoolExecutor(8) as pool:
        keys = pool.map(lambda _: private.read_secret_key(tmp_path / "new", embedded=True), range(8))
    assert len(set(keys)) == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["secret_key"]


def test_sqlite_waits_for_its_turn_and_survives_a_power_cut(db: None) -> None:
    from django.db import connection

    if connection.vendor != "sqlite":
        pytest.skip("this is the run on PostgreSQL")
    with connection.cursor() as cursor:
        found = [
            cursor.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        ]
    assert found == ["wal", 2, 20_000, 1]
    assert connection.settings_dict["OPTIONS"]["transaction_mode"] == "IMMEDIATE"


def test_sqlite_on_a_network_file_system_has_no_write_ahead_log(
    two_clients: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    for folder, journal in [(tmp_path, "wal"), (two_clients[0], "delete")]:
        options = environment.read_database(folder)["OPTIONS"]
        with contextlib.closing(sqlite3.connect(folder / "site.sqlite3")) as database:
            database.executescript(options["init_command"])
            assert database.execute("PRAGMA journal_mode").fetchone() == (journal,)
            database.execute("CREATE TABLE t (x)")
    with monkeypatch.context() as patch:  # shared memory that fails tells it, too
        patch.setattr(sys, "platform", "other")
        assert [environment.shares_memory(folder) for folder in (tmp_path, two_clients[0])] == [True, False]


def test_trainer_and_site_take_the_same_file_systems_for_local_ones() -> None:
    assert environment._LOCAL == platforms._LOCAL
