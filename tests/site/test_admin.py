"""The admin shows everything, changes no evidence, and shows a new token once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from human_feedback_site.feedback import models
from human_feedback_site.feedback.services.accounts import user_of_token

if TYPE_CHECKING:
    from tests.site.conftest import Browser, Trainer

MODELS = [model for model in admin.site._registry if model._meta.app_label == "feedback"]
EVIDENCE = [models.Comparison, models.Lease, models.Label, models.Undo, models.Decision]
EVIDENCE += [models.TrainingPoint, models.Episode, models.PromptVersion]


@pytest.fixture
def root(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create(username="root", is_staff=True, is_superuser=True))
    return client


@pytest.fixture
def story(trainer: Trainer, browser: Browser) -> None:
    """One of everything."""
    trainer.register(2)
    trainer.post(f"{trainer.path}/points", {"points": [{"step": 1, "values": {"a": 1}}]})
    trainer.upload("hopper/episodes/1.mp4")
    trainer.post(f"{trainer.path}/episodes", {"step": 1, "key": "hopper/episodes/1.mp4"})
    models.Example.objects.create(
        experiment=trainer.experiment, comparison=models.Comparison.objects.latest("pk"), better="first"
    )
    browser.undo(browser.answer(browser.lease()[0]))


def page(what: str, model: Any, *args: object) -> str:
    return reverse(f"admin:feedback_{model._meta.model_name}_{what}", args=args)


def test_every_model_is_registered() -> None:
    from django.apps import apps

    assert set(MODELS) == set(apps.get_app_config("feedback").get_models())


@pytest.mark.usefixtures("story")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_lists_and_details_can_be_read_and_searched(root: Client, model: Any) -> None:
    something = model.objects.first()
    shown = root.get(page("changelist", model))
    assert shown.status_code == 200
    assert b"1 " in shown.content
    assert len(admin.site._registry[model].list_display) > 1
    assert root.get(page("changelist", model) + "?q=hopper").status_code == 200
    assert root.get(page("change", model, something.pk)).status_code == 200


@pytest.mark.usefixtures("story")
@pytest.mark.parametrize("model", EVIDENCE, ids=lambda model: model.__name__)
def test_evidence_cannot_be_changed(root: Client, model: Any) -> None:
    something = model.objects.first()
    for what, args in (("add", ()), ("delete", (something.pk,))):
        assert root.get(page(what, model, *args)).status_code == 403
    assert root.post(page("change", model, something.pk), {}).status_code == 403


@pytest.mark.usefixtures("story")
def test_the_clips_of_a_comparison_can_be_played(root: Client) -> None:
    comparison = models.Comparison.objects.get(decisions__seq=1)
    content = root.get(page("change", models.Comparison, comparison.pk)).content.decode()
    clips = re.findall(r'<video src="([^"]+)"', content)
    assert len(clips) == 2
    assert all(root.get(clip).status_code == 200 for clip in clips)


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


def form_of(root: Client, trainer: Trainer) -> dict[str, object]:
    """What a browser would send from the experiment's form as it is now."""
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


def test_a_smaller_overlap_closes_what_has_enough_labels(
    root: Client, trainer: Trainer, browser: Browser
) -> None:
    trainer.overlap(2)
    trainer.register(2)
    browser.answer(browser.lease()[0])
    assert trainer.decisions()["open"] == 2
    change = page("change", models.Experiment, trainer.experiment.pk)
    assert root.post(change, {**form_of(root, trainer), "overlap": 1}).status_code == 302
    assert trainer.decisions()["open"] == 1
    assert models.Comparison.objects.get(n_labels=1).status == "answered"


def test_a_larger_overlap_opens_what_had_enough_labels(
    root: Client, trainer: Trainer, browser: Browser, invite: Callable[[str], Browser]
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


def test_labelers_keep_the_name_of_their_invitation(root: Client, browser: Browser) -> None:
    labeler = models.Labeler.objects.get()
    root.post(page("change", models.Labeler, labeler.pk), {"name": "mallory", "experiments": []})
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
    assert user_of_token(token) == researcher
    kept = models.ApiToken.objects.get()
    for address in (page("changelist", models.ApiToken), page("change", models.ApiToken, kept.pk)):
        assert token.encode() not in root.get(address).content
    root.post(page("delete", models.ApiToken, kept.pk), {"post": "yes"})
    assert user_of_token(token) is None


def test_tokens_are_offered_to_researchers_only(root: Client, browser: Browser) -> None:
    labeler = models.Labeler.objects.get().user
    response = root.post(page("add", models.ApiToken), {"user": labeler.pk, "name": "x"})
    assert b"Select a valid choice" in response.content
    assert not models.ApiToken.objects.filter(user=labeler).exists()


def test_labelers_do_not_get_into_the_admin(browser: Browser) -> None:
    assert browser.client.get("/admin/").status_code == 302


def test_lists_take_the_same_number_of_queries_however_long_they_are(
    root: Client, trainer: Trainer, story: None, django_assert_max_num_queries: Callable[..., Any]
) -> None:
    trainer.register(30)
    for model in MODELS:
        with django_assert_max_num_queries(14):
            root.get(page("changelist", model))


def act(root: Client, model: Any, action: str, *chosen: Any) -> str:
    """Run an action on rows of a list; return what it says."""
    body = {"action": action, "_selected_action": [row.pk for row in chosen]}
    return root.post(page("changelist", model), body, follow=True).content.decode()


def test_pairs_are_made_gold_and_ordinary_again(root: Client, trainer: Trainer) -> None:
    trainer.register(2)
    one, other = models.Comparison.objects.order_by("pk")
    assert "1 are gold." in act(root, models.Comparison, "second_is_known", one)
    other.refresh_from_db()
    one.refresh_from_db()
    assert [(row.status, row.gold) for row in (one, other)] == [("gold", "second"), ("open", None)]
    assert "1 are gold no more." in act(root, models.Comparison, "is_not_known", one, other)
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


def judge_by_two(trainer: Trainer, invite: Callable[[str], Browser]) -> None:
    """Three pairs, equal to both labelers."""
    trainer.overlap(2)
    trainer.register(3)
    for name in ("mia", "leo"):
        other = invite(name)
        for lease in other.lease(3):
            other.answer(lease, "equal")


def test_an_experiment_shows_how_each_labeler_does(
    root: Client, trainer: Trainer, invite: Callable[[str], Browser]
) -> None:
    judge_by_two(trainer, invite)
    shown = root.get(page("change", models.Experiment, trainer.experiment.pk)).content.decode()
    assert re.search(r"<td>leo</td><td>3</td><td></td><td>100% of 3</td>", shown)


def test_labelers_are_weighed_at_once_and_by_another_rule(
    root: Client, trainer: Trainer, invite: Callable[[str], Browser]
) -> None:
    judge_by_two(trainer, invite)
    change = page("change", models.Experiment, trainer.experiment.pk)
    before = trainer.decisions()["items"][-1]["probability"]
    form = {**form_of(root, trainer), "aggregation": "dawid_skene"}
    assert root.post(change, form).status_code == 302
    assert models.Comparison.objects.filter(score_first__lt=0).count() == 3
    assert "0 decisions revised" in act(root, models.Experiment, "weigh", trainer.experiment)
    assert models.Participation.objects.exclude(confusion=None).count() == 2
    assert before == 0.5
