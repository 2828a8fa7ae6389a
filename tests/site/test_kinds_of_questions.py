"""Questions of every kind, from registration to the feed: nothing is inverted, bad answers change nothing."""

import json
import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from human_feedback_site.feedback.backup.postgresql import NEEDED_CLIPS, keys_in
from human_feedback_site.feedback.kinds import ITEMS, KINDS, PAIR, Kind
from human_feedback_site.feedback.models import Comparison, Example, Experiment, Label, Lease, Participation
from human_feedback_site.feedback.selectors import crowd
from human_feedback_site.feedback.services import aggregate, experiments, invites, moderation
from tests.site.conftest import Browser, Invited, Trainer

OTHERS = {name: kind for name, kind in KINDS.items() if name != "pair"}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
EVERY_OTHER = pytest.mark.parametrize("kind", OTHERS.values(), ids=OTHERS)


def question(trainer: Trainer, asked: Kind, **changes: object) -> dict[str, Any]:
    """Return a new comparison of a kind whose clips are uploaded; the first has the largest true return."""
    uuid = str(uuid4())
    clips = []
    for place, item in enumerate(ITEMS[: asked.size]):
        key = f"{trainer.name}/{uuid}/{item}.mp4"
        trainer.upload(key)
        clips.append({"key": key, "true_return": float(asked.size - place)})
    shown = {"first": clips[0], "second": clips[1]} if asked.size == 2 else {"items": clips}
    return {
        "uuid": uuid,
        "kind": asked.name,
        "phase": "training",
        "step": 9,
        "priority": 1,
        **shown,
        **changes,
    }


def ask(trainer: Trainer, kind: Kind, count: int = 1, **changes: object) -> list[str]:
    """Register questions and return their UUIDs."""
    questions = [question(trainer, kind, **changes) for _ in range(count)]
    trainer.post(f"{trainer.path}/comparisons", {"comparisons": questions})
    return [each["uuid"] for each in questions]


def lease_of(browser: Browser, count: int = 1, **body: object) -> list[Any]:
    leases: list[Any] = browser.lease(count, kinds=list(KINDS), **body)
    return leases


def clips_of(lease: Any) -> list[str]:
    """Return the clips of a lease as the screen orders them, without signatures, which change with time."""
    return [item["url"].partition(":")[0] for item in lease["items"]]


def choice_for(lease: Any, answer: str) -> str:
    """Return what to press on the screen of a lease to give an answer."""
    row = Lease.objects.select_related("comparison").get(uuid=lease["uuid"])
    return row.comparison.question.choice_for(answer, swapped=row.swapped)


@EVERY_KIND
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.both_databases
def test_choices_on_the_screen_become_answers(
    trainer: Trainer, browser: Browser, kind: Kind, swapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuids = ask(trainer, kind, len(kind.choices))
    monkeypatch.setattr(
        "human_feedback_site.feedback.queue.leases._random.getrandbits", lambda _: int(swapped)
    )
    expected = {}
    for choice in kind.choices:
        [lease] = lease_of(browser)
        assert lease["kind"] == kind.name
        assert len(lease["items"]) == kind.size
        places = list(range(kind.size))[:: -1 if swapped else 1]
        for item, place in zip(lease["items"], places, strict=True):
            key = getattr(Comparison.objects.get(uuid=lease["comparison"]), f"{ITEMS[place]}_key")
            assert browser.client.get(item["url"]).status_code == 200
            assert key.endswith(f"{ITEMS[place]}.mp4")
        truth = trainer.get(f"{trainer.path}/leases/{lease['uuid']}")
        assert [each["true_return"] for each in truth["items"]] == [float(kind.size - at) for at in places]
        assert (lease["left"] is None) == (truth["left"] is None) == (kind.size != 2)
        browser.answer(lease, choice)
        expected[lease["comparison"]] = kind.meaning_of(choice, swapped=swapped)
    feed = trainer.decisions()["items"]
    assert {item["comparison"]: item["decision"] for item in feed} == expected
    assert set(expected) == set(uuids)
    for item in feed:
        assert (item["probability"] is not None) == (kind.size == 2 and item["decision"] != "cant_tell")
        said = Label.objects.get(comparison__uuid=item["comparison"])
        own = [{"labeler": said.labeler_id, "answer": said.answer}]
        assert item["answers"] == (own if kind.personal else None)


@EVERY_OTHER
def test_an_answer_the_kind_does_not_have_is_refused_and_the_lease_stays(
    trainer: Trainer, browser: Browser, kind: Kind
) -> None:
    ask(trainer, kind)
    [lease] = lease_of(browser)
    foreign = {"left", "0", "6", "1>1", "5>1", "", "clearly_left", "3"} - set(kind.choices)
    for choice in foreign:
        response = browser.send("POST", "/labels", browser.label(lease, choice))
        assert response.status_code == 400, choice
        assert [each["pointer"] for each in json.loads(response.content)["errors"]] == ["#/choice"]
    assert not Label.objects.exists()
    browser.answer(lease, kind.classes[0] if kind.size != 2 else "slightly_left")
    assert Label.objects.count() == 1


@pytest.mark.parametrize(
    ("kind", "changes", "pointer"),
    [
        ("rating", {"items": []}, "items"),
        ("best_worst", {"items": None}, "items"),
        ("rating", {"first": {"key": "hopper/x.mp4"}}, "first"),
        ("graded", {"first": None}, "first"),
        ("pair", {"items": [{"key": "hopper/x.mp4"}] * 2}, "items"),
        ("best_worst", {"gold": "1>1"}, "gold"),
        ("rating", {"gold": "6"}, "gold"),
        ("graded", {"gold": "first"}, "gold"),
        ("pair", {"gold": "cant_tell"}, "gold"),
        ("rating", {"kind": "ranking"}, "kind"),
    ],
)
def test_a_bad_question_is_refused_as_a_whole(
    trainer: Trainer, kind: str, changes: dict[str, Any], pointer: str
) -> None:
    good, bad = question(trainer, KINDS[kind]), question(trainer, KINDS[kind], **changes)
    bad = {name: value for name, value in bad.items() if value is not None}
    response = trainer.send("POST", f"{trainer.path}/comparisons", {"comparisons": [good, bad]})
    assert response.status_code == 400
    assert f"#/comparisons/1/{pointer}" in [
        each["pointer"] for each in json.loads(response.content)["errors"]
    ]
    assert not Comparison.objects.exists()


def test_missing_clips_are_named(trainer: Trainer) -> None:
    bad = question(trainer, KINDS["best_worst"])
    bad["items"][2]["key"] = f"hopper/{uuid4()}/third.mp4"
    response = trainer.send("POST", f"{trainer.path}/comparisons", {"comparisons": [bad]})
    assert response.status_code == 422
    assert [each["pointer"] for each in json.loads(response.content)["errors"]] == [
        "#/comparisons/0/items/2/key"
    ]


@EVERY_OTHER
def test_registering_again_is_once_and_other_content_is_refused(trainer: Trainer, kind: Kind) -> None:
    body = question(trainer, kind)
    for expected in ({"registered": 1, "existing": 0}, {"registered": 0, "existing": 1}):
        assert trainer.post(f"{trainer.path}/comparisons", {"comparisons": [body]}) == expected
    last = body["second"] if kind.size == 2 else body["items"][-1]
    last["true_return"] = 17.0
    assert trainer.send("POST", f"{trainer.path}/comparisons", {"comparisons": [body]}).status_code == 409
    [row] = trainer.get(f"{trainer.path}/comparisons")["items"]
    assert row["kind"] == kind.name
    assert [item["true_return"] for item in row["items"]] == [
        float(kind.size - at) for at in range(kind.size)
    ]


def test_a_page_that_knows_only_pairs_gets_only_pairs(trainer: Trainer, browser: Browser) -> None:
    pairs = trainer.register(3)
    ask(trainer, KINDS["rating"], 20)  # which come first
    assert {lease["comparison"] for lease in browser.lease(2)} < {*pairs}
    assert {lease["kind"] for lease in lease_of(browser, 10)} == {"pair", "rating"}
    shown = browser.lease(10)  # of an old page of the same labeler: what it may show, and no more
    assert {lease["comparison"] for lease in shown} == {*pairs}
    for lease in shown:
        browser.answer(lease)
    assert browser.lease(10) == []


@EVERY_OTHER
def test_undo_repeat_check_and_change_keep_the_order_of_the_clips(
    trainer: Trainer, browser: Browser, kind: Kind
) -> None:
    [uuid] = ask(trainer, kind)
    [lease] = lease_of(browser)
    answers = kind.classes[0], kind.classes[1]
    label = browser.answer(lease, choice_for(lease, answers[0]))
    again = browser.undo(label)["lease"]
    assert (again["kind"], clips_of(again)) == (kind.name, clips_of(lease))
    label = browser.answer(again, choice_for(again, answers[0]))
    page = f"/experiments/{trainer.name}/history"
    shown = browser.client.get(page).content.decode()
    for place in range(1, kind.size + 1):
        assert browser.client.get(f"{page}/{label['uuid']}/clips/{place}").status_code == 302
        assert f"{label['uuid']}/clips/{place}" in shown
    assert browser.client.get(f"{page}/{label['uuid']}/clips/{kind.size + 1}").status_code == 404
    wrong = browser.client.post(f"{page}/{label['uuid']}", {"uuid": uuid4(), "choice": "left"})
    assert wrong.status_code == 400
    new = {"uuid": uuid4(), "choice": choice_for(again, answers[1])}
    assert browser.client.post(f"{page}/{label['uuid']}", new).status_code == 302
    feed = trainer.decisions()["items"]
    assert [item["decision"] for item in feed[-2:]] == [None, answers[1]]
    assert {item["comparison"] for item in feed} == {uuid}


@pytest.mark.parametrize(
    ("kind", "known", "answer", "passed"),
    [
        ("graded", "clearly_first", "slightly_first", True),
        ("graded", "clearly_first", "equal", False),
        ("rating", "5", "4", True),
        ("rating", "5", "3", False),
        ("best_worst", "1>4", "1>2", True),
        ("best_worst", "1>4", "4>1", False),
        ("best_worst", "1>4", "cant_tell", False),
    ],
)
def test_attention_checks(
    trainer: Trainer, browser: Browser, kind: str, known: str, answer: str, passed: bool
) -> None:
    Experiment.objects.update(gold_rate=1.0)
    ask(trainer, KINDS[kind], gold=known)
    [lease] = lease_of(browser)
    browser.answer(lease, choice_for(lease, answer))
    assert Participation.objects.get(answers=1).gold_checks == f"{passed:d}"
    [labeler] = crowd.labelers(trainer.experiment)
    assert (labeler.gold.hits, labeler.gold.total) == (int(passed), 1)
    assert trainer.decisions()["items"] == []


@EVERY_OTHER
@pytest.mark.both_databases
def test_several_labelers_are_compared_and_weighed(trainer: Trainer, invite: Invited, kind: Kind) -> None:
    Experiment.objects.update(overlap=3)
    uuids = ask(trainer, kind, 6)
    for name in ("good", "fair", "careless"):
        browser = invite(name)
        for at, lease in enumerate(
            sorted(lease_of(browser, 6), key=lambda lease: uuids.index(lease["comparison"]))
        ):
            right, wrong = kind.classes[at % 2], kind.classes[-1 - at % 2]
            browser.answer(lease, choice_for(lease, wrong if name == "careless" else right))
    agreement = crowd.agreement(trainer.experiment)
    assert agreement.questions == 6
    assert agreement.alpha is not None
    rates = {each.name: each.consensus for each in crowd.labelers(trainer.experiment) if each.answers}
    assert (rates["careless"].hits, rates["careless"].total) == (0, 6)
    before = {item["comparison"]: item["decision"] for item in trainer.decisions()["items"]}
    aggregate.weigh_labelers(trainer.experiment)
    after = {item["comparison"]: item["decision"] for item in trainer.decisions()["items"]}
    assert before == after == {uuid: kind.classes[at % 2] for at, uuid in enumerate(uuids)}
    known: list[Any] = list(Participation.objects.select_related("labeler").exclude(confusion=None))
    matrices = {each.labeler.name: each.confusion[kind.name] for each in known}
    assert {len(matrix) for matrix in matrices.values()} == {len(kind.classes)}
    assert matrices["good"][0][0] > matrices["careless"][0][0]


def test_kinds_of_one_experiment_are_weighed_by_themselves(trainer: Trainer, invite: Invited) -> None:
    Experiment.objects.update(overlap=2)
    pairs, ratings = trainer.register(2), ask(trainer, KINDS["rating"], 2)
    for name in ("mia", "leo"):
        browser = invite(name)
        for lease in lease_of(browser, 4):
            browser.answer(lease, "4" if lease["kind"] == "rating" else choice_for(lease, "first"))
    aggregate.weigh_labelers(trainer.experiment)
    assert set(Experiment.objects.get().class_prior or ()) == {"pair", "rating"}
    newest = {item["comparison"]: item["decision"] for item in trainer.decisions()["items"]}
    assert newest == dict.fromkeys(pairs, "first") | dict.fromkeys(ratings, "4")


@EVERY_OTHER
def test_examples_show_the_known_answer_where_it_is(
    trainer: Trainer, browser: Browser, researcher_browser: Client, kind: Kind
) -> None:
    [uuid] = ask(trainer, kind)
    page = f"/experiments/{trainer.name}/examples/{uuid}"
    refused = researcher_browser.post(page, {"better": "first"})
    assert refused.status_code == 409
    assert researcher_browser.post(page, {"better": kind.classes[0]}).status_code == 302
    [shown] = browser.get(f"{trainer.path}/examples")["items"]
    swapped = bool(Example.objects.get().pk % 2)
    assert shown["kind"] == kind.name
    assert len(shown["items"]) == kind.size
    assert kind.meaning_of(shown["better"], swapped=swapped) == kind.classes[0]
    for address in ("", f"comparisons/{uuid}", "comparisons"):
        assert researcher_browser.get(f"/experiments/{trainer.name}/{address}").status_code == 200


def test_a_decision_becomes_the_known_answer(trainer: Trainer, browser: Browser) -> None:
    ask(trainer, KINDS["best_worst"])
    [lease] = lease_of(browser)
    browser.answer(lease, choice_for(lease, "2>3"))
    every = Comparison.objects.all()
    assert moderation.make_gold(every, "first") == 0
    assert moderation.make_gold(every) == 1
    assert Comparison.objects.get().gold == "2>3"


@EVERY_KIND
def test_labelers_read_what_they_are_asked(trainer: Trainer, browser: Browser, kind: Kind) -> None:
    ask(trainer, PAIR)
    ask(trainer, kind)
    trainer.put(highest_rating="a full flip")
    html = browser.client.get(f"/experiments/{trainer.name}/label").content.decode()
    assert f'data-state="loading" data-kind="{kind.name}"' in html
    choices = re.findall(rf'data-kinds="{kind.name}"[^>]*role="group".*?</div>', html, re.DOTALL)[0]
    assert "best</bdi>" not in html
    pressed = set(re.findall(r'data-choice="(\w+)"', choices))
    assert pressed == {part for choice in kind.choices for part in choice.split(">")}
    invite = trainer.experiment.invites.create(kind="anonymous", expires_at=timezone.now() + timedelta(1))
    said = {
        "pair": "does this better.",
        "graded": "slightly",
        "rating": "Rate how well",
        "best_worst": "worst",
    }
    assert said[kind.name] in Client().get(invites.link_of(invite, "")).content.decode()


@EVERY_KIND
def test_clips_have_addresses(trainer: Trainer, researcher_browser: Client, kind: Kind) -> None:
    [uuid] = ask(trainer, kind)
    for at, item in enumerate(ITEMS):
        response = researcher_browser.get(f"/experiments/{trainer.name}/comparisons/{uuid}/{item}")
        assert response.status_code == (302 if at < kind.size else 404)


@pytest.mark.both_databases
def test_a_backup_needs_every_clip_and_no_others(trainer: Trainer) -> None:
    for kind in KINDS.values():
        ask(trainer, kind)
    experiments.add_episode(trainer.experiment, 7, Comparison.objects.earliest("pk").first_key)
    with connection.cursor() as cursor:
        cursor.execute(NEEDED_CLIPS)
        needed = keys_in(cursor.fetchall())
    assert needed == {key for row in Comparison.objects.all() for key in row.keys}
    assert len(needed) == sum(kind.size for kind in KINDS.values())
