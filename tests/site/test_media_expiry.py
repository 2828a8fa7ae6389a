"""Clips of finished experiments are deleted in time, and nothing else is, from a folder and from S3."""

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from human_feedback_site.feedback.errors import MediaStoreError
from human_feedback_site.feedback.media import store as media
from human_feedback_site.feedback.media.store import FolderMedia, S3Media, media_store
from human_feedback_site.feedback.models import Comparison, Experiment, Label
from human_feedback_site.feedback.services import chores, moderation
from tests.conftest import S3Server
from tests.site.conftest import Browser, Invited, Put, Stored, Trainer


def finish(trainer: Trainer, days_ago: int = 31) -> None:
    trainer.put(state="finished")
    Experiment.objects.filter(name=trainer.name).update(finished_at=Now() - timedelta(days=days_ago))


NEIGHBORS = ["hopper-2/1/first.mp4", "hopper.mp4", "hoppe/1/first.mp4", "walker/hopper/first.mp4", "x"]


def test_only_clips_of_old_experiments_expire(trainer: Trainer, in_store: Stored, put: Put) -> None:
    for key in (*NEIGHBORS, "hopper/1/first.mp4", "hopper/1/second.mp4", "hopper/2/a/b", "hopper/.part"):
        put(key)
    finish(trainer)
    assert chores.expire_media() == "4 deleted"
    assert in_store() == sorted(NEIGHBORS)
    assert trainer.experiment.media_deleted_at is not None
    assert chores.expire_media() == "0 deleted"


def test_chore_after_the_last_clip_finishes(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty store is not taken for another one then."""
    trainer.register(2)
    finish(trainer)
    with monkeypatch.context() as patch:
        patch.setattr(FolderMedia, "keys", once(FolderMedia.keys))
        with pytest.raises(KeyboardInterrupt):
            chores.expire_media()
    assert media_store().keys("hopper") == []
    assert trainer.experiment.media_deleted_at is None
    assert all(comparison.clips_gone for comparison in Comparison.objects.all())
    assert chores.expire_media() == "0 deleted"
    assert trainer.experiment.media_deleted_at is not None


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function be called once; then whoever calls it is interrupted."""
    calls = iter([function])

    def called(*arguments: Any) -> Any:
        for each in calls:
            return each(*arguments)
        raise KeyboardInterrupt

    return called


@pytest.mark.parametrize(("days", "state"), [(29, "finished"), (31, "running"), (31, "paused")])
def test_wanted_clips_stay(trainer: Trainer, in_store: Stored, put: Put, days: int, state: str) -> None:
    put("hopper/1/first.mp4")
    finish(trainer, days)
    Experiment.objects.update(state=state)
    assert chores.expire_media() == "0 deleted"
    assert in_store() == ["hopper/1/first.mp4"]
    assert trainer.experiment.media_deleted_at is None


def test_clips_may_be_kept_for_ever(trainer: Trainer, in_store: Stored, put: Put, settings: Settings) -> None:
    settings.MEDIA_KEEP_DAYS = 0
    put("hopper/1/first.mp4")
    finish(trainer, 9999)
    assert chores.expire_media() == "kept forever"
    assert in_store() == ["hopper/1/first.mp4"]


def test_there_may_be_more_clips_than_one_request_takes(
    trainer: Trainer, in_store: Stored, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "MAX_KEYS", 3)
    for number in range(8):
        put(f"hopper/{number}/first.mp4")
    finish(trainer)
    assert chores.expire_media() == "8 deleted"
    assert in_store() == []


def test_unfinished_expiry_continues_next_time(
    trainer: Trainer, in_store: Stored, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("hopper/1/first.mp4")
    finish(trainer)
    monkeypatch.setattr(chores, "WORK_SECONDS", -1.0)
    assert chores.expire_media() == "0 deleted, clips of 1 experiment(s) left for the next run"
    assert trainer.experiment.media_deleted_at is None
    monkeypatch.undo()


def test_an_experiment_that_goes_on_in_the_meantime_keeps_its_clips(
    trainer: Trainer, in_store: Stored, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("hopper/1/first.mp4")
    finish(trainer)
    store = type(media_store())
    listed = store.keys

    def keys(self: Any, experiment: str) -> list[str]:
        trainer.put(state="running")
        return listed(self, experiment)

    monkeypatch.setattr(store, "keys", keys)
    assert chores.expire_media() == "0 deleted"
    assert in_store() == ["hopper/1/first.mp4"]
    assert trainer.experiment.media_deleted_at is None


def test_resumed_experiment_expires_its_new_clips(trainer: Trainer, in_store: Stored, put: Put) -> None:
    finish(trainer)
    chores.expire_media()
    trainer.put(state="running")
    put("hopper/new/first.mp4")
    trainer.put(state="finished")
    assert chores.expire_media() == "0 deleted"
    Experiment.objects.update(
        media_deleted_at=Now() - timedelta(days=60), finished_at=Now() - timedelta(days=31)
    )
    assert chores.expire_media() == "1 deleted"


def test_finish_by_the_previous_version_counts_from_now(trainer: Trainer, in_store: Stored) -> None:
    Experiment.objects.update(state="finished")
    assert chores.expire_media() == "0 deleted"
    assert trainer.experiment.finished_at is not None


@pytest.mark.parametrize("name", ["", ".", "..", "hopper/1", "*"])
def test_only_names_of_experiments_are_prefixes(in_store: Stored, name: str) -> None:
    with pytest.raises(ValueError, match="a valid experiment name"):
        media_store().keys(name)


# A store that is away


def test_a_store_that_is_away_is_tried_again(
    trainer: Trainer, settings: Settings, media_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finish(trainer)
    assert not media_folder.exists()
    assert chores.expire_media() == "0 deleted, clips of 1 experiment(s) left for the next run"
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage() == (
        "Couldn't delete the clips of experiment hopper; the next run will try again: "
        f"the folder {media_folder} cannot be used: No such file or directory"
    )
    assert trainer.experiment.media_deleted_at is None
    media_folder.mkdir()
    assert chores.expire_media() == "0 deleted"
    assert trainer.experiment.media_deleted_at is not None


def test_a_bucket_that_is_away_is_tried_again(
    trainer: Trainer,
    s3_server: S3Server,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    s3_server.use(monkeypatch, settings)
    settings.TEACHER_STORAGE = "s3://not-made-yet"
    finish(trainer)
    chores.expire_media()
    assert (
        "Couldn't delete the clips of experiment hopper; the next run will try again: s3://not-made-yet at "
        f"{s3_server.endpoint_url} cannot be used: 404 NoSuchBucket, create the bucket with"
    ) in caplog.text
    assert trainer.experiment.media_deleted_at is None


def test_clips_in_another_store_are_not_taken_for_deleted(
    trainer: Trainer, media_folder: Path, settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer.register(2)
    finish(trainer)
    settings.TEACHER_STORAGE = str(tmp_path)
    assert chores.expire_media() == "0 deleted, clips of 1 experiment(s) left for the next run"
    assert (
        "Couldn't delete the clips of experiment hopper; the next run will try again: Expected 4 clips of "
        f"hopper in the folder {tmp_path}, but found none: set TEACHER_STORAGE to the store that the site "
        "uses; if the clips are gone for good, set MEDIA_KEEP_DAYS=0."
    ) in caplog.text
    assert trainer.experiment.media_deleted_at is None
    assert set(Comparison.objects.values_list("status", flat=True)) == {"open"}
    settings.TEACHER_STORAGE = str(media_folder)
    assert chores.expire_media() == "4 deleted"
    assert chores.expire_media() == "0 deleted"


def test_the_experiments_after_one_that_fails_have_their_turn(
    trainer: Trainer, stranger: Trainer, media_folder: Path, tmp_path: Path
) -> None:
    media_folder.mkdir()
    (media_folder / "hopper").symlink_to(tmp_path)
    (media_folder / "walker").mkdir()
    (media_folder / "walker/clip").touch()
    finish(trainer, 50)
    finish(stranger, 40)
    assert chores.expire_media() == "1 deleted, clips of 1 experiment(s) left for the next run"


@pytest.fixture
def store(s3_server: S3Server, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> S3Media:
    s3_server.use(monkeypatch, settings)
    return S3Media("s3://clips/x")


def test_objects_that_the_store_keeps_are_reported(store: S3Media, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"Errors": [{"Key": "x/hopper/1", "Code": "AccessDenied", "Message": "Access Denied"}]}
    monkeypatch.setattr(store.client, "delete_objects", lambda **_: refused)
    with pytest.raises(MediaStoreError, match="s3://clips refused to delete 1 of 2 objects: Access Denied"):
        store.delete(["hopper/1", "hopper/2"])


def test_a_store_that_lists_too_much_is_not_believed(store: S3Media, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.client, "list_objects_v2", lambda **_: {"Contents": [{"Key": "x/hopper-2/1"}]})
    with pytest.raises(MediaStoreError, match="listed objects whose keys don't start with x/hopper/"):
        store.keys("hopper")


# Folders


def test_links_in_a_folder_are_removed_and_not_followed(media_folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (media_folder / "hopper/1").mkdir(parents=True)
    (media_folder / "hopper/folder").symlink_to(elsewhere)
    (media_folder / "hopper/1/first.mp4").symlink_to(elsewhere / "precious")
    store = FolderMedia(media_folder)
    assert sorted(store.keys("hopper")) == ["hopper/1/first.mp4", "hopper/folder"]
    store.delete(store.keys("hopper"))
    assert (elsewhere / "precious").exists()
    assert list(media_folder.iterdir()) == []


def test_a_folder_that_two_processes_empty_at_once_is_empty(media_folder: Path) -> None:
    store = FolderMedia(media_folder)
    for number in range(3):
        path = media_folder / f"hopper/{number}/first.mp4"
        path.parent.mkdir(parents=True)
        path.touch()
    keys = store.keys("hopper")
    store.delete(keys)
    store.delete(keys)
    assert list(media_folder.iterdir()) == []


def test_unreadable_folder_is_not_empty(media_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (media_folder / "hopper").mkdir(parents=True)

    def scandir(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(MediaStoreError, match="cannot be used: Permission denied"):
        FolderMedia(media_folder).keys("hopper")


# What people see afterwards


@pytest.fixture
def expired(trainer: Trainer, browser: Browser) -> Comparison:
    """A comparison whose clips are gone."""
    trainer.register()
    finish(trainer)
    assert chores.expire_media() == "2 deleted"
    return Comparison.objects.get()


@pytest.mark.parametrize(("language", "text"), [("en", "clip unavailable"), ("zh-CN", "视频不可用")])
def test_experiment_shows_expiry(trainer: Trainer, expired: Comparison, language: str, text: str) -> None:
    client = Client(headers={"Accept-Language": language})
    client.force_login(trainer.user)
    html = client.get("/experiments/hopper/").content.decode()
    assert html.count(text) == 2
    assert "<video" not in html
    trainer.put(state="running")
    trainer.register()
    html = client.get("/experiments/hopper/").content.decode()
    assert html.count(text) == html.count("<video") == 2


def test_the_admin_says_that_clips_have_expired(expired: Comparison, root: Client) -> None:
    html = root.get(reverse("admin:feedback_comparison_change", args=[expired.pk])).content.decode()
    assert html.count("clips unavailable") == 1
    assert "<video" not in html


def test_resumed_after_expiry(trainer: Trainer, browser: Browser, invite: Invited) -> None:
    trainer.overlap(2)
    half, none = trainer.register(2)
    leases = {lease["comparison"]: lease for lease in browser.lease(2)}
    browser.answer(leases[half])
    finish(trainer)
    chores.expire_media()
    trainer.put(state="running")
    assert invite("mia").lease(5) == []
    assert browser.ask(held=[leases[none]["uuid"]])["lost"] == [leases[none]["uuid"]]
    assert {str(each.uuid): each.status for each in Comparison.objects.all()} == {
        half: "answered",
        none: "cancelled",
    }
    assert trainer.decisions()["open"] == 0


def test_a_late_answer_is_kept_after_the_clips_are_gone(
    trainer: Trainer, browser: Browser, lease: Any
) -> None:
    finish(trainer)
    chores.expire_media()
    assert browser.answer(lease)["status"] == "surplus"


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("by", ["undo", "block"])
def test_a_label_that_is_withdrawn_opens_no_pair_whose_clips_are_gone(
    trainer: Trainer, browser: Browser, invite: Invited, *, by: str, left: int
) -> None:
    trainer.overlap(1 + left)
    trainer.register()
    [lease] = browser.lease()
    label = browser.label(lease)
    browser.post("/labels", label)
    if left:
        invite("mia").answer(invite("mia").lease()[0])
    finish(trainer)
    chores.expire_media()
    trainer.put(state="running")
    if by == "undo":
        browser.undo(label)
    else:
        first = Label.objects.order_by("pk")[0].labeler
        assert moderation.block(first.participations.all(), trainer.user) == 1
    comparison = Comparison.objects.get()
    assert comparison.n_labels == left
    assert comparison.status == ("answered" if left else "cancelled")
    assert invite("zoe").lease(5) == []
    assert trainer.decisions()["open"] == 0
