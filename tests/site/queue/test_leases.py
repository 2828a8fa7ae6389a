"""Test who is given which pair, for how long, and that giving it does not read all that there ever was."""

import dataclasses
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from human_feedback_site.environment import POSTGRESQL_OPTIONS
from human_feedback_site.feedback.models import Comparison, Labeler, Lease, Participation
from human_feedback_site.feedback.queue import leases
from human_feedback_site.feedback.queue.participants import Participant, participant_of
from human_feedback_site.feedback.selectors.browse import Filters, Matching
from human_feedback_site.feedback.services.accounts import participation_in
from tests.site.conftest import Browser, Invited, Trainer, expire, new_invite, side_of

pytestmark = pytest.mark.both_databases


def uuids(leases: list[Any]) -> list[str]:
    return [lease["uuid"] for lease in leases]


def pairs(leases: list[Any]) -> list[str]:
    return [lease["comparison"] for lease in leases]


def test_lease_shows_two_clips_and_nothing_else(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    reply = browser.ask()
    [lease] = reply["leases"]
    assert set(lease) == {"uuid", "comparison", "kind", "items", "left", "right", "expires_in"}
    assert set(lease["left"]) == set(lease["right"]) == {"url"}
    assert lease["expires_in"] == 60
    for side in ("left", "right"):
        assert browser.client.get(lease[side]["url"]).getvalue()
    assert (reply["prompt"], reply["fps"], reply["answered"]) == ("Which hops higher?", 40, 0)


def test_an_answer_ends_its_lease_alone(trainer: Trainer, browser: Browser) -> None:
    trainer.register(2)
    answered, other = browser.lease(2)
    browser.answer(answered)
    live = Lease.objects.filter(expires_at__gt=timezone.now())
    assert [str(lease.uuid) for lease in live] == [other["uuid"]]


def test_sides_are_random_and_fixed(trainer: Trainer, browser: Browser) -> None:
    trainer.register(5)
    for _ in range(8):
        expire(*browser.lease(5))
    swapped = list(Lease.objects.values_list("swapped", flat=True))
    assert len(swapped) == 40
    assert 3 < sum(swapped) < 37  # misses by chance once in fifty million
    [lease] = browser.lease()
    before = Lease.objects.get(uuid=lease["uuid"]).swapped
    browser.lease()
    assert Lease.objects.get(uuid=lease["uuid"]).swapped == before


def test_researcher_sees_the_sides(trainer: Trainer, browser: Browser) -> None:
    trainer.register(8)
    for lease in browser.lease(5):
        detail = trainer.get(f"{trainer.path}/leases/{lease['uuid']}")
        assert detail[side_of(lease, "first")] == {"true_return": 2.0}
        assert detail[side_of(lease, "second")] == {"true_return": 1.0}
        assert detail["comparison"] == lease["comparison"]


def test_links_follow_the_sides(trainer: Trainer, browser: Browser) -> None:
    for comparison in (trainer.comparison() for _ in range(6)):
        trainer.upload(comparison["first"]["key"])
        store = trainer.post(f"{trainer.path}/comparisons", {"comparisons": [comparison]})
        assert store["registered"] == 1
    from human_feedback_site.feedback.media.store import FolderMedia, media_store

    media = media_store()
    assert isinstance(media, FolderMedia)
    for lease in browser.lease(5):
        for which in ("first", "second"):
            token = lease[side_of(lease, which)]["url"].rsplit("/", 1)[1]
            assert media.path_of_link(token).name == f"{which}.mp4"


def test_order_is_priority_then_completeness_then_newest(trainer: Trainer, invite: Invited) -> None:
    [old_pretraining] = trainer.register(priority=0, phase="pretraining")
    [half_done] = trainer.register(priority=1)
    trainer.overlap(2)
    first, second = invite("first"), invite("second")
    first.answer(first.lease()[0])
    [older, newer] = trainer.register(2, priority=1)
    assert pairs(second.lease(5)) == [half_done, newer, older, old_pretraining]


def test_no_comparison_is_leased_twice(trainer: Trainer, invite: Invited) -> None:
    trainer.register(4)
    given = [pair for name in ("a", "b", "c", "d", "e") for pair in pairs(invite(name).lease())]
    assert len(given) == len(set(given)) == 4


def test_overlap_is_the_number_of_labelers_per_comparison(trainer: Trainer, invite: Invited) -> None:
    trainer.register(1)
    trainer.overlap(2)
    assert [len(invite(name).lease()) for name in ("a", "b", "c")] == [1, 1, 0]


def test_held_leases_are_renewed_before_new_ones(trainer: Trainer, browser: Browser) -> None:
    trainer.register(5)
    held = uuids(browser.lease(2))
    Lease.objects.update(expires_at="2000-01-01T00:00:00Z")
    reply = browser.ask(3, held=held)
    assert reply["renewed"] == held
    assert len(reply["leases"]) == 1
    assert browser.ask(3, held=[*held, *uuids(reply["leases"])])["leases"] == []
    assert Lease.objects.filter(expires_at__year=2000).count() == 0


def test_expired_lease_moves_on(trainer: Trainer, invite: Invited) -> None:
    trainer.register()
    sleeper, other = invite("sleeper"), invite("other")
    [lease] = sleeper.lease()
    assert other.lease() == []
    expire(lease)
    [taken] = other.lease()
    assert taken["comparison"] == lease["comparison"]
    reply = sleeper.ask(held=[lease["uuid"]])
    assert (reply["lost"], reply["renewed"], reply["leases"]) == ([lease["uuid"]], [], [])


def test_page_that_lost_its_leases_gets_them_back(trainer: Trainer, browser: Browser) -> None:
    trainer.register(5)
    before = browser.lease(3)
    after = browser.lease(3)  # as after a reload, or when the first reply was lost on the way
    assert uuids(before) == uuids(after)
    assert Lease.objects.count() == 3


def test_asking_for_fewer_gives_no_more(trainer: Trainer, browser: Browser) -> None:
    trainer.register(5)
    browser.lease(3)
    assert len(browser.lease(1)) == 1


def test_one_lease_per_comparison(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    [old] = browser.lease()
    expire(old)
    [new] = browser.lease()
    expire(new)
    reply = browser.ask(2, held=[old["uuid"], new["uuid"]])
    assert len(reply["renewed"]) == len(reply["lost"]) == 1
    assert reply["leases"] == []


def test_expired_leases_return_shown_first_within_the_limit(trainer: Trainer, browser: Browser) -> None:
    held = []
    for _ in range(3):
        Comparison.objects.update(priority=-1)
        trainer.register(3)
        held += browser.lease(3)
        Lease.objects.update(expires_at="2000-01-01T00:00:00Z")
    assert len({lease["comparison"] for lease in held}) == 9
    shown = held[-1]["uuid"]
    reply = browser.ask(3, held=[lease["uuid"] for lease in held], shown=shown)
    assert len(reply["renewed"]) == 3
    assert shown in reply["renewed"]
    assert reply["leases"] == []
    assert len(reply["lost"]) == 6


def test_other_labelers_leases_cannot_be_renewed(trainer: Trainer, invite: Invited) -> None:
    trainer.register()
    [lease] = invite("owner").lease()
    before = Lease.objects.get(uuid=lease["uuid"])
    reply = invite("other").ask(held=[lease["uuid"]], shown=lease["uuid"])
    assert reply["lost"] == [lease["uuid"]]
    after = Lease.objects.get(uuid=lease["uuid"])
    assert (before.expires_at, before.shown) == (after.expires_at, after.shown)


def test_answered_lease_is_not_renewed(browser: Browser, lease: Any) -> None:
    browser.answer(lease)
    assert browser.ask(held=[lease["uuid"]])["lost"] == [lease["uuid"]]


def test_judged_comparison_does_not_come_back(trainer: Trainer, invite: Invited) -> None:
    trainer.overlap(2)
    trainer.register()
    browser = invite("one")
    browser.answer(browser.lease()[0])
    assert browser.lease() == []
    assert len(invite("two").lease()) == 1


def test_prefetched_leases_yield_to_labelers_without_one(trainer: Trainer, invite: Invited) -> None:
    trainer.register(3)
    fast, late, later, last = (invite(name) for name in ("fast", "late", "later", "last"))
    leases = fast.lease(3)
    fast.ask(3, held=uuids(leases), shown=leases[0]["uuid"])
    assert pairs(late.lease(3)) == pairs(leases[2:])
    assert pairs(later.lease(3)) == pairs(leases[1:2])
    assert last.lease(3) == []  # what remains is on screen, or each one's only pair
    reply = fast.ask(3, held=uuids(leases), shown=leases[0]["uuid"])
    assert (reply["renewed"], sorted(reply["lost"])) == (uuids(leases[:1]), sorted(uuids(leases[1:])))


def test_no_lease_is_taken_while_others_are_open(trainer: Trainer, invite: Invited) -> None:
    trainer.register(4)
    leases = invite("one").lease(3)
    [other] = invite("two").lease(3)
    assert other["comparison"] not in pairs(leases)


def test_judged_comparison_is_not_taken_over(trainer: Trainer, invite: Invited) -> None:
    trainer.overlap(2)
    trainer.register(1)
    judge, holder = invite("judge"), invite("holder")
    judge.answer(judge.lease()[0])
    trainer.register(1)
    assert len(holder.lease(2)) == 2
    Comparison.objects.filter(n_labels=0).update(status=Comparison.Status.CANCELLED)
    assert judge.lease() == []


def test_first_answer_to_a_taken_lease_counts(trainer: Trainer, invite: Invited) -> None:
    trainer.register(2)
    slow, quick = invite("slow"), invite("quick")
    _, ahead = slow.lease(2)
    [taken] = quick.lease()
    assert taken["comparison"] == ahead["comparison"]
    assert slow.answer(ahead)["status"] == "counted"
    assert quick.answer(taken)["status"] == "surplus"


def test_active_labelers(trainer: Trainer, invite: Invited) -> None:
    trainer.register(3)
    holding, answering, idle = invite("holding"), invite("answering"), invite("idle")
    [lease] = holding.lease()
    answering.answer(answering.lease()[0])
    [forgotten] = idle.lease()
    expire(forgotten)
    assert trainer.decisions()["active_labelers"] == 2
    expire(lease)
    assert trainer.decisions()["active_labelers"] == 1


def test_open_comparisons_are_counted(trainer: Trainer, browser: Browser) -> None:
    trainer.register(3, phase="pretraining", priority=0)
    trainer.register(2)
    browser.answer(browser.lease()[0])
    feed = trainer.decisions()
    assert (feed["open"], feed["open_training"]) == (4, 1)


@pytest.mark.parametrize("comparisons", [5, 200])
def test_number_of_statements_is_constant(
    trainer: Trainer,
    browser: Browser,
    django_assert_max_num_queries: DjangoAssertNumQueries,
    comparisons: int,
) -> None:
    trainer.register(comparisons)
    with django_assert_max_num_queries(20):
        assert len(browser.lease(3)) == 3


def test_slot_closed_meanwhile(trainer: Trainer, invite: Invited, monkeypatch: pytest.MonkeyPatch) -> None:
    older, newest = trainer.register(2)
    slow = invite("slow")
    quick = Labeler.objects.create(name="quick", user=User.objects.create(), invited_by=trainer.user)
    certain = leases._grant_all

    def overtaken(who: Participant, offered: Any) -> Any:
        for pair in offered:
            if (
                str(pair.comparison.uuid) == newest
            ):  # as if committed between reading the queue and locking its rows
                certain(dataclasses.replace(who, labeler=quick.pk), [pair])
        return certain(who, offered)

    monkeypatch.setattr(leases, "_grant_all", overtaken)
    assert pairs(slow.lease(2)) == [older]
    assert Lease.objects.filter(comparison__uuid=newest).count() == 1


def test_returning_leases_respect_wanted_answers(trainer: Trainer, browser: Browser) -> None:
    """Whatever was answered since the request for them said who asks."""
    held = []
    for _ in range(3):
        Comparison.objects.update(priority=-1)
        trainer.register(1)
        held += browser.lease(1)
        if len(held) < 3:
            Lease.objects.update(expires_at="2000-01-01T00:00:00Z")
    invite = new_invite(trainer.experiment, answers_wanted=2)
    Participation.objects.update(invite=invite)
    participation = Participation.objects.get()
    who = participant_of(participation_in(participation.labeler.user, trainer.name))
    browser.answer(held[2])
    request = leases.LeaseRequest(5, held=[UUID(lease["uuid"]) for lease in held[:2]])
    grant = leases.lease_comparisons(who, request)
    assert (len(grant.renewed), len(grant.new)) == (1, 0)


def plan_of(statement: str) -> str:
    """Return how the database goes about a statement if it can use an index at all."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")  # tables of tests are too small for an index
            cursor.execute("SET LOCAL enable_bitmapscan = off")
        cursor.execute(f"EXPLAIN {'' if connection.vendor == 'postgresql' else 'QUERY PLAN'} {statement}")
        return "\n".join(str(row[-1]) for row in cursor.fetchall())


def sorted_by(plan: str) -> Sequence[str]:
    """Return what PostgreSQL sorts, except the few decisions of one comparison."""
    return [key for key in re.findall(r"Sort Key: (.*)", plan) if key != "u0.seq DESC"]


def statements_with(context: CaptureQueriesContext, *words: str) -> Sequence[str]:
    queries: list[dict[str, Any]] = context.captured_queries
    return [query["sql"] for query in queries if all(word in query["sql"] for word in words)]


HISTORY = 300


def live_through(trainer: Trainer) -> None:
    """Have a past that planners know of: answered pairs, leases that are over, labelers who came and went."""
    answered = Comparison.objects.bulk_create(
        Comparison(
            uuid=uuid4(),
            experiment=trainer.experiment,
            phase="training",
            step=1,
            priority=1,
            first_key="first.mp4",
            second_key="second.mp4",
            status="answered",
            n_labels=1,
        )
        for _ in range(HISTORY)
    )
    ended = timezone.now() - timedelta(days=1)
    Lease.objects.bulk_create(
        Lease(comparison=comparison, labeler=labeler, swapped=False, expires_at=ended)
        for labeler in Labeler.objects.all()
        for comparison in answered
    )
    others = User.objects.bulk_create(User(username=f"past-{number}") for number in range(100))
    labelers = Labeler.objects.bulk_create(
        Labeler(user=user, name=user.username, invited_by=trainer.user) for user in others
    )
    Participation.objects.bulk_create(
        Participation(labeler=labeler, experiment=trainer.experiment) for labeler in labelers
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


@pytest.fixture
def asked(trainer: Trainer, browser: Browser) -> CaptureQueriesContext:
    """The statements of a request for work."""
    trainer.register(3)
    browser.answer(browser.lease()[0])
    live_through(trainer)
    with CaptureQueriesContext(connection) as context:
        assert browser.lease()
    return context


def test_the_queue_is_read_in_its_order(asked: CaptureQueriesContext) -> None:
    [queue] = statements_with(asked, "ORDER BY c.priority DESC")
    plan = plan_of(queue)
    assert "comparison_queue" in plan
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.postgresql_only
def test_lease_queries_have_good_plans(trainer: Trainer, browser: Browser) -> None:
    rounds = POSTGRESQL_OPTIONS["prepare_threshold"] + 1
    trainer.register(rounds)
    for _ in range(rounds):
        browser.answer(browser.lease()[0])
    live_through(trainer)
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        prepared = [statement for (statement,) in cursor.fetchall()]
    assert sum("feedback_lease" in statement for statement in prepared) >= 4
    [queue] = [statement for statement in prepared if "ORDER BY c.priority DESC" in statement]
    plan = plan_of(f"(GENERIC_PLAN) {queue.replace('%', '%%')}")  # whatever its values
    assert "comparison_queue" in plan
    assert "Sort" not in plan


def test_held_leases_are_found_among_live_ones(asked: CaptureQueriesContext) -> None:
    [held] = statements_with(asked, "question_uuid")
    assert "lease_by_labeler" in plan_of(held)


def test_past_leases_use_an_index(trainer: Trainer, browser: Browser) -> None:
    trainer.register(5)
    held = browser.lease(3)
    expire(held[0])
    live_through(trainer)
    with CaptureQueriesContext(connection) as context:
        assert len(browser.ask(4, held=[lease["uuid"] for lease in held])["renewed"]) == 3
    by_number = '"feedback_lease"."uuid" IN'
    for words in ("ORDER BY c.priority DESC", "question_uuid", by_number, 'UPDATE "feedback_lease"'):
        [statement] = statements_with(context, words)
        plan = plan_of(statement)
        assert "Seq Scan" not in plan
        for given in ("SCAN part", "SCAN json_each"):  # of SQLite: what was found; a list of values
            plan = plan.replace(given, "")
        assert "SCAN" not in plan


@pytest.mark.postgresql_only  # SQLite does not see that these indexes will do
@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("decision", ["equal", "cant_tell"])
def test_rare_decisions_are_found_by_an_index(trainer: Trainer, decision: str, order: str) -> None:
    live_through(trainer)
    with CaptureQueriesContext(connection) as context:
        assert list(Matching(trainer.experiment, Filters(decision=decision, order=order))[:25]) == []
    [seldom] = statements_with(context, '"feedback_decision"."decision"')
    plan = plan_of(seldom)
    assert "decision_seldom" in plan
    assert not sorted_by(plan)


@pytest.mark.postgresql_only
@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_unlabeled_comparisons_are_found_by_an_index(trainer: Trainer, order: str) -> None:
    uuids = trainer.register(2)
    live_through(trainer)
    with CaptureQueriesContext(connection) as context:
        found = Matching(trainer.experiment, Filters(decision="none", order=order))
        assert {str(comparison.uuid) for comparison in found[:25]} == set(uuids)
        assert len(found) == 2
    for statement in statements_with(context, '"feedback_comparison"."n_labels" = 0'):
        plan = plan_of(statement)
        # Either holds the pairs without a label one after the other.
        assert "comparison_unlabeled" in plan or "comparison_by_labels" in plan
        assert not sorted_by(plan)


@pytest.mark.parametrize("order", ["priority", "labels"])
def test_the_orders_of_the_browser_are_read_without_sorting(trainer: Trainer, order: str) -> None:
    live_through(trainer)
    with CaptureQueriesContext(connection) as context:
        assert len(Matching(trainer.experiment, Filters(order=order))[:25]) == 25
    [page] = statements_with(context, "LIMIT 25")
    plan = plan_of(page)
    assert f"comparison_by_{order}" in plan
    assert not sorted_by(plan)
    assert "TEMP B-TREE" not in plan


def test_a_trainer_counts_what_is_open_alone(trainer: Trainer) -> None:
    trainer.register(3)
    live_through(trainer)
    with CaptureQueriesContext(connection) as context:
        trainer.decisions()
    [count] = statements_with(context, "COUNT", '"feedback_comparison"."phase"')
    plan = plan_of(count)
    assert "comparison_queue" in plan
