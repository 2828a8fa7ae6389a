"""Test what is killed or away loses, doubles and inverts nothing, and how the client reports it."""

import contextlib
import json
import os
import socket
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from teacher.data.segments import Segment
from teacher.envs.trajectory import Trajectory
from teacher.errors import SiteRefusedError, SiteUnreachableError, StorageError
from teacher.files import read_token
from teacher.labeling import publisher
from teacher.labeling.client import ExperimentSettings, FeedbackClient
from teacher.labeling.embedded_site import SiteHandle, ensure_site
from teacher.storage import FolderStorage
from tests.servers import Handler, serving
from tests.teacher.labeling.conftest import announced, kill_site
from tests.waiting import wait_until

Pairs = list[tuple[Segment, Segment]]
EPISODE = Trajectory.from_arrays(np.zeros((2, 1)), np.zeros((1, 1)), np.zeros(1))
TARGETS = {"first": 1.0, "second": 0.0}


def test_a_site_killed_on_the_way_loses_nothing(
    start_asking: Any, pairs: Pairs, mortal_state: Path, tmp_path: Path
) -> None:
    site = ensure_site(mortal_state)
    try:
        with start_asking(at=site) as asking:
            asking.collector.submit(pairs[:24], "training", 100)
            bots = asking.bots(2, tmp_path / "answers")
            wait_until(lambda: asking.ledger.usable() >= 4)
            kill_site(mortal_state)
            wait_until(lambda: asking.collector.status.away is not None)
            preferences = {str(item.uuid): item for item in asking.receive(24)}
            wait_until(lambda: asking.collector.status.away is None)
            asking.collector.finish()
            for bot in bots:
                bot.join(240)
        assert [bot.error for bot in bots] == [None, None]
        assert announced(mortal_state)["instance"] != site.instance_id
        assert urlsplit(announced(mortal_state)["url"]).port == urlsplit(site.url).port
    finally:
        site.release()
    answers = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
    assert Counter(answer["comparison"] for answer in answers) == Counter(list(preferences))
    for answer in answers:
        preference = preferences[answer["comparison"]]
        assert preference.value == float(preference.first.true_return > preference.second.true_return)
        better = max(preference.first.true_return, preference.second.true_return)
        chosen = answer["true_returns"][("left", "right").index(answer["choice"])]
        assert chosen == pytest.approx(better)
    # Both orders were on the screens, so a mistake in swapping could not have gone unnoticed.
    swapped = {(answer["choice"] == "left") != preferences[answer["comparison"]].value for answer in answers}
    assert swapped == {True, False}


def test_a_site_that_was_away_hears_again_what_training_waits_for(
    start_asking: Any, mortal_state: Path, experiment: ExperimentSettings
) -> None:
    def waiting_for(statement: str = "SELECT 1") -> int | None:
        """Return what the site's database says of the experiment after ``statement``."""
        with contextlib.closing(sqlite3.connect(mortal_state / "site.sqlite3", timeout=30)) as database:
            with database:
                database.execute(statement)
            query = "SELECT waiting_for FROM feedback_experiment WHERE name = ?"
            value: int | None = database.execute(query, (experiment.name,)).fetchone()[0]
            return value

    site = ensure_site(mortal_state)
    try:
        with start_asking(at=site) as asking:
            asking.collector.report({}, 100, 7)
            wait_until(lambda: waiting_for() == 7)
            kill_site(mortal_state)
            # As it does with a trainer that has been away for long.
            waiting_for("UPDATE feedback_experiment SET waiting_for = NULL")
            wait_until(lambda: waiting_for() == 7)
    finally:
        site.release()


class Unsteady(FolderStorage):
    """A folder that cannot be written at first."""

    away = True

    def put(self, key: str, path: Path) -> None:
        if self.away:
            raise StorageError("the store is away")
        super().put(key, path)


def test_absent_store_is_retried(start_asking: Any, pairs: Pairs, site: Any) -> None:
    storage = Unsteady(Path(site.storage))
    with start_asking(storage=storage) as asking:
        asking.collector.submit(pairs[:2], "training", 100)
        wait_until(lambda: "the store is away" in (asking.collector.status.away or ""))
        storage.away = False
        wait_until(lambda: asking.ledger.unfinished() == [])
        wait_until(lambda: asking.collector.status.away is None)


def test_labelers_can_watch_the_newest_film_once_the_store_is_back(
    start_asking: Any, open_labeler: Any, site: Any, tmp_path: Path
) -> None:
    films = [tmp_path / "old.mp4", tmp_path / "new.mp4"]
    storage = Unsteady(Path(site.storage))
    with start_asking(storage=storage) as asking:
        labeler = open_labeler(asking)
        assert labeler.film() is None
        for step, film in enumerate(films, 100):
            film.write_text(film.name)
            asking.collector.show(film, step, EPISODE)
        wait_until(lambda: asking.collector.status.away is not None)
        storage.away = False
        wait_until(lambda: labeler.film() == (101, b"new.mp4"))
        films[0].unlink()
        asking.collector.show(films[0], 200, EPISODE)  # tidied up before it was uploaded: no reason to stop
        asking.collector.show(films[1], 300, EPISODE)
        wait_until(lambda: labeler.film() == (300, b"new.mp4"))


class Short(FolderStorage):
    """A folder that keeps only half of what it is given, at first."""

    shortens = True

    def put(self, key: str, path: Path) -> None:
        super().put(key, path)
        if self.shortens:
            os.truncate(self._root / key, path.stat().st_size // 2)


def test_whole_clips_are_registered(start_asking: Any, pairs: Pairs, site: Any) -> None:
    storage = Short(Path(site.storage))
    with start_asking(storage=storage) as asking:
        asking.collector.submit(pairs[:1], "training", 100)
        wait_until(lambda: "the clip store reports a size of" in (asking.collector.status.away or ""))
        assert len(asking.ledger.unfinished()) == 1
        storage.shortens = False
        wait_until(lambda: asking.ledger.unfinished() == [])


def test_a_store_that_the_site_does_not_read_stops_the_run(
    start_asking: Any, pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_MAX_REFUSALS_IN_A_ROW", 2)
    with start_asking(storage=FolderStorage(tmp_path / "elsewhere")) as asking:
        asking.collector.submit(pairs[:1], "training", 100)
        with pytest.raises(SiteRefusedError, match="TEACHER_STORAGE") as refusal:
            wait_until(lambda: asking.collector.receive() != [])
    assert refusal.value.status == 422


@pytest.mark.usefixtures("s3_variables")
def test_clips_come_from_s3(s3_server: Any, s3_site: SiteHandle, start_asking: Any, pairs: Any) -> None:
    with start_asking(at=s3_site) as asking:
        asking.collector.submit(pairs[:2], "training", 100)
        bots = asking.bots(1)
        preferences = asking.receive(2)
        asking.collector.finish()
        bots[0].join(240)
    for preference in preferences:
        assert preference.value == float(preference.first.true_return > preference.second.true_return)
    stored = list((s3_server.root / s3_server.bucket / "people" / asking.settings.name).rglob("*.mp4"))
    assert len(stored) == 4
    assert not (s3_site.state_dir / "media").exists()
    assert bots[0].error is None


Answer = tuple[int, dict[str, str], bytes]
RIGHT = "tt_right"
OpenClient = Callable[..., FeedbackClient]


@pytest.fixture
def open_client() -> Iterator[OpenClient]:
    """A client of a server that always gives one answer and says in a header what token it got."""
    with contextlib.ExitStack() as opened:

        def open_one(answer: Answer, token: str = RIGHT) -> FeedbackClient:
            status, headers, body = answer

            class Answering(Handler):
                def do_GET(self) -> None:
                    sent = body.replace(b"TOKEN", self.headers["Authorization"].encode())
                    self.reply(status, sent, headers.items())

            client = FeedbackClient(opened.enter_context(serving(Answering)), token)
            opened.callback(client.close)
            return client

        yield open_one


def problem(status: int, detail: str) -> Answer:
    body = {"type": "about:blank", "title": "Trouble", "status": status, "detail": detail}
    return status, {"Content-Type": "application/problem+json"}, json.dumps(body).encode()


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_transient_errors_are_retried(open_client: OpenClient, status: int) -> None:
    with pytest.raises(SiteUnreachableError, match="not now"):
        open_client(problem(status, "not now")).decisions("x", 0)


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "TEACHER_TOKEN"), (403, "researcher"), (404, "so it is"), (409, "so it is")]
)
def test_permanent_errors_say_what_to_do(open_client: OpenClient, status: int, hint: str) -> None:
    with pytest.raises(SiteRefusedError, match=hint) as refusal:
        open_client(problem(status, "so it is")).decisions("x", 0)
    assert refusal.value.status == status
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b"[]", b"{}", b'{"state": "dancing"}'])
def test_an_address_that_is_no_labeling_site_is_named(open_client: OpenClient, body: bytes) -> None:
    with pytest.raises(SiteRefusedError, match="check the URL"):
        open_client((200, {}, body)).decisions("x", 0)


def test_a_redirect_is_reported_and_not_followed(open_client: OpenClient) -> None:
    with pytest.raises(SiteRefusedError, match=r"https://labels\.example/"):
        open_client((301, {"Location": "https://labels.example/"}, b"")).decisions("x", 0)


def test_nobody_listening_says_so() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, so that nobody else takes it, and not listening
        client = FeedbackClient(f"http://127.0.0.1:{nobody.getsockname()[1]}", "tt_right")
        with pytest.raises(SiteUnreachableError, match="refused"):
            client.decisions("x", 0)
        client.close()


def test_a_password_in_netrc_does_not_take_the_tokens_place(
    open_client: OpenClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login someone password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    client = open_client(problem(404, "TOKEN"))
    with pytest.raises(SiteRefusedError, match="Bearer tt_right"):
        client.decisions("x", 0)


@pytest.mark.parametrize("content", [b"tt_right\xff", b"tt\n_right", "tt_right…".encode(), b"tt\0right"])
def test_damaged_token_is_sent(open_client: OpenClient, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    client = open_client(problem(401, "TOKEN"), token=read_token(tmp_path / "token"))
    with pytest.raises(SiteRefusedError):
        client.decisions("x", 0)


def test_local_sites_bypass_proxies(open_client: OpenClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(SiteRefusedError, match="here"):
        open_client(problem(404, "here")).decisions("x", 0)
