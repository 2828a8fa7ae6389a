"""The comparison browser: what it finds and shows; how a comparison becomes an example for labelers."""

import re
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext

from human_feedback_site.feedback.kinds import KINDS
from human_feedback_site.feedback.models import Comparison, Decision, Example, Experiment, Label, Labeler
from human_feedback_site.feedback.pages import browser as pages
from human_feedback_site.feedback.selectors import browse
from tests.site.conftest import Browser, Invited, Trainer, side_of
from tests.site.pages.conftest import html_of
from tests.site.test_kinds_of_questions import ask

PATH = "/experiments/hopper/comparisons"
LINK = re.compile(r'href="/experiments/hopper/comparisons/([0-9a-f-]{36})"')


def text(client: Client, path: str = PATH) -> str:
    return html_of(client, path)


def found(client: Client, query: str = "") -> list[str]:
    """The UUIDs that are listed, in order."""
    return LINK.findall(text(client, f"{PATH}?{query}"))


@pytest.fixture
def pairs(trainer: Trainer, invite: Invited) -> dict[str, str]:
    """One pair in each state, by its name; judged by ann and bob."""
    ann, bob = invite("ann"), invite("bob")
    trainer.overlap(2)
    split, agreed, undone = trainer.register(3)
    for who, choices in ((ann, ("first", "first", "first")), (bob, ("second", "first"))):
        leases = {lease["comparison"]: lease for lease in who.lease(3)}
        labels = [
            who.answer(leases[uuid], side_of(leases[uuid], choice))
            for uuid, choice in zip((split, agreed, undone), choices, strict=False)
        ]
    ann.undo(Label.objects.filter(comparison__uuid=undone).values("uuid").get())
    [cancelled] = trainer.register()
    trainer.post(f"{trainer.path}/cancel", {"comparisons": [cancelled]})
    [gold] = trainer.register(gold="first")
    Label.objects.update(created_at=Now())
    [waiting] = trainer.register(step=5000, priority=9)
    assert labels
    return {name: uuid for name, uuid in locals().items() if isinstance(uuid, str)}


QUERIES = {
    "": ["waiting", "gold", "cancelled", "undone", "agreed", "split"],
    "order=oldest": ["split", "agreed", "undone", "cancelled", "gold", "waiting"],
    "order=priority": ["waiting", "gold", "cancelled", "undone", "agreed", "split"],
    "order=labels": ["agreed", "split", "waiting", "gold", "cancelled", "undone"],
    "state=waiting": ["waiting"],
    "state=leased": ["undone"],
    "state=answered": ["agreed", "split"],
    "state=decided": ["agreed", "split"],
    "state=cancelled": ["cancelled"],
    "state=gold": ["gold"],
    "decision=first": ["agreed"],
    "decision=equal": ["split"],
    "decision=none": ["waiting", "gold", "cancelled", "undone"],
    "disagreement=on": ["split"],
    "since=101": ["waiting"],
    "since=100&state=answered&disagreement=on": ["split"],
    "state=cancelled&decision=first": [],
}


@pytest.mark.both_databases
def test_comparisons_are_filtered(researcher_browser: Client, pairs: dict[str, str]) -> None:
    names = {uuid: name for name, uuid in pairs.items()}
    listed = {query: [names[uuid] for uuid in found(researcher_browser, query)] for query in QUERIES}
    assert listed == QUERIES


def test_filters_combine(trainer: Trainer, pairs: dict[str, str]) -> None:
    names = {uuid: name for name, uuid in pairs.items()}
    ann, bob = (f"labeler={Labeler.objects.get(name=name).pk}" for name in ("ann", "bob"))
    alone = {query: {*listed} for query, listed in QUERIES.items() if query.count("=") == 1}
    alone |= {ann: {"split", "agreed", "undone"}, bob: {"split", "agreed"}}
    alone |= {f"text={pairs['split'][:13]}": {"split"}}
    combined = [(one, other) for one in alone for other in alone if one.split("=")[0] < other.split("=")[0]]
    assert len(combined) > 100
    for queries in combined:
        form = pages.FilterForm(trainer.experiment, RequestFactory().get(f"/?{'&'.join(queries)}"))
        matching = browse.Matching(trainer.experiment, form.filters())
        found = [names[str(each.uuid)] for each in matching[0:20]]
        assert {*found} == alone[queries[0]] & alone[queries[1]], queries
        assert len(found) == len(matching), queries


@pytest.mark.both_databases
def test_search_by_labeler_and_uuid_prefix(researcher_browser: Client, pairs: dict[str, str]) -> None:
    ann, bob = (Labeler.objects.get(name=name) for name in ("ann", "bob"))
    assert len(found(researcher_browser, f"labeler={ann.pk}")) == 3
    assert found(researcher_browser, f"labeler={bob.pk}&disagreement=on") == [pairs["split"]]
    for beginning in (
        pairs["split"],
        pairs["split"].upper(),
        pairs["split"][:12],
        pairs["split"].replace("-", ""),
    ):
        assert found(researcher_browser, f"text={beginning}") == [pairs["split"]]
    assert found(researcher_browser, f"text={uuid4()}") == []
    assert len(found(researcher_browser, "text=-")) == 6


NONSENSE = ["state=odd", "decision=maybe", "labeler=0", "labeler=x", "since=-1", "text=xyz", "text=a%00"]
NONSENSE += ["order=odd", "page=x", "page=-1", "since=1e5", f"labeler={10**30}"]
NONSENSE += [f"since={10**30}", "text=" + "a" * 37]


def test_invalid_filters_are_ignored_with_a_note(researcher_browser: Client, pairs: dict[str, str]) -> None:
    html = {query: text(researcher_browser, f"{PATH}?{query}") for query in NONSENSE}
    assert {query: len(LINK.findall(html[query])) for query in NONSENSE} == dict.fromkeys(NONSENSE, 6)
    assert [query for query in NONSENSE if 'class="error' not in html[query]] == ["page=x", "page=-1"]


def test_other_labelers_not_offered(researcher_browser: Client, stranger: Trainer, trainer: Trainer) -> None:
    stranger.put(invite="secret-name")
    assert "secret-name" not in text(researcher_browser)


def test_pages_keep_filters(
    trainer: Trainer, researcher_browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "COMPARISONS_PER_PAGE", 2)
    uuids = trainer.register(5)
    assert found(researcher_browser, "order=oldest&page=2") == uuids[2:4]
    html = text(researcher_browser, f"{PATH}?order=oldest&state=waiting&page=2")
    assert 'href="?order=oldest&amp;state=waiting&amp;page=3"' in html
    assert 'href="?order=oldest&amp;state=waiting&amp;page=1"' in html
    assert found(researcher_browser, "order=oldest&page=99") == uuids[4:]


@pytest.mark.both_databases
def test_large_counts_are_estimated(
    trainer: Trainer, researcher_browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "MOST_COUNTED", 2)
    trainer.register(2)
    assert "Not all matching" not in text(researcher_browser)
    trainer.register()
    html = text(researcher_browser)
    assert "Not all matching comparisons are listed" in html
    assert len(LINK.findall(html)) == 2


@pytest.mark.both_databases
def test_rare_choices_are_found_where_frequent(
    researcher_browser: Client, pairs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Decision.objects.filter(comparison__uuid=pairs["agreed"]).earliest("seq")
    Decision.objects.filter(pk=first.pk).update(decision="equal")  # but decided otherwise now
    assert found(researcher_browser, "decision=equal") == [pairs["split"]]
    assert "Not all matching" not in text(researcher_browser, f"{PATH}?decision=equal")
    monkeypatch.setattr(browse, "MOST_NAMED", 1)  # of the two that were ever decided so
    orders = ("newest", "oldest")
    ends = [found(researcher_browser, f"decision=equal&order={order}") for order in orders]
    assert sorted(ends) == [[], [pairs["split"]]]
    for order, listed in zip(orders, ends, strict=True):
        html = text(researcher_browser, f"{PATH}?decision=equal&order={order}")
        assert (
            "Not all matching comparisons are listed"
            if listed
            else "Only some of the comparisons were searched"
        ) in html


def test_scan_for_disagreement_is_bounded(
    researcher_browser: Client, pairs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(researcher_browser, "disagreement=on") == [pairs["split"]]
    assert "Not all matching" not in text(researcher_browser, f"{PATH}?disagreement=on")
    monkeypatch.setattr(browse, "MOST_COMPARED", 1)  # of the two that have several labels
    ends = {
        order: found(researcher_browser, f"disagreement=on&order={order}") for order in ("newest", "oldest")
    }
    assert sorted(ends.values()) == [[], [pairs["split"]]]
    for order, listed in ends.items():
        html = text(researcher_browser, f"{PATH}?disagreement=on&order={order}")
        assert (
            "Not all matching comparisons are listed"
            if listed
            else "Only some of the comparisons were searched"
        ) in html


@pytest.mark.both_databases
def test_number_of_statements_is_constant(
    trainer: Trainer, invite: Invited, researcher_browser: Client
) -> None:
    def statements(path: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            text(researcher_browser, path)
        return len(captured)

    who = invite("ann")
    [uuid] = trainer.register()
    who.answer(who.lease()[0])
    query = f"{PATH}?disagreement=&labeler={Labeler.objects.get(name='ann').pk}&decision=first"
    one = statements(PATH), statements(f"{PATH}/{uuid}")
    assert statements(query) <= one[0] + 1
    for name in ("bob", "eve"):
        more = invite(name)
        trainer.register(3)
        for lease in more.lease(3):
            more.undo(more.answer(lease))
            more.answer(more.lease()[0])
    Label.objects.update(comparison=Comparison.objects.get(uuid=uuid))
    assert (statements(PATH), statements(f"{PATH}/{uuid}")) == one
    assert max(one) <= 8


def test_label_details_are_shown(trainer: Trainer, browser: Browser, researcher_browser: Client) -> None:
    [uuid] = trainer.register()
    label = browser.answer(browser.lease()[0], "equal", response_ms=2140)
    browser.undo(label)
    for path in (PATH, f"{PATH}/{uuid}"):
        html = text(researcher_browser, path)
        assert html.count("<video") == 2
        assert "you" in html
        assert "Equal" in html
        assert "undone</" in html
        assert "2 s" in html
        assert f'datetime="{Label.objects.get().created_at:%Y-%m-%dT%H:%M}' in html


def test_history_of_a_comparison_is_complete(
    trainer: Trainer, browser: Browser, researcher_browser: Client
) -> None:
    [uuid] = trainer.register()
    assert "No one has seen this comparison yet." in text(researcher_browser, f"{PATH}/{uuid}")
    [lease] = browser.lease()
    again = browser.undo(browser.answer(lease, side_of(lease, "first")))["lease"]
    browser.answer(again, "cant_tell")
    html = re.sub(r"<[^>]+>|\s+", " ", text(researcher_browser, f"{PATH}/{uuid}"))
    html = html[html.index("History") :]
    side = side_of(lease, "first").capitalize()  # what the labeler chose, not what that means
    told = [
        f"you {side} (First)",
        "→ First is better",
        f"you {side} (First) undone",
        "decision withdrawn",
    ]
    told += ["you Can’t tell", "→ Can’t tell"]
    squeezed = re.sub(r" +", " ", html)
    places = [squeezed.index(each) for each in told]
    assert places == sorted(places)
    trainer.register()
    browser.lease()
    [other] = Comparison.objects.exclude(uuid=uuid)
    assert "has this comparison on screen" in text(researcher_browser, f"{PATH}/{other.uuid}")


def act(client: Client, uuid: str, action: str) -> Any:
    return client.post(f"{PATH}/{uuid}/act", {"action": action})


def test_another_label_revises_the_decision(
    trainer: Trainer, invite: Invited, researcher_browser: Client
) -> None:
    [uuid] = trainer.register()
    ann, bob = invite("ann"), invite("bob")
    [lease] = ann.lease()
    ann.answer(lease, side_of(lease, "first"))
    assert bob.lease() == []
    assert act(researcher_browser, uuid, "relabel").headers["Location"] == f"{PATH}/{uuid}"
    assert ann.lease() == []  # who judged it is not asked again
    [lease] = bob.lease()
    bob.answer(lease, side_of(lease, "second"))
    assert [item["decision"] for item in trainer.decisions()["items"]] == ["first", "equal"]
    assert Comparison.objects.get().status == "answered"


def test_cancel_and_reopen(trainer: Trainer, browser: Browser, researcher_browser: Client) -> None:
    [uuid] = trainer.register()
    act(researcher_browser, uuid, "cancel")
    assert browser.lease() == []
    assert trainer.get(f"{trainer.path}/comparisons")["items"][0]["status"] == "cancelled"
    act(researcher_browser, uuid, "reopen")
    assert len(browser.lease()) == 1


REVIEW = "/experiments/hopper/review"


def test_review_walks_through_matches(pairs: dict[str, str], researcher_browser: Client) -> None:
    html = text(researcher_browser, f"{REVIEW}?labeler=&state=decided&page=1")
    assert "1 / 2" in html
    assert 'rel="next" aria-keyshortcuts="J" href="?labeler=&amp;state=decided&amp;page=2"' in html
    before, after = html.split('id="said"')
    assert after.startswith(" hidden>")  # until the researcher has chosen
    assert "ann" in after
    assert not {"ann", "true return", "equal.mp4"} & {*before.split()}
    assert pairs["split"] in before
    assert pairs["agreed"] in text(researcher_browser, f"{REVIEW}?state=decided&page=2")
    assert pairs["split"] in text(researcher_browser, f"{REVIEW}?disagreement=on&page=2")  # the only one
    assert "No comparisons match these filters" in text(researcher_browser, f"{REVIEW}?decision=second")


def settle(client: Client, uuid: str, choice: str) -> Any:
    return client.post(f"{PATH}/{uuid}/act", {"action": "settle", "choice": choice, "review": "page=2"})


@pytest.mark.both_databases
def test_settled_comparison_keeps_its_decision(
    trainer: Trainer, invite: Invited, researcher_browser: Client
) -> None:
    trainer.overlap(3)
    [uuid] = trainer.register()
    ann, bob = invite("ann"), invite("bob")
    ann.answer(lease := ann.lease()[0], side_of(lease, "first"))
    [late] = bob.lease()
    assert settle(researcher_browser, uuid, "right").headers["Location"] == f"{REVIEW}?page=2"
    assert invite("eve").lease() == []
    bob.answer(late, side_of(late, "first"))
    trainer.overlap(5)
    assert invite("dan").lease() == []
    told = [(item["decision"], item["probability"]) for item in trainer.decisions()["items"]]
    assert {*told[1:]} == {("second", 0.0)}
    [row] = trainer.get(f"{trainer.path}/comparisons")["items"]
    assert (row["settled"], row["status"], row["decision"]) == ("second", "answered", "second")
    assert "Settled by ada." in text(researcher_browser, f"{PATH}/{uuid}")
    act(researcher_browser, uuid, "unsettle")
    assert trainer.decisions()["items"][-1]["decision"] == "first"
    assert len(invite("fay").lease()) == 1


@pytest.mark.parametrize(
    ("kind", "choice", "answer", "wrong"),
    [
        ("graded", "slightly_left", "slightly_first", "left"),
        ("best_worst", "2>4", "2>4", "2>2"),
        ("rating", "cant_tell", "cant_tell", "4"),  # people's scales differ
    ],
)
def test_every_kind_is_settled(
    trainer: Trainer, researcher_browser: Client, kind: str, choice: str, answer: str, wrong: str
) -> None:
    [uuid] = ask(trainer, KINDS[kind])
    assert f'data-kinds="{kind}"' in text(researcher_browser, REVIEW)
    assert settle(researcher_browser, uuid, wrong).status_code == 409
    assert settle(researcher_browser, uuid, choice).status_code == 302
    [item] = trainer.decisions()["items"]
    assert (item["decision"], Comparison.objects.get().status) == (answer, "answered")
    act(researcher_browser, uuid, "unsettle")
    assert trainer.decisions()["items"][-1]["decision"] is None
    assert Comparison.objects.get().status == "open"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("random", "Asked at random"),
        ("attention_check", "Asked as an attention check"),
        ("disagreement:5:5", "Asked because the models disagreed 5 to 5"),
        ("disagreement:4:0:3:3", "Asked because the models disagreed 4 to 3 to 3"),
        ("disagreement:10:0", "Asked because the models disagreed<"),
        ("disagreement", "Asked because the models disagreed<"),
    ],
)
def test_reason_is_shown_to_researchers_only(
    trainer: Trainer, browser: Browser, researcher_browser: Client, reason: str, said: str
) -> None:
    asked = trainer.comparison()
    for described in ({**asked, "reason": reason}, asked):  # a restarted trainer doesn't know it
        trainer.post(f"{trainer.path}/comparisons", {"comparisons": [described]})
    for path in (f"{PATH}/{asked['uuid']}", REVIEW):
        assert said in text(researcher_browser, path).replace(" <", "<")
    assert trainer.get(f"{trainer.path}/comparisons")["items"][0]["reason"] == reason
    seen = f"{browser.lease()} {text(browser.client, '/experiments/hopper/label')}"
    assert reason not in seen
    assert said not in seen


def test_requested_labels_can_be_withdrawn(
    trainer: Trainer, invite: Invited, researcher_browser: Client
) -> None:
    trainer.overlap(3)
    [uuid] = trainer.register()
    ann, bob = invite("ann"), invite("bob")
    ann.answer(ann.lease()[0])
    act(researcher_browser, uuid, "cancel")
    assert bob.lease() == []
    comparison = Comparison.objects.get()
    assert (comparison.status, comparison.wanted, comparison.n_labels) == ("answered", 1, 1)


@pytest.mark.parametrize(
    ("status", "action"),
    [("answered", "cancel"), ("cancelled", "relabel"), ("open", "reopen"), ("gold", "relabel")],
)
def test_misfit_actions(trainer: Trainer, researcher_browser: Client, status: str, action: str) -> None:
    [uuid] = trainer.register()
    Comparison.objects.update(status=status)
    assert act(researcher_browser, uuid, action).status_code == 409
    assert Comparison.objects.get().status == status
    assert act(researcher_browser, uuid, "explode").status_code == 400


def test_comparisons_without_clips_are_not_requested(trainer: Trainer, researcher_browser: Client) -> None:
    [uuid] = trainer.register()
    Comparison.objects.update(status="answered", n_labels=1)
    Experiment.objects.update(media_deleted_at=Now())
    assert act(researcher_browser, uuid, "relabel").status_code == 409
    html = text(researcher_browser, f"{PATH}/{uuid}")
    assert "The clips are no longer available" in html
    assert "<video" not in html


def test_names_are_escaped(label: Any, researcher_browser: Client) -> None:
    Labeler.objects.update(name="<script>alert(1)</script>")
    for path in (PATH, f"{PATH}/{Comparison.objects.get().uuid}"):
        assert "<script>alert" not in text(researcher_browser, path)


EXPERIMENT_PATH = "/experiments/hopper/"
LESSON = {"better": "second", "explanation": "It <b>lands</b>.", "practice": "on", "page": "1"}


@pytest.fixture
def uuid(trainer: Trainer) -> str:
    """A comparison that can be an example."""
    return trainer.register()[0]


def test_example_is_shown_and_no_longer_asked(
    trainer: Trainer, browser: Browser, researcher_browser: Client, uuid: str
) -> None:
    reply = researcher_browser.post(f"{EXPERIMENT_PATH}examples/{uuid}", LESSON)
    assert reply.headers["Location"] == f"{EXPERIMENT_PATH}?page=1#comparison-{uuid}"
    [item] = browser.get(f"{trainer.path}/examples")["items"]
    assert (item["explanation"], item["practice"]) == ("It <b>lands</b>.", True)
    assert browser.lease() == []
    html = researcher_browser.get(EXPERIMENT_PATH).content.decode()
    assert f'id="comparison-{uuid}"' in html
    assert "practice question</span>" in html
    assert "Use as an example" not in html


def test_example_is_undone(trainer: Trainer, browser: Browser, researcher_browser: Client, uuid: str) -> None:
    researcher_browser.post(f"{EXPERIMENT_PATH}examples/{uuid}", {"better": "first"})
    assert "example</span>" in researcher_browser.get(EXPERIMENT_PATH).content.decode()
    for _ in range(2):
        assert researcher_browser.post(f"{EXPERIMENT_PATH}examples/{uuid}/remove").status_code == 302
    assert browser.get(f"{trainer.path}/examples") == {"items": []}


def test_decision_is_the_suggested_answer(
    trainer: Trainer, browser: Browser, researcher_browser: Client, uuid: str
) -> None:
    [lease] = browser.lease()
    browser.answer(lease, side_of(lease, "second"))
    assert '<option value="second" selected>' in researcher_browser.get(EXPERIMENT_PATH).content.decode()
    researcher_browser.post(f"{EXPERIMENT_PATH}examples/{uuid}", LESSON)
    assert Comparison.objects.get().status == "answered"  # what was said of it stands


def test_hidden_comparisons_are_no_examples(trainer: Trainer, researcher_browser: Client, uuid: str) -> None:
    Comparison.objects.update(status="gold", gold="first")
    assert "Use as an example" not in researcher_browser.get(EXPERIMENT_PATH).content.decode()
    assert researcher_browser.post(f"{EXPERIMENT_PATH}examples/{uuid}", LESSON).status_code == 409
    Comparison.objects.update(status="answered", gold=None)
    Experiment.objects.update(media_deleted_at=Now())
    assert "Use as an example" not in researcher_browser.get(EXPERIMENT_PATH).content.decode()
    assert researcher_browser.post(f"{EXPERIMENT_PATH}examples/{uuid}", LESSON).status_code == 409
    assert not Example.objects.exists()


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({}, "Choose the correct answer."),
        ({"better": "left"}, "Choose the correct answer."),
        (
            {**LESSON, "explanation": "a" * 501},
            "The explanation must not be longer than 500 characters.",
        ),
        ({**LESSON, "explanation": "a\0"}, "Null characters are not allowed."),
    ],
)
def test_invalid_examples(researcher_browser: Client, uuid: str, form: dict[str, str], reason: str) -> None:
    response = researcher_browser.post(f"{EXPERIMENT_PATH}examples/{uuid}", form)
    assert response.status_code == 400
    assert reason in response.content.decode()
    assert not Example.objects.exists()
