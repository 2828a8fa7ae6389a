"""Test requests that no page of ours sends: out of order, too large, or malicious."""

import json
from collections.abc import Callable
from datetime import timedelta
from html import escape
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.conf import settings as site
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from human_feedback_site.feedback.models import Comparison, Experiment, Label, Lease
from tests.site.conftest import Browser, Trainer

Invite = Callable[[str], Browser]
SCRIPT = "<script>alert(1)</script>"


def test_undo_before_its_answer_is_refused_and_repeatable(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    [lease] = browser.lease()
    label = browser.label(lease)
    undo = {"uuid": str(uuid4())}
    path = f"/labels/{label['uuid']}/undo"
    assert browser.send("POST", path, undo).status_code == 404
    browser.post("/labels", label)
    assert browser.send("POST", path, undo).status_code == 201
    assert Comparison.objects.get().n_labels == 0


def test_an_answer_sent_again_after_its_undo_stays_undone(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    [lease] = browser.lease()
    label = browser.label(lease)
    browser.post("/labels", label)
    browser.undo(label)
    assert browser.send("POST", "/labels", label).status_code == 200
    assert Comparison.objects.get().n_labels == 0
    assert trainer.decisions()["items"][-1]["decision"] is None


def test_reordered_answers_count_for_their_own_leases(trainer: Trainer, browser: Browser) -> None:
    trainer.register(3)
    given = browser.lease(3)
    for lease, choice in zip(reversed(given), ("left", "right", "equal"), strict=True):
        assert browser.answer(lease, choice)["status"] == "counted"
    said = {str(label.comparison.uuid): label.choice for label in Label.objects.select_related("comparison")}
    assert [said[lease["comparison"]] for lease in given] == ["equal", "right", "left"]


@pytest.mark.parametrize("state", ["paused", "finished"])
def test_closed_experiment_leases_nothing(trainer: Trainer, browser: Browser, state: str) -> None:
    trainer.register(2)
    [lease] = browser.lease()
    Experiment.objects.update(state=state)
    reply = browser.ask(2, held=[lease["uuid"]])
    assert (reply["leases"], reply["renewed"], reply["lost"]) == ([], [], [lease["uuid"]])


@pytest.mark.both_databases
def test_abandoned_lease_goes_to_the_next(trainer: Trainer, invite: Invite, settings: Settings) -> None:
    settings.LEASE_SECONDS = 1
    trainer.register()
    leaver, other = invite("leaver"), invite("other")
    leaver.lease()
    while not (taken := other.lease()):
        pass  # the database's clock goes on
    old, new = Lease.objects.order_by("pk")
    assert str(new.uuid) == taken[0]["uuid"]
    assert old.expires_at <= new.created_at < old.expires_at + timedelta(seconds=5)


@pytest.mark.both_databases
@pytest.mark.parametrize("said", ["1999-01-01T00:00:00Z", "2099-01-01T00:00:00Z"])
def test_a_browsers_clock_says_nothing(trainer: Trainer, browser: Browser, said: str) -> None:
    trainer.register()
    [lease] = browser.lease()
    browser.answer(lease, created_at=said, expires_at=said, response_ms=2**31 - 1)
    label = Label.objects.get()
    assert abs(label.created_at - timezone.now()) < timedelta(minutes=5)
    assert label.lease.created_at <= label.created_at


def test_html_from_a_trainer_is_escaped(trainer: Trainer, browser: Browser, client: Client) -> None:
    trainer.put(prompt=SCRIPT, env_id=SCRIPT)
    client.force_login(trainer.user)
    for who, path in [(browser.client, "/experiments/hopper/label"), (client, "/experiments/hopper/")]:
        page = who.get(path).content.decode()
        assert SCRIPT not in page
        assert escape(SCRIPT) in page


@pytest.mark.both_databases
@pytest.mark.parametrize("name", ["%3Cscript%3E", "a%00b", "%F0%9F%A4%B8", "a%2Fb", "..%2Fx"])
def test_names_of_experiments_are_plain(trainer: Trainer, name: str) -> None:
    response = trainer.send("PUT", f"/experiments/{name}", trainer.description())
    assert response.status_code in {400, 404}
    assert Experiment.objects.count() == 1


@pytest.mark.both_databases
@pytest.mark.parametrize("path", ["/experiments/hopper/leases", "/labels"])
def test_a_session_that_no_site_gave_is_nobodys(trainer: Trainer, path: str) -> None:
    trainer.register()
    client = Client()
    client.cookies.load(f'{site.SESSION_COOKIE_NAME}="abcdefgh\\000ijkl"')  # NUL, as cookies write it
    body = json.dumps({"count": 1, "uuid": str(uuid4()), "lease": str(UUID(int=1)), "choice": "left"})
    response = client.post(f"/api/v1{path}", body, content_type="application/json")
    assert response.status_code == 401


PAGES = pytest.mark.parametrize(
    "path", ["/accounts/login/", "/admin/login/", "/i18n/setlang/", "/experiments/hopper/prompt"]
)


@PAGES
def test_files_are_as_little_as_other_forms(trainer: Trainer, path: str) -> None:
    file = SimpleUploadedFile("film.mp4", bytes(3 * 2**20))
    client = Client()
    client.force_login(trainer.user)
    response = client.post(path, {"file": file})
    assert (response.status_code, response.content) == (413, b"The request must not exceed 2621440 bytes.")
    assert "Content-Security-Policy" in response


@pytest.mark.parametrize("length", ["x", "-1", "9" * 5000])
def test_invalid_content_length_is_read_as_zero(db: None, length: str) -> None:
    assert Client().get("/accounts/login/", CONTENT_LENGTH=length).status_code == 200


@PAGES
@pytest.mark.parametrize("charset", ["rot13", "base64", "idna", "utf-7", "utf-16"])
def test_forms_are_utf_8(trainer: Trainer, path: str, charset: str) -> None:
    client = Client()
    client.force_login(trainer.user)
    form = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na\r\n--x--\r\n'
    content_type = f"multipart/form-data; boundary=x; charset={charset}"
    response: Any = client.generic("POST", path, form, content_type)
    assert response.status_code == 400
