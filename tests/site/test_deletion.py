"""An experiment is deleted with all that belongs to it, and nothing else: by the command and in the admin."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from human_feedback_site.feedback import models
from human_feedback_site.feedback.errors import MediaStoreError
from human_feedback_site.feedback.media import store as media
from human_feedback_site.feedback.media.store import FolderMedia, media_store
from human_feedback_site.feedback.services import chores, deletion
from tests.site.conftest import Browser, Put, Stored, Trainer, fill

# Models whose rows are of no experiment.
OF_NOBODY = {"Labeler", "ApiToken", "Attempts", "Identity", "WebhookEndpoint"}


def rows() -> dict[str, int]:
    """Return how many rows there are of each kind that an experiment has."""
    found = apps.get_app_config("feedback").get_models()
    return {each.__name__: each._base_manager.count() for each in found if each.__name__ not in OF_NOBODY}


@pytest.fixture
def neighbor(stranger: Trainer) -> dict[str, int]:
    """An experiment of somebody else, which stays: how many rows of each kind it has."""
    from tests.site.conftest import Browser

    fill(stranger, Browser(stranger.invite("you"), stranger.name))
    return rows()


def delete(name: str = "hopper", **options: Any) -> str:
    out = io.StringIO()
    call_command("delete_experiment", name, **{"ask": False, "stdout": out, **options})
    return out.getvalue()


@pytest.mark.both_databases
def test_all_of_it_goes_and_nothing_else(
    neighbor: dict[str, int], trainer: Trainer, browser: Browser, media_folder: Any
) -> None:
    assert all(neighbor.values()), neighbor
    fill(trainer, browser)
    trainer.silence()
    clips = set(media_folder.rglob("*.mp4"))
    said = delete()
    assert rows() == {**neighbor, "Experiment": 1}
    assert "3 comparisons, 2 labels, 7 clips in storage, 1 invitation," in said
    assert said.endswith("hopper was deleted.\n")
    left = set(media_folder.rglob("*.mp4"))
    assert left == {clip for clip in clips if clip.is_relative_to(media_folder / "walker")}
    assert not (media_folder / "hopper").exists()
    assert models.Labeler.objects.filter(name="you", invited_by=trainer.user).exists()
    assert trainer.put()["last_seq"] == 0  # the name is free


@pytest.mark.parametrize("most", [1, 3])
def test_stored_clips_are_deleted(
    trainer: Trainer, in_store: Stored, put: Put, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(media, "MAX_KEYS", most)
    monkeypatch.setattr(deletion, "MOST_CLIPS", 2)
    for key in ("hopper/1/first.mp4", "hopper/1/second.mp4", "hopper/stray", "hopper-2/1/first.mp4"):
        put(key)
    trainer.silence()
    assert "more than 2 clips in storage" in delete()
    assert in_store() == ["hopper-2/1/first.mp4"]


def test_an_empty_store_has_to_be_another_one(trainer: Trainer, in_store: Stored, put: Put) -> None:
    keys = {f"{side}_key": f"hopper/1/{side}.mp4" for side in ("first", "second")}
    described = {"uuid": uuid4(), "phase": "training", "step": 1, "priority": 1, "wanted": 1}
    models.Comparison.objects.create(experiment=trainer.experiment, **described, **keys)
    put("hopper-2/1/first.mp4")
    trainer.silence()
    with pytest.raises(CommandError, match=r"Expected 2 clips of hopper in .+, but found none: set TEACHER"):
        delete()
    assert in_store() == ["hopper-2/1/first.mp4"]
    put("hopper/1/first.mp4")
    assert "1 clip in storage, 1 clip missing from this storage (not deleted)." in delete()
    assert in_store() == ["hopper-2/1/first.mp4"]


def test_an_experiment_without_anything_goes_too(trainer: Trainer) -> None:
    trainer.silence()
    assert "hopper will be permanently deleted, along with: no data." in delete()
    assert not models.Experiment.everything.exists()


def test_examples_of_other_experiments_that_show_its_clips_are_named(trainer: Trainer) -> None:
    trainer.register()
    other = type(trainer)(trainer.user, "other").begin()
    pair = models.Comparison.objects.get()
    models.Example.objects.create(experiment=other.experiment, comparison=pair, better="first")
    trainer.silence()
    assert "1 example in another experiment that shows its clips" in delete()
    assert not models.Example.objects.exists()


@pytest.mark.parametrize(
    ("state", "seconds", "refused"),
    [
        *(("running", 170, True), ("running", 190, False), ("paused", 170, True)),
        *(("finished", 50, True), ("finished", 70, False)),
    ],
)
def test_it_is_refused_while_a_trainer_is_at_work(
    trainer: Trainer, root: Client, state: str, seconds: int, refused: bool
) -> None:
    models.Experiment.objects.update(state=state)
    trainer.silence(seconds)
    if not refused:
        delete()
        return
    with pytest.raises(CommandError, match=r"The trainer of hopper was last active at .*Nothing was deleted"):
        delete()
    for answer in (root.get(page := address(trainer)), root.post(page, {"post": "yes"})):
        assert answer.status_code == 302
    assert "was last active at" in root.get(reverse("admin:index")).content.decode()
    assert trainer.experiment.state == state


def address(trainer: Trainer) -> str:
    experiment = models.Experiment.everything.get(name=trainer.name)
    return reverse("admin:feedback_experiment_delete", args=[experiment.pk])


def test_the_command_asks_for_the_name(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer.silence()
    with pytest.raises(CommandError, match="pass --no-input"):
        delete(ask=True)  # nobody is there
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "walker")
    with pytest.raises(CommandError, match="you typed 'walker' instead of hopper"):
        delete(ask=True)
    assert models.Experiment.objects.exists()
    monkeypatch.setattr("builtins.input", lambda _: "hopper")
    delete(ask=True)
    assert not models.Experiment.everything.exists()


def test_there_has_to_be_one(db: None) -> None:
    with pytest.raises(
        CommandError, match=r"There is no experiment 'hopper' in .*set TEACHER_STATE_DIR to that folder"
    ):
        delete()


class Killed(BaseException):
    """The process ends here."""


def kill_at(monkeypatch: pytest.MonkeyPatch, point: int) -> None:
    """Let the process end when it does the next of its steps for the ``point``-th time."""
    steps = iter(range(point + 1))

    def step(function: Any) -> Any:
        def counted(*args: Any) -> Any:
            if next(steps, None) is None:
                raise Killed
            return function(*args)

        return counted

    monkeypatch.setattr(deletion, "_delete_some", step(deletion._delete_some))
    monkeypatch.setattr(deletion, "_note_clips_done", step(deletion._note_clips_done))
    monkeypatch.setattr(FolderMedia, "delete", step(FolderMedia.delete))


@pytest.mark.parametrize("point", [0, 3, 4, 6, 9, 12, 15])
@pytest.mark.parametrize("again", ["command", "chore"])
def test_nothing_is_half_deleted_where_it_was_interrupted(
    trainer: Trainer, browser: Browser, monkeypatch: pytest.MonkeyPatch, point: int, again: str
) -> None:
    fill(trainer, browser)
    trainer.silence()
    label = models.Label.objects.filter(undo=None).get()
    lease = models.Lease.objects.filter(labels=None).earliest("pk")
    with monkeypatch.context() as patch:
        patch.setattr(media, "MAX_KEYS", 2)
        kill_at(patch, point)
        with pytest.raises(Killed):
            delete()
    assert not models.Experiment.objects.exists()
    assert models.Experiment.everything.get().deletion_asked_at is not None
    # Nobody finds it any more.
    assert trainer.send("GET", f"{trainer.path}/decisions").status_code == 404
    refused = trainer.send("PUT", trainer.path, trainer.description())
    assert (refused.status_code, b"is being deleted" in refused.content) == (409, True)
    assert browser.send("POST", "/experiments/hopper/leases", {"count": 1}).status_code == 404
    body = {"uuid": str(uuid4()), "lease": str(lease.uuid), "choice": "left"}
    assert browser.send("POST", "/labels", body).status_code == 404
    assert browser.send("POST", f"/labels/{label.uuid}/undo", {"uuid": str(uuid4())}).status_code == 404
    assert browser.client.get("/experiments/hopper/history").status_code == 404
    if again == "command":
        delete()
    else:
        assert chores.finish_deletions() == "1 finished"
    assert rows() == dict.fromkeys(rows(), 0)
    assert not list(media_store().root.rglob("*.mp4"))  # type: ignore[union-attr]


def test_a_store_that_is_away_leaves_all_as_it_was(
    trainer: Trainer, browser: Browser, root: Client, settings: Settings, tmp_path: Any
) -> None:
    fill(trainer, browser)
    trainer.silence()
    there, settings.TEACHER_STORAGE = settings.TEACHER_STORAGE, str(tmp_path / "not-mounted")
    before = rows()
    with pytest.raises(CommandError, match=r"not-mounted cannot be used: .*Nothing was deleted"):
        delete()
    assert root.post(address(trainer), {"post": "yes"}).status_code == 302
    assert "not-mounted cannot be used" in root.get(reverse("admin:index")).content.decode()
    assert (rows(), trainer.experiment.state) == (before, "running")
    settings.TEACHER_STORAGE = there


@pytest.fixture
def elsewhere(trainer: Trainer, browser: Browser, settings: Settings, tmp_path: Path) -> Iterator[Path]:
    """The settings name another store than the one with the clips of a finished run."""
    fill(trainer, browser)
    trainer.silence()
    clips = Path(settings.TEACHER_STORAGE)
    settings.TEACHER_STORAGE = str(tmp_path / "another")
    (tmp_path / "another").mkdir()
    yield clips
    settings.TEACHER_STORAGE = str(clips)


def clips_below(folder: Path) -> int:
    return len(list(folder.rglob("*.mp4")))


OTHER_STORE = (
    r"Expected 7 clips of hopper in the folder \S+/another, but found none: set TEACHER_STORAGE to the store "
    r"that the site uses; if the clips are gone for good, run manage\.py delete_experiment hopper "
    r"--without-clips\."
)


def test_another_store_refuses(elsewhere: Path, trainer: Trainer, root: Client, settings: Settings) -> None:
    models.Comparison.objects.update(status="cancelled")  # as the end of a run leaves what nobody answered
    before = rows()
    with pytest.raises(CommandError, match=OTHER_STORE + " Nothing was deleted"):
        delete()
    for answer in (root.get(page := address(trainer)), root.post(page, {"post": "yes"})):
        assert answer.status_code == 302
    shown = root.get(reverse("admin:index")).content.decode()
    assert "but found none: set TEACHER_STORAGE to the store that the site uses" in shown
    assert (rows(), clips_below(elsewhere)) == (before, 7)
    settings.TEACHER_STORAGE = str(elsewhere)
    assert "7 clips in storage" in delete()
    assert clips_below(elsewhere) == 0


def test_a_deletion_does_not_go_on_with_another_store(
    elsewhere: Path, trainer: Trainer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    another, settings.TEACHER_STORAGE = settings.TEACHER_STORAGE, str(elsewhere)
    with monkeypatch.context() as patch:
        patch.setattr(media, "MAX_KEYS", 2)
        kill_at(patch, 0)
        with pytest.raises(Killed):
            delete()
    settings.TEACHER_STORAGE = another
    assert chores.finish_deletions() == "0 finished, 1 left for the next run"
    with pytest.raises(CommandError, match=OTHER_STORE.replace("7 clips", "3 clips") + " hopper is hidden"):
        delete()
    assert clips_below(elsewhere) == 5
    settings.TEACHER_STORAGE = str(elsewhere)
    assert chores.finish_deletions() == "1 finished"
    assert clips_below(elsewhere) == 0


@pytest.mark.parametrize("folder", ["another", "gone"])
def test_clips_may_be_missing(elsewhere: Path, trainer: Trainer, settings: Settings, folder: str) -> None:
    settings.TEACHER_STORAGE = str(Path(settings.TEACHER_STORAGE).with_name(folder))
    assert "with: 3 comparisons, 2 labels, 1 invitation" in delete(without_clips=True)
    assert rows() == dict.fromkeys(rows(), 0)
    assert clips_below(elsewhere) == 7


def test_clips_in_two_stores_are_reported(elsewhere: Path, trainer: Trainer, settings: Settings) -> None:
    first = next(elsewhere.rglob("first.mp4"))
    here = Path(settings.TEACHER_STORAGE) / first.relative_to(elsewhere)
    here.parent.mkdir(parents=True)
    first.rename(here)
    said = delete()
    assert "1 clip in storage, 6 clips missing from this storage (not deleted)" in said
    assert (clips_below(here.parents[1]), clips_below(elsewhere)) == (0, 6)


def test_imported_experiment_is_deleted(elsewhere: Path, trainer: Trainer, root: Client) -> None:
    models.Comparison.objects.update(clips_missing=True)
    models.Episode.objects.all().delete()
    root.post(address(trainer), {"post": "yes"})
    assert not models.Experiment.everything.exists()


def test_store_lost_meanwhile(trainer: Trainer, root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer.register()
    trainer.silence()

    def refuse(*_: object) -> None:
        raise MediaStoreError("The store keeps 2 of 2 objects: no.")

    with monkeypatch.context() as patch:
        patch.setattr(FolderMedia, "delete", refuse)
        root.post(address(trainer), {"post": "yes"})
        page = root.get(reverse("admin:feedback_experiment_changelist")).content.decode()
        assert "keeps 2 of 2 objects: no. hopper is hidden; its deletion continues automatically" in page
        assert chores.finish_deletions() == "0 finished, 1 left for the next run"
    assert chores.finish_deletions() == "1 finished"
    assert not models.Experiment.everything.exists()


def test_the_admin_names_what_goes_and_deletes_it(trainer: Trainer, browser: Browser, root: Client) -> None:
    fill(trainer, browser)
    trainer.silence()
    change = reverse("admin:feedback_experiment_change", args=[trainer.experiment.pk])
    assert address(trainer) in root.get(change).content.decode()
    html = root.get(address(trainer)).content.decode()
    listed = re.findall(r"<li>([^<]+)</li>", html)
    assert listed[:4] == ["3 comparisons", "2 labels", "7 clips in storage", "1 invitation"]
    assert models.Experiment.objects.exists()  # to look is not to delete
    assert root.post(address(trainer), {"post": "yes"}).headers["Location"] == reverse(
        "admin:feedback_experiment_changelist"
    )
    assert rows() == dict.fromkeys(rows(), 0)
    entry = LogEntry.objects.get(action_flag=DELETION)
    assert (entry.object_repr, entry.user.username) == ("hopper", "root")


def test_long_deletion_is_a_chore(trainer: Trainer, root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from human_feedback_site.feedback.admin import experiments as pages

    trainer.register(2)
    trainer.silence()
    monkeypatch.setattr(pages, "_DELETE_SECONDS", -1.0)
    root.post(address(trainer), {"post": "yes"})
    listed = root.get(reverse("admin:feedback_experiment_changelist")).content.decode()
    assert "The experiment hopper is now hidden; the rest will be deleted within minutes." in listed
    change = reverse("admin:feedback_experiment_change", args=[models.Experiment.everything.get().pk])
    assert root.post(change, {}).status_code == 403
    assert "this is what is left" in root.get(address(trainer)).content.decode()
    assert chores.finish_deletions() == "1 finished"


@pytest.mark.parametrize("used", [False, True])
def test_admin_offers_no_deletion(trainer: Trainer, browser: Browser, root: Client, used: bool) -> None:
    """Deletion succeeds for each row with a delete button, and for several rows."""
    from django.contrib import admin

    if used:
        fill(trainer, browser)
    trainer.silence()
    User.objects.create(username="nobody")
    for model, shown in admin.site._registry.items():
        at = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        offered = "delete_selected" in root.get(reverse(f"{at}_changelist")).content.decode()
        for row in list(shown.get_queryset(request_of(root))):  # type: ignore[arg-type]
            if row == root_user() or model.__name__ == "LogEntry":
                continue
            change = root.get(reverse(f"{at}_change", args=[row.pk]))
            delete_at = reverse(f"{at}_delete", args=[row.pk])
            if delete_at not in change.content.decode():
                assert root.get(delete_at).status_code == 403, row
                assert not offered, row
            elif offered:
                data = {"action": "delete_selected", "_selected_action": row.pk, "post": "yes"}
                assert root.post(reverse(f"{at}_changelist"), data).status_code == 302, row
                assert not model._base_manager.filter(pk=row.pk).exists(), row
            else:
                assert root.post(delete_at, {"post": "yes"}).status_code == 302, row
                assert not model._base_manager.filter(pk=row.pk).exists(), row


def request_of(client: Client) -> object:
    """A request that the admin's lists are made for."""
    return client.get(reverse("admin:index")).wsgi_request


def root_user() -> User:
    return User.objects.get(username="root")
