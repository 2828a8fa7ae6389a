"""``manage.py setup_storage`` makes the store ready, proves that it is, and says in a line why it is not."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import requests
from botocore.exceptions import ClientError
from django.core.management import CommandError, call_command
from pytest_django import Settings

from human_feedback_site.feedback.media.store import S3Media, media_store
from tests.conftest import S3Server
from tests.waiting import free_port


def set_up(wait: float = 0.0) -> list[str]:
    out = io.StringIO()
    call_command("setup_storage", wait=wait, stdout=out)
    return out.getvalue().splitlines()


def refusal(wait: float = 0.0) -> str:
    with pytest.raises(CommandError) as caught:
        set_up(wait)
    [line] = str(caught.value).splitlines()
    return line


@pytest.fixture
def bucket(s3_server: S3Server, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a bucket that does not exist yet, set as the store."""
    s3_server.use(monkeypatch, settings)
    settings.S3_PUBLIC_ENDPOINT_URL = "https://clips.example.org"  # that nobody here can reach
    settings.PUBLIC_URL = "https://teach.example.org"
    name = f"setup-{uuid4().hex[:8]}"
    settings.TEACHER_STORAGE = f"s3://{name}/some/prefix"
    return name


def test_bucket_is_created_once_and_checked_each_time(bucket: str, s3_server: S3Server) -> None:
    cors = "pages of https://teach.example.org may read clips; the store allows it"
    rest = [
        "objects: can be written, read and deleted",
        "privacy: unsigned requests are refused",
        "links: lead to https://clips.example.org",
        f"CORS: {cors}, and has no CORS setting per bucket (BucketAlreadyExists)",
    ]
    assert set_up() == [f"bucket: {bucket} was created", *rest]
    assert set_up() == [f"bucket: {bucket} exists", *rest]
    assert [path for path in (s3_server.root / bucket).rglob("*") if path.is_file()] == []


def test_without_a_public_address_cors_is_unchanged(bucket: str, settings: Settings) -> None:
    settings.PUBLIC_URL = None
    assert set_up()[-1] == "CORS: unchanged, because TEACHER_PUBLIC_URL is not set"


def test_cors_origin_has_no_path(bucket: str, settings: Settings) -> None:
    settings.PUBLIC_URL = "https://teach.example.org/teacher"
    assert set_up()[-1].startswith("CORS: pages of https://teach.example.org may read clips;")


# Stores that cannot be used


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("AWS_SECRET_ACCESS_KEY", "403 SignatureDoesNotMatch, AWS_SECRET_ACCESS_KEY is wrong"),
        ("AWS_ACCESS_KEY_ID", "403 InvalidAccessKeyId, the store doesn't know this AWS_ACCESS_KEY_ID"),
    ],
)
def test_wrong_keys_are_refused(
    bucket: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str, cause: str
) -> None:
    monkeypatch.setenv(name, "another-key")
    assert refusal(wait=60.0) == f"s3://{bucket} at {settings.S3_ENDPOINT_URL} cannot be used: {cause}"


@pytest.mark.parametrize("made", [True, False])
def test_bucket_in_url_is_refused(bucket: str, s3_server: S3Server, settings: Settings, made: bool) -> None:
    if made:
        (s3_server.root / bucket).mkdir()
    settings.S3_ENDPOINT_URL = f"{s3_server.endpoint_url}/{bucket}"
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("setup_storage", wait=0.0, stdout=out)
    assert f"S3_ENDPOINT_URL must not have a path (/{bucket}); the bucket belongs in TEACHER_STORAGE" in str(
        caught.value
    )
    assert out.getvalue() == ""  # in particular not that a bucket is made
    assert [path for path in (s3_server.root / bucket).rglob("*") if made] == []


def test_missing_keys_are_refused(
    bucket: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert refusal() == (
        f"s3://{bucket} at {settings.S3_ENDPOINT_URL} cannot be used: "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set"
    )


def test_unreachable_store_ends_setup_with_one_line(bucket: str, settings: Settings) -> None:
    settings.S3_ENDPOINT_URL = "http://127.0.0.1:1"
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("setup_storage", wait=0.0, stdout=out)
    [line] = str(caught.value).splitlines()
    assert line.startswith(f"s3://{bucket} at http://127.0.0.1:1 cannot be used: Could not connect")
    assert line.endswith("; check that the store is running and S3_ENDPOINT_URL is its URL")
    assert out.getvalue() == ""


def test_public_bucket(bucket: str, settings: Settings, tmp_path: Path) -> None:
    port = free_port()
    settings.S3_ENDPOINT_URL = f"http://127.0.0.1:{port}"
    with serving(tmp_path, port):
        line = refusal(wait=120.0)
    assert line == (
        f"s3://{bucket} must be private, but anyone can read it; "
        "remove the bucket policy or access list that allows this."
    )


def test_slow_store_start(bucket: str, settings: Settings, tmp_path: Path) -> None:
    port = free_port()
    settings.S3_ENDPOINT_URL = f"http://127.0.0.1:{port}"
    with serving(tmp_path, port, "--auth-key", keys(), after=2.0):
        assert set_up(wait=120.0)[0] == f"bucket: {bucket} was created"


def test_public_address_with_a_path_is_refused(bucket: str, settings: Settings) -> None:
    settings.S3_PUBLIC_ENDPOINT_URL = "https://example.org/clips"
    assert "S3_PUBLIC_ENDPOINT_URL must not have a path" in refusal()


def test_links_the_store_rejects_are_refused(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signed = S3Media.url
    monkeypatch.setattr(
        S3Media, "url", lambda self, key: signed(self, key).replace("Signature=", "Signature=0")
    )
    assert (
        f"s3://{bucket} did not return the test object for a presigned URL at https://clips.example.org"
        in refusal()
    )
    monkeypatch.setattr(S3Media, "url", lambda self, key: signed(self, key).partition("?")[0])
    assert "presigned URLs must be signed and expire" in refusal()


def test_probe_is_removed_after_a_failure(bucket: str, settings: Settings, s3_server: S3Server) -> None:
    settings.S3_PUBLIC_ENDPOINT_URL = "https://example.org/clips"
    refusal()
    assert [path for path in (s3_server.root / bucket).rglob("*") if path.is_file()] == []


# CORS of the bucket: the test server has none, so this is what botocore would send and get.


@pytest.fixture
def rules(bucket: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The rules that a bucket has, and gets; empty, the store says that there are none."""
    rules: list[dict[str, Any]] = []
    store = media_store()
    assert isinstance(store, S3Media)

    def get(**_: Any) -> dict[str, Any]:
        if not rules:
            raise ClientError({"Error": {"Code": "NoSuchCORSConfiguration"}}, "GetBucketCors")
        return {"CORSRules": list(rules)}

    def put(CORSConfiguration: dict[str, Any], **_: Any) -> None:  # noqa: N803
        rules[:] = CORSConfiguration["CORSRules"]

    monkeypatch.setattr(store.client, "get_bucket_cors", get)
    monkeypatch.setattr(store.client, "put_bucket_cors", put)
    return rules


def test_only_pages_of_the_site_may_read_clips(rules: list[dict[str, Any]]) -> None:
    assert set_up()[-1] == "CORS: pages of https://teach.example.org may read clips"
    [rule] = rules
    assert rule["AllowedOrigins"] == ["https://teach.example.org"]
    assert rule["AllowedMethods"] == ["GET", "HEAD"]
    assert rule["AllowedHeaders"] == ["Range"]


def test_other_cors_rules_are_kept(rules: list[dict[str, Any]], settings: Settings) -> None:
    others = {"ID": "backup", "AllowedOrigins": ["https://other.example"], "AllowedMethods": ["PUT"]}
    rules.append(others)
    set_up()
    settings.PUBLIC_URL = "https://new.example.org"
    set_up()
    assert rules[0] == others
    assert [rule["AllowedOrigins"] for rule in rules[1:]] == [["https://new.example.org"]]


def test_unreadable_cors_rules_are_kept(rules: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    store = media_store()
    assert isinstance(store, S3Media)

    def denied(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "GetBucketCors")

    monkeypatch.setattr(store.client, "get_bucket_cors", denied)
    assert "has no CORS setting per bucket (AccessDenied)" in set_up()[-1]
    assert rules == []


def test_missing_cors_support_gives_a_notice(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    get = requests.get

    def without_cors(*args: Any, **options: Any) -> requests.Response:
        answer = get(*args, **options)
        answer.headers.pop("Access-Control-Allow-Origin", None)
        return answer

    monkeypatch.setattr(requests, "get", without_cors)
    assert set_up()[-1].startswith("CORS: NOTICE: pages of https://teach.example.org may not read clips")


# Folders


def test_folder_is_created(media_folder: Path) -> None:
    assert set_up() == [f"folder: {media_folder} can be written"]
    assert list(media_folder.iterdir()) == []


def test_uncreatable_folder_is_refused(media_folder: Path) -> None:
    media_folder.write_text("a file")
    assert refusal() == f"the folder {media_folder} cannot be used: File exists"


# Servers of a test's own


def keys() -> str:
    return f"{os.environ['AWS_ACCESS_KEY_ID']},{os.environ['AWS_SECRET_ACCESS_KEY']}"


@contextmanager
def serving(root: Path, port: int, *options: str, after: float = 0.0) -> Iterator[None]:
    """Serve a folder as buckets, after some seconds."""
    rclone = str(Path(sys.executable).parent / "rclone")
    command = [
        *("sh", "-c", 'sleep "$0"; exec "$@"', str(after), rclone, "serve", "s3", str(root)),
        *("--addr", f"127.0.0.1:{port}", "--config", os.devnull, "--quiet", *options),
    ]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.kill()
        process.wait()
