"""Test that both stores keep the same promises, and that a slow line is no silent one."""

import json
import resource
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
from botocore.config import Config

from teacher import connections
from teacher import storage as storage_module
from teacher.errors import ConfigError, SiteUnreachableError, StorageError
from teacher.labeling import client as client_module
from teacher.labeling.client import FeedbackClient, Point
from teacher.storage import FolderStorage, S3Storage, Storage, open_storage
from tests.conftest import S3Server

KEY = "hopper/1b4e28ba-2fa1-11d2-883f-0016d3cca427/first.mp4"


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    s3_server.use(monkeypatch)
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


def test_s3_keeps_the_clip_below_the_prefix(s3_url: str, s3_server: S3Server, clip: Path) -> None:
    open_storage(s3_url).put(KEY, clip)
    prefix = s3_url.removeprefix(f"s3://{s3_server.bucket}/")
    assert (s3_server.root / s3_server.bucket / prefix / KEY).read_bytes() == clip.read_bytes()


def test_s3_serves_the_clip_as_a_video(s3_url: str, s3_server: S3Server, clip: Path) -> None:
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


def assert_reported(url: str, clip: Path, words: str) -> None:
    """Assert that neither writing nor reading works, and that one line says why."""
    storage = open_storage(url)
    for use in (partial(storage.put, KEY, clip), partial(storage.size, KEY)):
        with pytest.raises(StorageError, match=words) as caught:
            use()
        assert "\n" not in str(caught.value)


def test_a_wrong_secret_is_reported(s3_url: str, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-key")
    assert_reported(s3_url, clip, r"SignatureDoesNotMatch.* AWS_SECRET_ACCESS_KEY is wrong")


def test_a_wrong_clock_is_reported(s3_url: str, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = datetime.now(UTC).replace(tzinfo=None) + timedelta(minutes=20)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: ahead)
    assert_reported(s3_url, clip, r"this machine's clock is wrong.*set it with NTP")


@pytest.mark.parametrize("end", ["", "/"])
def test_a_bucket_in_the_servers_address_is_refused(
    s3_url: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, end: str
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
    assert_reported(s3_url, clip, "credentials are missing; set AWS_ACCESS_KEY_ID")


def test_unreachable_server_is_one_line(s3_url: str, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", "http://127.0.0.1:9")
    assert_reported(s3_url, clip, r"127\.0\.0\.1:9")


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


SECONDS = 0.4  # instead of all time-outs
RATE = 300_000  # bytes per second


class SlowServer:
    """Reads requests slowly, or not at all, and accepts each with the same JSON."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.taken = 0
        self.stalls = False
        self._answer = json.dumps(answer).encode() if answer else b""
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            received = b""
            while b"\r\n\r\n" not in received:
                received += connection.recv(100)
            head, _, body = received.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            if b"100-continue" in head:
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            taken = len(body)
            while taken < length and not self.stalls:
                taken += len(connection.recv(4096))
                time.sleep(4096 / RATE)
            if self.stalls:
                time.sleep(20 * SECONDS)
                return
            self.taken += taken
            head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(self._answer)
            connection.sendall(head + self._answer)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SlowServer]]:
    for module in (client_module, storage_module):
        for name in ("CONNECT_SECONDS", "READ_SECONDS"):
            monkeypatch.setattr(module, name, SECONDS)
    started: list[SlowServer] = []

    def serve(**answer: Any) -> SlowServer:
        started.append(SlowServer(answer))
        return started[-1]

    yield serve
    for server in started:
        server.close()


def test_large_report_arrives_on_a_slow_line(serve: Callable[..., SlowServer]) -> None:
    server = serve(stored=1)
    client = FeedbackClient(server.url, "token")
    points = [Point(step, {f"metric/{name}": 0.123456789 for name in range(40)}) for step in range(300)]
    assert client.post_points("cart-pole", points, None) == 1
    assert server.taken > 1.5 * SECONDS * RATE
    server.stalls = True
    with pytest.raises(SiteUnreachableError, match=r"timed out|timeout"):
        client.post_points("cart-pole", points, None)
    client.close()


def test_a_clip_larger_than_a_slow_line_takes_in_a_time_out_is_stored(
    serve: Callable[..., SlowServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = serve()
    monkeypatch.setenv("S3_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "abc")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "defghij")
    monkeypatch.setattr("botocore.retries.standard.time.sleep", lambda _: None)
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(bytes(400_000))
    store = open_storage("s3://clips")
    store.put("cart-pole/1/first.mp4", clip)
    assert server.taken == 400_000
    server.stalls = True
    with pytest.raises(StorageError):
        store.put("cart-pole/1/second.mp4", clip)


def test_the_kernel_takes_little_at_once() -> None:
    with socket.socket() as sock:
        sock.setsockopt(*connections.SEND_BUFFER)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2**16
