"""Files of an embedded site's state folder, damaged: made anew, or refused in one line."""

import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from pytest_django import Settings

from human_feedback_site.embedded import EmbeddedSite, _last_port
from human_feedback_site.private import read_secret_key

Damaged = Callable[[bytes], Iterator[bytes]]


def test_damaged_secret(tmp_path: Path, damaged: Damaged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECRET_KEY", raising=False)
    refused, intact = list[str](), read_secret_key(tmp_path, embedded=True)
    for content in damaged(intact.encode()):
        (tmp_path / "secret_key").write_bytes(content)
        try:
            assert read_secret_key(tmp_path, embedded=True).isprintable()
        except ImproperlyConfigured as error:
            refused.append(str(error))
    assert len(refused) > 20
    advice = "delete the file, and the site will create a new one"
    assert set(refused) == {f"{tmp_path}/secret_key contains no valid secret key; {advice}."}


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"", b"tt_" + b"x" * 43])
def test_a_damaged_token_is_replaced(db: None, settings: Settings, tmp_path: Path, content: bytes) -> None:
    settings.STATE_DIR = tmp_path
    (tmp_path / "token").write_bytes(content)
    call_command("setup_embedded", stdout=io.StringIO())
    assert (tmp_path / "token").read_text().startswith("tt_")
    assert (tmp_path / "token").read_bytes() != content


def test_a_damaged_announcement_of_the_site_before_has_no_port(tmp_path: Path, damaged: Damaged) -> None:
    lock = tmp_path / "lock"
    for content in damaged(json.dumps({"port": 8000, "url": "http://127.0.0.1:8000"}).encode()):
        lock.write_bytes(content)
        port = _last_port(lock)
        assert port is None or 0 < port < 65536
    lock.write_text('{"port": 8000}')
    assert _last_port(lock) == 8000


def test_site_announcement_is_never_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check who joins a site or looks for one reads it at any time."""
    lock = tmp_path / "lock"
    lock.write_text('{"port": 8000, "url": "http://[2001:db8::7]:8000", "storage": "s3://clips/of/many"}')
    found: list[str] = []
    write = os.pwrite

    def look_and_write(descriptor: int, text: bytes, offset: int) -> int:
        found.append(lock.read_text())
        return write(descriptor, text, offset)

    with lock.open("r+") as held:
        site = EmbeddedSite(tmp_path, held.fileno(), 0, {"port": 8000, "url": "http://127.0.0.1:8000"})
        monkeypatch.setattr(os, "pwrite", look_and_write)
        site._announce()
        site._announce(url=None)
        monkeypatch.undo()
    said = [json.loads(text)["url"] for text in (*found, lock.read_text())]
    assert said == ["http://[2001:db8::7]:8000", "http://127.0.0.1:8000", None]
