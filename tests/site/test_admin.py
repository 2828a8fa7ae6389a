"""The admin shows everything, changes no evidence, and shows a new token once."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from human_feedback_site.feedback import models
from human_feedback_site.feedback.services import wording
from human_feedback_site.feedback.services.accounts import create_token, token_of
from tests.site.conftest import Browser, Invited, Trainer, fill, owner_of, side_of

MODELS = [model for model in admin.site._registry if model._meta.app_label == "feedback"]
LISTS: list[Any] = [*MODELS, LogEntry]
EVIDENCE = [models.Comparison, models.Lease, models.Label, models.Undo, models.Decision]
EVIDENCE += [models.TrainingPoint, models.Episode, models.PromptVersion, models.PredictedRewards]


@pytest.fixture
def story(trainer: Trainer, browser: Browser) -> None:
    """One of everything."""
    fill(trainer, browser)
    models.Attempts.objects.create(digest="0" * 64, count=1, ends_at=Now())
    models.Identity.objects.create(user=trainer.user, issuer="https://login.example.org", subject="1")


def page(what: str, model: Any, *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{what}", args=args)


def test_every_model_is_registered() -> None:
    from django.apps import apps

    assert set(MODELS) == set(apps.get_app_config("feedback").get_models())


@pytest.mark.both_databases
@pytest.mark.usefixtures("story")
def test_lists_and_details_can_be_read_and_searched(root: Client) -> None:
    for model in MODELS:
        shown = root.get(page("changelist", model))
        assert shown.status_code == 200, model
        assert b"1 " in shown.content, model
        assert len(admin.site._registry[model].list_display) > 1, model
        assert root.get(page("changelist", model) + "?q=hopper").status_code == 200, model
        something = model._default_manager.first()
        assert something is not None, model
        assert root.get(page("change", model, something.pk)).status_code == 200, model


@pytest.mark.usefixtures("story")
def test_evidence_cannot_be_changed(root: Client) -> None:
    for model in EVIDENCE:
        something = model._default_manager.first()
        assert something is not None, model
        for what, args in (("add", ()), ("delete", (something.pk,))):
            assert root.get(page(what, model, *args)).status_code == 403, model
        assert root.post(page("change", model, something.pk), {}).status_code == 403, model


@pytest.mark.usefixtures("story")
def test_the_clips_of_a_comparison_can_be_played(root: Client) -> None:
    comparison = models.Comparison.objects.get(decisions__seq=1)
    content = root.get(page("change", models.Comparison, comparison.pk)).content.decode()
    clips = re.findall(r'<video src="([^"]+)"', content)
    assert len(clips) == 2
    assert all(root.get(clip, follow=True).status_code == 200 for clip in clips)


def test_experiments_are_paused_and_resumed(root: Client, trainer: Trainer) -> None:
    for action, state in (("pause", "paused"), ("pause", "paused"), ("resume", "running")):
        data = {"action": action, "_selected_action": trainer.experiment.pk}
        assert root.post(page("changelist", models.Experiment), data).status_code == 302
        assert trainer.decisions()["state"] == state
    trainer.put(state="finished")
    root.post(
        page("changelist", models.Experiment), {"action": "resume", "_selected_action": trainer.experiment.pk}
    )
    assert trainer.decisions()["state"] == "finished"


def test_experiments_are_finished(root: Client, trainer: Trainer) -> None:
    data = {"action": "finish", "_selected_action": trainer.experiment.pk}
    assert root.post(page("changelist", models.Experiment), data).status_code == 302
    assert trainer.decisions()["state"] == "finished"
    assert trainer.experiment.finished_at is not None


def form_of(root: Client, trainer: Trainer) -> dict[str, object]:
    """Return what a browser would send from the experiment's form as it is now."""
    response = root.get(page("change", models.Experiment, trainer.experiment.pk))
    fields: Any = response.context["adminform"].form
    return {
        **{field.html_name: field.initial for field in fields},
        **{field.html_initial_name: field.initial for field in fields},
    }


def test_a_stale_form_overwrites_nothing(root: Client, trainer: Trainer) -> None:
    stale = form_of(root, trainer)
    trainer.put(prompt="Which one turns over?", state="finished")
    change = page("change", models.Experiment, trainer.experiment.pk)
    assert root.post(change, {**stale, "overlap": 2, "state": "running"}).status_code == 302
    now = trainer.experiment
    assert (now.prompt, now.state, now.overlap) == ("Which one turns over?", "finished", 2)


@pytest.mark.both_databases
def test_smaller_overlap_closes_comparisons(root: Client, trainer: Trainer, browser: Browser) -> None:
    trainer.overlap(2)
    trainer.register(2)
    browser.answer(browser.lease()[0])
    assert trainer.decisions()["open"] == 2
    change = page("change", models.Experiment, trainer.experiment.pk)
    assert root.post(change, {**form_of(root, trainer), "overlap": 1}).status_code == 302
    assert trainer.decisions()["open"] == 1
    assert models.Comparison.objects.get(n_labels=1).status == "answered"


@pytest.mark.both_databases
def test_a_larger_overlap_opens_what_had_enough_labels(
    root: Client, trainer: Trainer, browser: Browser, invite: Invited
) -> None:
    trainer.register(2)
    browser.answer(browser.lease()[0])
    change = page("change", models.Experiment, trainer.experiment.pk)
    root.post(change, {**form_of(root, trainer), "overlap": 2})
    for name in ("mia", "leo", "zoe"):
        other = invite(name)
        for lease in other.lease(2):
            other.answer(lease)
    assert sorted(models.Comparison.objects.values_list("n_labels", "status")) == [
        (2, "answered"),
        (2, "answered"),
    ]


def test_videos_are_hidden_from_labelers(root: Client, trainer: Trainer) -> None:
    form = form_of(root, trainer)
    assert form.pop("show_episodes") is True  # a browser does not send an empty box
    assert root.post(page("change", models.Experiment, trainer.experiment.pk), form).status_code == 302
    assert trainer.experiment.show_episodes is False


def test_labelers_keep_the_name_of_their_invitation(root: Client, browser: Browser) -> None:
    labeler = models.Labeler.objects.get()
    change = page("change", models.Labeler, labeler.pk)
    shown = {"initial-experiments": models.Experiment.objects.get().pk}
    assert root.post(change, {"name": "mallory", "experiments": [], **shown}).status_code == 302
    assert [each.name for each in models.Labeler.objects.all()] == ["you"]
    assert not labeler.experiments.exists()


def test_an_experiment_with_answers_cannot_be_deleted(root: Client, trainer: Trainer, story: None) -> None:
    root.post(page("delete", models.Experiment, trainer.experiment.pk), {"post": "yes"})
    assert models.Experiment.objects.filter(name="hopper").exists()


def test_a_new_token_is_shown_once(root: Client, researcher: User) -> None:
    data = {"user": researcher.pk, "name": "laptop"}
    response = root.post(page("add", models.ApiToken), data)
    assert response.status_code == 200
    assert "no-store" in response["Cache-Control"]
    [token] = re.findall(r'<pre id="token">(tt_[\w-]+)</pre>', response.content.decode())
    assert owner_of(token) == researcher
    kept = models.ApiToken.objects.get()
    for address in (page("changelist", models.ApiToken), page("change", models.ApiToken, kept.pk)):
        assert token.encode() not in root.get(address).content
    root.post(page("delete", models.ApiToken, kept.pk), {"post": "yes"})
    assert token_of(token) is None


def test_tokens_are_offered_to_researchers_only(root: Client, browser: Browser) -> None:
    labeler = models.Labeler.objects.get().user
    response = root.post(page("add", models.ApiToken), {"user": labeler.pk, "name": "x"})
    assert b"Select a valid choice" in response.content
    assert not models.ApiToken.objects.filter(user=labeler).exists()


def act(root: Client, model: Any, action: str, *chosen: Any) -> str:
    """Run an action on rows of a list; return what it says."""
    body = {"action": action, "_selected_action": [row.pk for row in chosen]}
    return root.post(page("changelist", model), body, follow=True).content.decode()


def test_pairs_are_made_gold_and_ordinary_again(root: Client, trainer: Trainer) -> None:
    trainer.register(2)
    one, other = models.Comparison.objects.order_by("pk")
    assert "1 used as attention checks." in act(root, models.Comparison, "second_is_known", one)
    other.refresh_from_db()
    one.refresh_from_db()
    assert [(row.status, row.gold) for row in (one, other)] == [("gold", "second"), ("open", None)]
    assert "1 no longer used as attention checks." in act(root, models.Comparison, "is_not_known", one, other)
    one.refresh_from_db()
    assert (one.status, one.gold) == ("open", None)


def test_a_labeler_is_stopped_and_given_work_again(root: Client, trainer: Trainer, browser: Browser) -> None:
    trainer.register(2)
    browser.lease()
    [participation] = models.Participation.objects.all()
    assert "1 stopped." in act(root, models.Participation, "stop", participation)
    assert browser.ask()["notice"] == "stopped"
    assert "stopped" in root.get(page("changelist", models.Participation)).content.decode()
    act(root, models.Participation, "readmit", participation)
    assert len(browser.lease()) == 1


def judge_by_two(trainer: Trainer, invite: Invited) -> None:
    """Three pairs, equal to both labelers."""
    trainer.overlap(2)
    trainer.register(3)
    for name in ("mia", "leo"):
        other = invite(name)
        for lease in other.lease(3):
            other.answer(lease, "equal")


def test_labeler_quality_is_shown(root: Client, trainer: Trainer, invite: Invited) -> None:
    judge_by_two(trainer, invite)
    shown = root.get(page("change", models.Experiment, trainer.experiment.pk)).content.decode()
    assert re.search(r"<td>leo</td><td>3</td><td></td><td>100% of 3</td>", shown)


@pytest.mark.both_databases
def test_labelers_are_reweighed(root: Client, trainer: Trainer, invite: Invited) -> None:
    judge_by_two(trainer, invite)
    change = page("change", models.Experiment, trainer.experiment.pk)
    before = trainer.decisions()["items"][-1]["probability"]
    form = {**form_of(root, trainer), "aggregation": "dawid_skene"}
    assert root.post(change, form).status_code == 302
    assert "0 decisions revised" in act(root, models.Experiment, "weigh", trainer.experiment)
    assert models.Participation.objects.exclude(confusion=None).count() == 2
    assert before == 0.5


def test_cancel_requeue_and_request_again(root: Client, trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    pair = models.Comparison.objects.get()
    assert "1 closed." in act(root, models.Comparison, "cancel", pair)
    assert browser.lease() == []
    assert "0 closed." in act(root, models.Comparison, "cancel", pair)
    assert "1 reopened." in act(root, models.Comparison, "requeue", pair)
    browser.answer(browser.lease()[0])
    assert "One more label requested for 1 comparison(s)." in act(root, models.Comparison, "ask_again", pair)
    pair.refresh_from_db()
    assert (pair.status, pair.wanted, pair.n_labels) == ("open", 2, 1)


def test_leases_are_released(root: Client, trainer: Trainer, invite: Invited) -> None:
    trainer.register()
    ann, bob = invite("ann"), invite("bob")
    ann.ask(shown=ann.lease()[0]["uuid"])
    assert bob.lease() == []
    assert "1 ended." in act(root, models.Lease, "requeue", *models.Lease.objects.all())
    assert len(bob.lease()) == 1


@pytest.mark.both_databases
def test_a_blocked_labeler_is_given_nothing_and_its_labels_count_no_more(
    root: Client, trainer: Trainer, invite: Invited
) -> None:
    ann, bob = invite("ann"), invite("bob")
    trainer.overlap(2)
    trainer.register(2)
    for who, better in ((ann, "second"), (bob, "first")):
        for lease in who.lease(2):
            who.answer(lease, side_of(lease, better))
    trainer.register(gold="equal")
    before = trainer.decisions()["last_seq"]
    assert {item["decision"] for item in trainer.decisions()["items"][-2:]} == {"equal"}
    known = models.Participation.objects.get(labeler__name="ann")

    response = root.post(  # from a list that shows only those who are not stopped
        page("changelist", models.Participation) + "?stopped_at__isempty=1",
        {"action": "block", "_selected_action": [known.pk]},
        follow=True,
    )
    assert b"Blocked; labels withdrawn: 2." in response.content
    feed = trainer.decisions(after=before)
    assert [(item["decision"], item["n_labels"]) for item in feed["items"]] == [("first", 1)] * 2
    assert feed["open"] == 2
    assert ann.ask()["notice"] == "stopped"
    assert models.Label.objects.count() == 4
    assert set(models.Undo.objects.values_list("retracted_by__username", flat=True)) == {"root"}
    known.refresh_from_db()
    assert (known.answers, known.undone, known.answered) == (2, 2, 0)
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.user.username) == (str(known.pk), "root")

    assert "Blocked; labels withdrawn: 0." in act(root, models.Participation, "block", known)
    assert trainer.decisions(after=before)["last_seq"] == feed["last_seq"]
    act(root, models.Participation, "readmit", known)
    assert len(ann.lease(5)) == 2


def test_labeler_is_blocked_everywhere(root: Client, trainer: Trainer, browser: Browser) -> None:
    trainer.register(2)
    browser.answer(browser.lease()[0])
    labeler = models.Labeler.objects.get()
    assert "Blocked; labels withdrawn: 1." in act(root, models.Labeler, "block", labeler)
    assert browser.ask()["notice"] == "stopped"
    assert "Readmitted in 1 experiment(s)." in act(root, models.Labeler, "readmit", labeler)
    assert browser.ask()["notice"] is None


def test_withdrawing_reveals_no_gold_answer(root: Client, trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    label = browser.answer(browser.lease()[0], "equal")
    pair = models.Comparison.objects.get()
    act(root, models.Comparison, "first_is_known", pair)
    known = trainer.decisions()["last_seq"]
    browser.undo(label)
    assert trainer.decisions()["last_seq"] == known
    pair.refresh_from_db()
    assert pair.n_labels == 0


def test_a_token_is_replaced_and_shown_once(root: Client, researcher: User) -> None:
    now = timezone.now()
    old = create_token(researcher, expires_at=now - timedelta(days=5))
    kept = models.ApiToken.objects.get()
    models.ApiToken.objects.update(created_at=now - timedelta(days=35))
    body = {"action": "rotate", "_selected_action": [kept.pk]}
    response = root.post(page("changelist", models.ApiToken), body)
    [token] = re.findall(r'<pre id="token">(tt_[\w-]+)</pre>', response.content.decode())
    assert "no-store" in response["Cache-Control"]
    assert (owner_of(token), token_of(old)) == (researcher, None)
    kept.refresh_from_db()
    assert kept.expires_at == pytest.approx(now + timedelta(days=30), abs=timedelta(hours=1))
    assert token not in str(LogEntry.objects.values())
    create_token(researcher)
    assert "Select exactly one token" in act(root, models.ApiToken, "rotate", *models.ApiToken.objects.all())
    assert owner_of(token) == researcher


@pytest.mark.usefixtures("story")
def test_links_and_participants_are_removed_and_logged(root: Client, trainer: Trainer) -> None:
    invite, arrival = models.Invite.objects.latest("pk"), models.Arrival.objects.get()
    assert "1 revoked." in act(root, models.Invite, "revoke", invite)
    assert "0 revoked." in act(root, models.Invite, "revoke", invite)
    assert models.Invite.objects.exclude(revoked_at=None).get() == invite
    labels = models.Label.objects.count()
    assert "1 forgotten." in act(root, models.Arrival, "forget", arrival)
    assert not models.Arrival.objects.exists()
    assert models.Label.objects.count() == labels > 0
    logged = LogEntry.objects.order_by("pk").values_list("user__username", "object_repr", "change_message")
    assert [entry[1:] for entry in logged] == [
        (str(invite), "1 revoked."),
        (str(invite), "0 revoked."),
        (str(arrival), "1 forgotten."),
    ]
    assert {entry[0] for entry in logged} == {"root"}
    assert arrival.participant not in str(LogEntry.objects.values())  # which is forgotten


def test_the_log_of_the_admin_is_there_to_be_read(root: Client, trainer: Trainer) -> None:
    act(root, models.Experiment, "pause", trainer.experiment)
    entry = LogEntry.objects.get()
    assert b"1 paused." in root.get(page("changelist", LogEntry)).content
    assert root.get(page("change", LogEntry, entry.pk)).status_code == 200
    for what, args in (("add", ()), ("delete", (entry.pk,))):
        assert root.get(page(what, LogEntry, *args)).status_code == 403


def test_lists_take_as_many_statements_for_many_rows_as_for_two(
    root: Client, trainer: Trainer, browser: Browser, invite: Invited, story: None
) -> None:
    def statements() -> dict[str, int]:
        counted = {}
        for model in LISTS:
            with CaptureQueriesContext(connection) as captured:
                assert root.get(page("changelist", model)).status_code == 200
            counted[model.__name__] = len(captured)
        return counted

    wording.set_text(trainer.experiment, "")
    browser.undo(browser.answer(browser.lease(2)[0]))
    act(root, models.Comparison, "ask_again", *models.Comparison.objects.all())
    few = statements()
    for name in ("ann", "bob", "eve"):
        trainer.register(3)
        other = invite(name)
        for lease in other.lease(3):
            other.undo(other.answer(lease))
        act(root, models.Participation, "block", *models.Participation.objects.all())
    many = statements()
    assert max(many.values()) <= 14
    assert {name: many[name] - few[name] for name in few if many[name] > few[name]} == {}


def test_rare_models_are_folded(root: Client) -> None:
    def listed(path: str) -> tuple[list[str], list[str], bool]:
        html = root.get(path).content.decode()
        [(before, is_open, folded)] = re.findall(
            r'class="app-feedback(.*?)<details class="fold"( open)?>(.*?)</details>', html, re.DOTALL
        )
        names = re.compile(r'<th scope="row" id="feedback-(\w+)">')
        return names.findall(before), names.findall(folded), bool(is_open)

    shown, folded, is_open = listed(reverse("admin:index"))
    assert shown == [
        *("apitoken", "comparison", "consentanswer", "consenttext", "example"),
        *("experiment", "invite", "labeler", "label", "participation"),
        *("webhookdelivery", "webhookendpoint"),
    ]
    assert sorted(shown + folded) == sorted(str(model._meta.model_name) for model in MODELS)
    assert not is_open
    assert listed(page("changelist", models.Experiment)) == (shown, folded, False)
    assert listed(page("changelist", models.Lease)) == (shown, folded, True)
    assert listed(reverse("admin:app_list", args=["feedback"])) == (shown, folded, False)
