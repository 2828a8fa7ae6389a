"""Test that both stores keep the same promises and report every error in one line."""

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import boto3
import pytest
import requests
from botocore.config import Config

from teacher.errors import ConfigError, StorageError
from teacher.storage import FolderStorage, S3Storage, Storage, open_storage

KEY = "hopper/1b4e28ba-2fa1-11d2-883f-0016d3cca427/first.mp4"


class Server(Protocol):
    endpoint_url: str
    bucket: str
    root: Path
    environment: Callable[[], dict[str, str]]


@pytest.fixture
def s3_url(s3_server: Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server.bucket}/{request.node.name.replace('[', '-').replace(']', '')}"


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return open_storage(str(tmp_path / "clips"))
    url: str = request.getfixturevalue("s3_url")
    return open_storage(url)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"a clip" * 1000)
    return path


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Writing past ``size`` fails, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_there_is_nothing_at_first(storage: Storage) -> None:
    assert storage.size(KEY) is None


def test_a_clip_is_there_after_put(storage: Storage, clip: Path) -> None:
    storage.put(KEY, clip)
    assert storage.size(KEY) == 6000
    assert storage.size(KEY.replace("first", "second")) is None


def test_putting_again_replaces(storage: Storage, clip: Path) -> None:
    storage.put(KEY, clip)
    clip.write_bytes(b"another")
    storage.put(KEY, clip)
    assert storage.size(KEY) == 7


def test_a_key_cannot_lead_elsewhere(storage: Storage, clip: Path) -> None:
    for key in ["", "/etc/passwd", "../up", "a/../../up", "a//b", ".hidden", "a/", "a\\b", "a b"]:
        with pytest.raises(StorageError, match="invalid clip key"):
            storage.put(key, clip)
        with pytest.raises(StorageError, match="invalid clip key"):
            storage.size(key)


def test_a_missing_file_is_reported(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"cannot store {KEY}.*No such file"):
        storage.put(KEY, tmp_path / "missing.mp4")
    assert storage.size(KEY) is None


def test_a_folder_holds_the_clip_and_nothing_else(tmp_path: Path, clip: Path) -> None:
    FolderStorage(tmp_path / "store").put(KEY, clip)
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert files == [tmp_path / "store" / KEY]
    assert files[0].read_bytes() == clip.read_bytes()
    assert files[0].stat().st_mode & 0o777 == 0o644


def test_concurrent_puts(tmp_path: Path, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is given out twice is done twice."""
    store, other = tmp_path / "store", tmp_path / "other.mp4"
    other.write_bytes(b"the same, made elsewhere")
    copy = shutil.copyfileobj

    def put_the_other_first(*files: Any) -> None:
        monkeypatch.undo()
        FolderStorage(store).put(KEY, other)
        assert (store / KEY).read_bytes() == other.read_bytes()
        copy(*files)

    monkeypatch.setattr("teacher.storage.shutil.copyfileobj", put_the_other_first)
    FolderStorage(store).put(KEY, clip)
    assert (store / KEY).read_bytes() == clip.read_bytes()
    assert list((store / KEY).parent.iterdir()) == [store / KEY]


def test_a_full_disk_leaves_the_old_clip(tmp_path: Path, clip: Path) -> None:
    storage = FolderStorage(tmp_path / "store")
    storage.put(KEY, clip)
    clip.write_bytes(bytes(200_000))
    with file_size_limit(100_000), pytest.raises(StorageError, match="File too large") as caught:
        storage.put(KEY, clip)
    assert "\n" not in str(caught.value)
    assert storage.size(KEY) == 6000
    assert len(list((tmp_path / "store" / KEY).parent.iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path, clip: Path) -> None:
    (tmp_path / "store").write_text("a file where the folder should be")
    storage = FolderStorage(tmp_path / "store")
    with pytest.raises(StorageError, match=r"cannot store .* in the folder .*store"):
        storage.put(KEY, clip)
    with pytest.raises(StorageError, match=r"cannot read .* in the folder .*store"):
        storage.size(KEY)


def test_s3_keeps_the_clip_below_the_prefix(s3_url: str, s3_server: Server, clip: Path) -> None:
    open_storage(s3_url).put(KEY, clip)
    prefix = s3_url.removeprefix(f"s3://{s3_server.bucket}/")
    assert (s3_server.root / s3_server.bucket / prefix / KEY).read_bytes() == clip.read_bytes()


def test_s3_serves_the_clip_as_a_video(s3_url: str, s3_server: Server, clip: Path) -> None:
    open_storage(s3_url).put(KEY, clip)
    prefix = s3_url.removeprefix(f"s3://{s3_server.bucket}/")
    client = boto3.Session().client(
        "s3", endpoint_url=s3_server.endpoint_url, config=Config(signature_version="s3v4")
    )
    link = client.generate_presigned_url(
        "get_object", Params={"Bucket": s3_server.bucket, "Key": f"{prefix}/{KEY}"}
    )
    response = requests.get(link, timeout=60)
    assert response.headers["Content-Type"] == "video/mp4"
    assert response.content == clip.read_bytes()


def test_a_missing_bucket_is_reported(s3_url: str, clip: Path) -> None:
    storage = open_storage("s3://nowhere/prefix")
    with pytest.raises(StorageError, match=r"cannot store .* in s3://nowhere at http.*bucket does not exist"):
        storage.put(KEY, clip)
    with pytest.raises(StorageError, match=r"cannot read .* in s3://nowhere at http.*bucket does not exist"):
        storage.size(KEY)


def test_a_wrong_secret_is_reported(s3_url: str, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-key")
    storage = open_storage(s3_url)
    with pytest.raises(
        StorageError, match=r"SignatureDoesNotMatch.* AWS_SECRET_ACCESS_KEY is wrong"
    ) as caught:
        storage.put(KEY, clip)
    assert "\n" not in str(caught.value)
    with pytest.raises(StorageError, match=r"SignatureDoesNotMatch.* AWS_SECRET_ACCESS_KEY is wrong"):
        storage.size(KEY)


def test_a_wrong_clock_is_reported(s3_url: str, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = datetime.now(UTC).replace(tzinfo=None) + timedelta(minutes=20)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: ahead)
    storage = open_storage(s3_url)
    told = r"this machine's clock is wrong.*set it with NTP"
    with pytest.raises(StorageError, match=told):
        storage.put(KEY, clip)
    with pytest.raises(StorageError, match=told):
        storage.size(KEY)


@pytest.mark.parametrize("end", ["", "/"])
def test_a_bucket_in_the_servers_address_is_refused(
    s3_url: str, s3_server: Server, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", f"{s3_server.endpoint_url}/{s3_server.bucket}{end}")
    words = f"must not contain the bucket.* set S3_ENDPOINT_URL to {s3_server.endpoint_url}$"
    with pytest.raises(ConfigError, match=words):
        open_storage(s3_url)


def test_missing_credentials_are_reported(
    s3_url: str, clip: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StorageError, match="credentials are missing; set AWS_ACCESS_KEY_ID"):
        open_storage(s3_url).put(KEY, clip)


def test_unreachable_server_is_one_line(s3_url: str, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"127\.0.0.1:9") as caught:
        open_storage(s3_url).put(KEY, clip)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "http://example.org/x", "s3://", "s3:///prefix"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"clip store .* a folder or s3://bucket/prefix"):
        open_storage(url)


def test_addresses_choose_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_storage(str(tmp_path)), FolderStorage)
    assert isinstance(open_storage("s3://bucket"), S3Storage)
    assert list(tmp_path.iterdir()) == []


def test_s3_is_tried_three_times_with_pauses_of_random_length() -> None:
    config: Any = S3Storage("clips", endpoint_url="http://127.0.0.1:9")._client.meta.config
    assert config.retries["mode"] == "standard"  # exponential, with full jitter
    assert config.retries["total_max_attempts"] == 3
