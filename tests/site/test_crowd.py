"""Several labelers for a pair, gold pairs, repeats, and what becomes of labelers who do not look."""

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection
from django.db.models import Count
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from human_feedback_site.feedback.models import (
    Comparison,
    Experiment,
    Label,
    Labeler,
    Lease,
    Participation,
)
from human_feedback_site.feedback.models.querysets import live_leases
from human_feedback_site.feedback.queue import leases
from human_feedback_site.feedback.queue.attention_checks import REPEAT_AFTER, falls_due, find_check_pair
from human_feedback_site.feedback.queue.participants import Participant, participant_of
from human_feedback_site.feedback.services import accounts, moderation
from human_feedback_site.feedback.services.accounts import participation_in
from tests.site.conftest import Browser, Invited, Trainer, own_connection, side_of

pytestmark = pytest.mark.both_databases

# The ORM locks a row before it changes it and reads it again after an UPDATE, which has no RETURNING.
MOST_TO_ANSWER = 13  # and one that looks for webhooks if the answer stops the labeler
MOST_AT_FIRST = 4  # more, until there is a row that says how a labeler does; or for a second look
TRANSACTION = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE")


def pairs(leases: list[Any]) -> list[str]:
    return [lease["comparison"] for lease in leases]


def setting(**values: Any) -> None:
    Experiment.objects.update(**values)


def grow_old(*leases: Any) -> None:
    """Let leases have been given a minute ago; they go on being live."""
    from datetime import timedelta

    uuids = [lease["uuid"] for lease in leases]
    Lease.objects.filter(uuid__in=uuids).update(created_at=Now() - timedelta(minutes=1))


# Overlap


def test_a_share_of_the_comparisons_has_more_labelers(trainer: Trainer) -> None:
    trainer.overlap(1, more=3, share=0.25)
    trainer.register(80)
    wanted = Counter(Comparison.objects.values_list("wanted", flat=True))
    assert wanted.keys() == {1, 3}
    assert 15 <= wanted[3] <= 25
    before = set(Comparison.objects.filter(wanted=3).values_list("pk", flat=True))
    trainer.overlap(2, more=5, share=0.25)
    assert set(Comparison.objects.filter(wanted=5).values_list("pk", flat=True)) == before


def test_a_larger_overlap_opens_what_was_answered(trainer: Trainer, invite: Invited) -> None:
    trainer.register(2)
    one, two = invite("one"), invite("two")
    [first, _] = leases = one.lease(2)
    for lease in leases:
        one.answer(lease)
    cancelled = trainer.register()
    trainer.post(f"{trainer.path}/cancel", {"comparisons": cancelled})
    assert two.lease(5) == []
    trainer.overlap(2)
    assert trainer.decisions()["open"] == 2
    assert one.lease(5) == []
    assert set(pairs(two.lease(5))) == set(pairs(leases))
    trainer.overlap(1)
    assert trainer.decisions()["open"] == 0
    assert first["comparison"] in pairs(leases)


def test_larger_overlap_skips_comparisons_without_clips(trainer: Trainer, label: Any) -> None:
    setting(media_deleted_at=Now())
    trainer.overlap(2)
    assert Comparison.objects.get().status == Comparison.Status.ANSWERED


# Gold


@pytest.fixture
def gold(trainer: Trainer) -> list[str]:
    """Many pairs that the first clip is known to win, shown each time."""
    setting(gold_rate=1.0)
    return trainer.register(12, gold="first")


def test_gold_pairs_look_like_others(trainer: Trainer, browser: Browser) -> None:
    trainer.register(10)
    [known] = trainer.register(gold="second")
    setting(gold_rate=1.0)
    reply = browser.ask(3)
    assert known in pairs(reply["leases"])
    assert len({frozenset(lease) for lease in reply["leases"]}) == 1
    answers = [browser.answer(lease) for lease in reply["leases"]]
    assert {(frozenset(answer), answer["status"]) for answer in answers} == {
        (frozenset({"uuid", "status", "answered"}), "counted")
    }
    assert [answer["answered"] for answer in answers] == [1, 2, 3]


def test_a_labeler_sees_each_gold_pair_once(gold: list[str], browser: Browser) -> None:
    setting(stop_failures=100)
    seen: list[str] = []
    while leases := browser.lease(2):
        seen += pairs(leases)
        for lease in leases:
            browser.answer(lease)
    assert sorted(seen) == sorted(gold)


def test_gold_labels_are_no_decisions(gold: list[str], trainer: Trainer, browser: Browser) -> None:
    for _ in range(3):
        browser.answer(browser.lease()[0])
    feed = trainer.decisions()
    assert (feed["last_seq"], feed["items"], feed["open"]) == (0, [], 0)
    assert set(Label.objects.values_list("status", flat=True)) == {"gold"}


def test_gold_takes_no_place(gold: list[str], invite: Invited) -> None:
    held = [pairs(invite(name).lease(1)) for name in ("a", "b", "c")]
    assert all(held)
    Comparison.objects.exclude(uuid=held[0][0]).delete()
    assert pairs(invite("d").lease(1)) == held[0]


def test_gold_failures_stop(gold: list[str], trainer: Trainer, browser: Browser) -> None:
    setting(warn_failures=2, stop_failures=4)
    notices = []
    for _ in range(6):
        reply = browser.ask()
        notices.append(reply["notice"])
        for lease in reply["leases"]:
            browser.answer(lease, side_of(lease, "second"))
    assert notices == [None, None, "warned", "warned", "stopped", "stopped"]
    assert browser.lease(5) == []
    assert Participation.objects.get().gold_checks == "0000"


def test_stopped_labelers_leases(gold: list[str], trainer: Trainer, invite: Invited) -> None:
    setting(stop_failures=1)
    trainer.register()
    bad, good = invite("bad"), invite("good")
    known, real = bad.lease(2)
    bad.answer(known, side_of(known, "second"))
    setting(gold_rate=0.0)
    assert bad.ask(held=[real["uuid"]])["lost"] == [real["uuid"]]
    assert pairs(good.lease()) == pairs([real])
    assert bad.answer(real)["status"] == "surplus"


def test_a_stopped_labeler_can_be_readmitted(gold: list[str], browser: Browser) -> None:
    setting(stop_failures=1)
    [lease] = browser.lease()
    browser.answer(lease, side_of(lease, "second"))
    assert browser.lease() == []
    assert moderation.readmit(Participation.objects.all()) == 1
    reply = browser.ask()
    assert (len(reply["leases"]), reply["notice"]) == (1, None)
    assert moderation.stop(Participation.objects.all()) == 1
    assert browser.ask()["notice"] == "stopped"


def test_right_answers_to_gold_are_no_failures(gold: list[str], browser: Browser) -> None:
    for _ in range(11):
        [lease] = browser.lease()
        browser.answer(lease, side_of(lease, "first"))
    assert browser.ask()["notice"] is None
    assert Participation.objects.get().gold_checks == "1" * 10


def test_undone_gold_answer_returns_the_same_comparison(gold: list[str], browser: Browser) -> None:
    [lease] = browser.lease()
    label = browser.answer(lease)
    again = browser.undo(label)["lease"]
    assert again["comparison"] == lease["comparison"]
    assert browser.answer(again)["status"] == "counted"
    assert Participation.objects.get().answered == 1


def test_one_gold_lease_gives_one_label_that_looks_counted(gold: list[str], browser: Browser) -> None:
    [lease] = browser.lease()
    assert [browser.answer(lease)["status"] for _ in range(2)] == ["counted", "surplus"]


def test_gold_for_large_labeler_ids(gold: list[str], trainer: Trainer, browser: Browser) -> None:
    browser.ask()
    user = Labeler.objects.get(name="you").user
    newcomer = replace(participant_of(participation_in(user, trainer.name)), labeler=2**31 - 1)
    found = find_check_pair(newcomer, Lease.Purpose.GOLD, ["pair"])
    assert found is not None
    assert str(found.uuid) in gold


def test_a_pair_made_gold_is_decided_for_its_trainer(trainer: Trainer, browser: Browser) -> None:
    [uuid] = trainer.register()
    assert moderation.make_gold(Comparison.objects.all(), "second") == 1
    [item] = trainer.decisions()["items"]
    assert (item["comparison"], item["decision"], item["probability"]) == (uuid, "second", 0.0)
    assert trainer.decisions()["open"] == 0
    assert browser.lease() == []  # none is due
    assert moderation.make_ordinary(Comparison.objects.all()) == 1
    assert trainer.decisions()["items"][-1]["decision"] is None
    assert pairs(browser.lease()) == [uuid]


def test_a_registered_gold_pair_that_is_gold_no_longer_is_not_asked_about(trainer: Trainer) -> None:
    trainer.register(gold="equal")
    moderation.make_ordinary(Comparison.objects.all())
    assert Comparison.objects.get().status == Comparison.Status.CANCELLED
    assert trainer.decisions()["last_seq"] == 0


def test_registered_comparison_may_have_become_gold(trainer: Trainer) -> None:
    body = {"comparisons": [trainer.comparison()]}
    trainer.post(f"{trainer.path}/comparisons", body)
    moderation.make_gold(Comparison.objects.all(), "first")
    assert trainer.post(f"{trainer.path}/comparisons", body) == {"registered": 0, "existing": 1}
    body["comparisons"][0]["gold"] = "second"
    assert trainer.send("POST", f"{trainer.path}/comparisons", body).status_code == 409


@pytest.mark.parametrize("rate", [0.05, 0.3, 1 / 3, 0.5, 1.0])
def test_checks_fall_due_at_their_rate_at_places_that_differ(rate: float) -> None:
    due = {name: [n for n in range(600) if falls_due(rate, n, name)] for name in ("a", "b")}
    for places in due.values():
        assert abs(len(places) - 600 * rate) <= 2
        assert max(b - a for a, b in itertools.pairwise(places)) <= 2 / rate + 1
    assert due["a"] != due["b"] or rate == 1.0
    assert not any(falls_due(0.0, n, "a") for n in range(100))


# Time of watching


def test_too_fast_answers_warn_and_stop(trainer: Trainer, browser: Browser) -> None:
    trainer.register(9)
    setting(min_watch_ms=1000, warn_failures=1, stop_failures=3)
    notices = []
    for _ in range(4):
        reply = browser.ask()
        notices.append(reply["notice"])
        for lease in reply["leases"]:
            grow_old(lease)
            browser.answer(lease, shown_ms=300)
    assert notices == [None, "warned", "warned", "stopped"]
    assert Participation.objects.get().watch_checks == "000"


@pytest.mark.parametrize("said", [{"shown_ms": 5000}, {"shown_ms": None, "response_ms": 5000}], ids=str)
def test_lease_age_bounds_watch_time(trainer: Trainer, browser: Browser, said: dict[str, Any]) -> None:
    trainer.register(2)
    setting(min_watch_ms=1000)
    old, new = browser.lease(2)
    grow_old(old)
    browser.answer(old, **said)
    browser.answer(new, **said)
    assert Participation.objects.get().watch_checks == "10"


def test_a_pair_that_came_back_by_undo_need_not_be_watched_again(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    setting(min_watch_ms=1000)
    [lease] = browser.lease()
    grow_old(lease)
    label = browser.answer(lease, shown_ms=2000)
    Label.objects.update(created_at=Now())
    browser.answer(browser.undo(label)["lease"], shown_ms=100)
    assert Participation.objects.get().watch_checks == "1"


# Repeats


def test_repeats_come_late_and_once(trainer: Trainer, browser: Browser) -> None:
    trainer.register(REPEAT_AFTER + 5)
    setting(repeat_rate=1.0)
    seen = []
    for _ in range(REPEAT_AFTER + 5):
        [lease] = browser.lease()
        seen.append(lease["comparison"])
        assert browser.answer(lease, side_of(lease, "first"))["status"] == "counted"
    places = {pair: [place for place, other in enumerate(seen) if other == pair] for pair in seen}
    repeats = {pair: found for pair, found in places.items() if len(found) > 1}
    assert len(repeats) >= 2
    assert all(second - first > REPEAT_AFTER for first, second in repeats.values())
    assert Label.objects.filter(status="repeat").count() == len(repeats)
    feed = trainer.decisions()
    assert feed["last_seq"] == len(seen) - len(repeats)
    assert {item["n_labels"] for item in feed["items"]} == {1}


# A bounded number of statements


def most_to_ask() -> int:
    """A request for work waits for its turn by one statement more on PostgreSQL."""
    return 13 if connection.vendor == "postgresql" else 12


def statements(action: Callable[[], Any]) -> list[str]:
    """Return the statements of a request on a kept connection, including its health check."""
    connection.health_check_done = False  # type: ignore[attr-defined]
    with (
        patch.object(connection, "is_usable", wraps=connection.is_usable) as tried,
        CaptureQueriesContext(connection) as captured,
    ):
        action()
    said = [query["sql"] for query in captured if not query["sql"].strip().startswith(TRANSACTION)]
    return said + ["trial of the connection"] * tried.call_count


def test_other_requests_try_the_connection_first(trainer: Trainer) -> None:
    assert "trial of the connection" in statements(trainer.decisions)


def stopped() -> int:
    """Return the number of labelers who have failed too many checks."""
    return Participation.objects.exclude(stopped_at=None).count()


@pytest.mark.parametrize("overlap", [1, 3])
def test_a_request_takes_few_statements(trainer: Trainer, invite: Invited, overlap: int) -> None:
    trainer.overlap(overlap)
    trainer.register(40)
    trainer.register(40, gold="first")
    setting(min_watch_ms=100)
    others = [invite(f"other-{number}") for number in range(2)]
    for other in others:
        for lease in other.lease(2):
            other.answer(lease)
    one = invite("one")
    one.ask(3)  # a first visit makes a few rows
    lost = one.ask(3)["leases"]
    assert len(lost) == 3
    seen: dict[str, int] = {}

    def most(name: str, action: Callable[[], Any]) -> None:
        seen[name] = max(seen.get(name, 0), len(statements(action)))

    most("lost sight of all", lambda: one.ask(3))
    for gold_rate, repeat_rate in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)):
        setting(gold_rate=gold_rate, repeat_rate=repeat_rate)
        for _ in range(2):
            held = one.ask(3)["leases"]
            if held:
                before = stopped()
                said = statements(lambda: one.answer(held[0]))  # noqa: B023
                assert len(said) <= MOST_TO_ANSWER + (stopped() - before), said
                rest = [lease["uuid"] for lease in held[1:]]
                most("next", lambda: one.ask(3, held=rest, shown=rest[0] if rest else None))  # noqa: B023
    assert max(seen.values()) <= most_to_ask(), seen
    assert set(Label.objects.values_list("status", flat=True)) >= {"counted"}


@pytest.mark.parametrize(
    ("others", "held", "empty_handed_before"),
    [  # each pair of values
        ("took nothing", 0, False),
        ("took nothing", 1, True),
        ("took nothing", 3, False),
        ("took one", 0, True),
        ("took one", 1, False),
        ("took one", 3, True),
        ("took all", 0, False),
        ("took all", 1, True),
        ("took all", 3, False),
        ("fetched all ahead", 0, True),
        ("fetched all ahead", 1, False),
        ("fetched all ahead", 3, True),
    ],
)
def test_coming_back_after_a_break_takes_few_statements(
    trainer: Trainer, invite: Invited, held: int, others: str, empty_handed_before: bool
) -> None:
    trainer.register(5)
    trainer.register(2, gold="first")
    one, other = invite("one"), invite("other")
    uuids = [lease["uuid"] for lease in one.lease(3)]
    Lease.objects.update(expires_at=Now())
    takes = {"took nothing": 0, "took one": 1}.get(others, 5)
    assert not takes or len(other.lease(takes)) == takes
    if others == "took all":
        Lease.objects.update(shown=True)
    Participation.objects.update(empty_since=Now() if empty_handed_before else None)
    setting(gold_rate=1.0)
    given: list[Any] = []
    said = statements(lambda: given.append(one.ask(3, held=uuids[:held])))
    assert len(said) <= most_to_ask(), said
    [reply] = given
    assert bool(reply["renewed"] or reply["leases"])
    assert too_many() == []
    empty = Participation.objects.get(labeler__name="one").empty_since is not None
    assert not empty


def test_whatever_labelers_do_a_request_takes_few_statements(trainer: Trainer, invite: Invited) -> None:
    """Answers, breaks, second tabs and reloads in any order; leases and labels never exceed the overlap."""
    chance = random.Random(7)
    trainer.overlap(1, more=2, share=0.5)
    trainer.register(12)
    trainer.register(3, gold="first")
    setting(gold_rate=0.3, repeat_rate=0.2, stop_failures=100)
    browsers = [invite(f"labeler-{number}") for number in range(3)]
    held: dict[int, list[Any]] = {place: [] for place in range(len(browsers))}
    for browser in browsers:
        browser.ask()
    for step in range(60):
        place = chance.randrange(len(browsers))
        browser, mine = browsers[place], held[place]
        kept = [lease for lease in mine if chance.random() < 0.8]
        count = chance.choice([1, 3, 5])
        replies: list[Any] = []

        def ask() -> None:
            uuids = [lease["uuid"] for lease in kept]  # noqa: B023  (over before the next round)
            shown = uuids[0] if uuids else None
            replies.append(browser.ask(count, held=uuids, shown=shown))  # noqa: B023

        said = statements(ask)
        assert len(said) <= most_to_ask(), said
        held[place] = [lease for lease in kept if lease["uuid"] in replies[0]["renewed"]]
        held[place] += replies[0]["leases"]
        assert len(pairs(held[place])) == len(set(pairs(held[place])))
        assert too_many() == []
        if held[place] and chance.random() < 0.5:
            said = statements(lambda: browser.answer(held[place].pop()))  # noqa: B023
            assert len(said) <= MOST_TO_ANSWER, said
        if chance.random() < 0.3:
            forgotten = [lease.pk for lease in Lease.objects.all() if chance.random() < 0.5]
            Lease.objects.filter(pk__in=forgotten).update(expires_at=Now())
        if step % 20 == 19:
            trainer.register(4)
    assert Label.objects.filter(status="counted").count() > 10


def test_losing_all_races(trainer: Trainer, invite: Invited, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer.register(2)
    one = invite("one")
    one.client.get(f"/experiments/{trainer.name}/label")
    invite("quick")
    quick = Labeler.objects.get(name="quick")
    certain = leases._grant_all
    by_others: list[str] = []

    def overtaken(who: Participant, offered: Any) -> Any:
        with CaptureQueriesContext(connection) as captured:
            certain(replace(who, labeler=quick.pk), offered)
        by_others.extend(query["sql"] for query in captured)
        return certain(who, offered)

    monkeypatch.setattr(leases, "_grant_all", overtaken)
    said = statements(lambda: one.ask(1))
    assert len(said) - len(by_others) <= most_to_ask() + MOST_AT_FIRST, said
    assert too_many() == []


@pytest.mark.parametrize("opened", [True, False], ids=["after the page", "of a script"])
@pytest.mark.parametrize("there", ["pairs", "nothing", "fetched ahead", "on screens"])
def test_first_request_statements(trainer: Trainer, invite: Invited, there: str, opened: bool) -> None:
    if there != "nothing":
        trainer.register(5)
    if there in {"fetched ahead", "on screens"}:
        assert len(invite("other").lease(5)) == 5
        Lease.objects.update(shown=there == "on screens")
    one = invite("one")
    if opened:
        assert one.client.get(f"/experiments/{trainer.name}/label").status_code == 200
    given: list[Any] = []
    said = statements(lambda: given.append(one.ask(3)))
    assert len(said) <= most_to_ask() + MOST_AT_FIRST, said
    assert len(given[0]["leases"]) == {"pairs": 3, "fetched ahead": 2}.get(there, 0)
    [mine] = Participation.objects.filter(labeler__name="one")
    assert (mine.empty_since is None) == bool(given[0]["leases"])


def test_concurrent_first_visit(trainer: Trainer, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer.register(1)
    labeler_in = accounts.labeler_in

    def overtaken(user: Any, name: str) -> tuple[Labeler, Experiment]:
        labeler, experiment = labeler_in(user, name)
        Participation.objects.create(labeler=labeler, experiment=experiment)
        return labeler, experiment

    monkeypatch.setattr(accounts, "labeler_in", overtaken)
    assert len(browser.lease()) == 1
    assert Participation.objects.count() == 1


def test_taking_what_others_only_prefetched_takes_few_statements(trainer: Trainer, invite: Invited) -> None:
    trainer.register(3)
    fast, slow = invite("fast"), invite("slow")
    slow.ask()
    Lease.objects.all().delete()
    fast.lease(3)
    assert len(statements(lambda: slow.ask(3))) <= most_to_ask()
    assert Lease.objects.filter(live_leases(), labeler__name="slow").count() == 1


# Many at once


@pytest.mark.django_db(transaction=True)
def test_gold_at_once(trainer: Trainer, invite: Invited, django_db_blocker: DjangoDbBlocker) -> None:
    trainer.overlap(2, more=3, share=0.5)
    trainer.register(14)
    trainer.register(5, gold="first")
    setting(gold_rate=0.2, repeat_rate=0.2, stop_failures=100)
    browsers = [invite(f"labeler-{number}") for number in range(6)]
    done = threading.Event()
    exceeded: list[tuple[int, int]] = []

    @own_connection
    def watch() -> None:
        while not done.is_set():
            exceeded.extend(too_many())

    @own_connection
    def label(browser: Browser) -> None:
        held: list[Any] = []
        for _ in range(200):
            reply = browser.ask(3, held=[lease["uuid"] for lease in held])
            held = [lease for lease in held if lease["uuid"] in reply["renewed"]] + reply["leases"]
            if not held:
                return
            browser.answer(held.pop(0))

    with ThreadPoolExecutor(len(browsers) + 1) as pool:
        watching = pool.submit(watch)
        for future in [pool.submit(label, browser) for browser in browsers]:
            future.result()
        done.set()
        watching.result()
    for browser in browsers:
        label(browser)
    assert exceeded == too_many() == []
    ordinary = Comparison.objects.exclude(status=Comparison.Status.GOLD)
    assert all(row.n_labels == row.wanted for row in ordinary)
    counted = Label.objects.filter(status=Label.Status.COUNTED).values("comparison")
    judges = counted.annotate(n=Count("pk"), judges=Count("labeler", distinct=True))
    assert all(row["n"] == row["judges"] for row in judges)
    twice = Label.objects.values("comparison", "labeler", "status").annotate(n=Count("pk")).filter(n__gt=1)
    assert not twice.exclude(status="surplus").exists()


def too_many() -> list[tuple[int, int]]:
    """Comparisons with more labels and live leases than they want, seen in one moment."""
    leases = Count("leases", filter=live_lease(), distinct=True)
    found = Comparison.objects.exclude(status=Comparison.Status.GOLD).annotate(places=leases)
    return [(row.pk, row.n_labels) for row in found if row.n_labels + row.places > row.wanted]


def live_lease() -> Any:
    from django.db.models import Q

    holding = Lease.objects.filter(live_leases(), purpose=Lease.Purpose.JUDGE)
    return Q(leases__in=holding)
