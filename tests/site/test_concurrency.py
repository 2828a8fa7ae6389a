"""Many at once: no pair is given twice, no answer is lost, the feed has no gap, and chores are done once."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, connections, transaction
from django.db.models import Count
from django.db.models.functions import Now

from human_feedback_site.feedback.models import (
    Comparison,
    Decision,
    Experiment,
    Invite,
    Label,
    Labeler,
    Lease,
    Participation,
    Undo,
)
from human_feedback_site.feedback.models.querysets import live_leases
from human_feedback_site.feedback.queue.participants import answered_lease
from human_feedback_site.feedback.selectors.experiments import decisions_after
from human_feedback_site.feedback.services.answers import Answer, Revision, record_answer, revise_answer
from human_feedback_site.feedback.services.chores import CHORES, expire_media, forget_leases
from human_feedback_site.feedback.services.experiments import set_overlap
from human_feedback_site.feedback.services.identities import user_of
from tests.site.conftest import Browser, Invited, Trainer, expire, new_invite, own_connection, race

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]

LABELERS = 8
ROUNDS = 6
Start = Callable[..., "Future[Any]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Run functions in threads, each with a database connection of its own."""

    with ThreadPoolExecutor(LABELERS + 1) as pool:
        yield lambda function, *args: pool.submit(own_connection(function), *args)


@pytest.fixture
def browsers(trainer: Trainer, invite: Invited) -> list[Browser]:
    return [invite(f"labeler-{number}") for number in range(LABELERS)]


def answer_everything(browser: Browser, count: int) -> int:
    """Lease and answer until there is nothing left; return the number of answers."""
    held: list[Any] = []
    answered = 0
    while True:
        reply = browser.ask(
            count, held=[lease["uuid"] for lease in held], shown=held[0]["uuid"] if held else None
        )
        held = [lease for lease in held if lease["uuid"] in reply["renewed"]] + reply["leases"]
        if not held:
            return answered
        browser.answer(held.pop(0))
        answered += 1


@pytest.fixture
def answer_together(browsers: list[Browser]) -> Callable[[int], int]:
    """Have all labelers answer everything, each holding so many pairs; return the number of answers.

    A labeler is given nothing while what is left is locked by others, and asks again later as a page does.
    """

    def answer(count: int) -> int:
        at_once: list[int] = race(
            *(lambda browser=browser: answer_everything(browser, count) for browser in browsers)
        )
        return sum(at_once) + sum(answer_everything(browser, count) for browser in browsers)

    return answer


def test_eight_labelers_and_a_reader(trainer: Trainer, browsers: list[Browser], start: Start) -> None:
    trainer.register(28)
    workers = [start(answer_everything, browser, 1) for browser in browsers]
    cursor = 0
    read = []
    while cursor < 28:
        finished = all(worker.done() for worker in workers)
        items = trainer.decisions(cursor, limit=7)["items"]
        assert [item["seq"] for item in items] == list(range(cursor + 1, cursor + 1 + len(items)))
        assert items or not finished
        cursor += len(items)
        read += [item["comparison"] for item in items]
    assert len(set(read)) == 28
    assert sum(worker.result() for worker in workers) == Lease.objects.count() == Label.objects.count() == 28
    assert Lease.objects.values("comparison").distinct().count() == 28
    assert not Label.objects.filter(status=Label.Status.SURPLUS).exists()


def test_prefetched_leases_count_once(trainer: Trainer, answer_together: Callable[[int], int]) -> None:
    uuids = trainer.register(28)
    answered = answer_together(3)
    counted = Label.objects.filter(status=Label.Status.COUNTED)
    assert sorted(str(uuid) for uuid in counted.values_list("comparison__uuid", flat=True)) == sorted(uuids)
    assert answered == Label.objects.count()
    assert trainer.decisions()["last_seq"] == 28


def test_overlap_gives_different_labelers(trainer: Trainer, answer_together: Callable[[int], int]) -> None:
    trainer.overlap(3)
    trainer.register(10)
    answer_together(1)
    judged = Comparison.objects.annotate(judges=Count("labels__labeler", distinct=True), all=Count("labels"))
    assert Counter(judged.values_list("n_labels", "judges", "all")) == {(3, 3, 3): 10}


def test_feed_waits_for_open_transactions(trainer: Trainer, browsers: list[Browser], start: Start) -> None:
    trainer.register(2)
    slow, quick = browsers[:2]
    [slow_lease], [quick_lease] = slow.lease(), quick.lease()
    labeler = Labeler.objects.get(name="labeler-0")
    answer = Answer(uuid=uuid4(), lease=UUID(slow_lease["uuid"]), choice="left", response_ms=None)
    with transaction.atomic():
        record_answer(answered_lease(labeler, answer.lease), answer)
        overtaking = start(quick.answer, quick_lease)
        with pytest.raises(TimeoutError):
            overtaking.result(timeout=0.5)
        seen = start(decisions_after, trainer.experiment, 0, 1000).result()
        assert (seen.last_seq, list(seen.items)) == (0, [])
    assert overtaking.result()["status"] == "counted"
    items = trainer.decisions()["items"]
    assert [item["comparison"] for item in items] == [slow_lease["comparison"], quick_lease["comparison"]]
    assert [item["seq"] for item in items] == [1, 2]


def test_an_answer_sent_many_times_at_once_is_recorded_once(
    trainer: Trainer, browsers: list[Browser]
) -> None:
    trainer.register()
    browser = browsers[0]
    body = browser.label(browser.lease()[0])
    statuses = race(*(lambda: browser.send("POST", "/labels", body).status_code for _ in range(LABELERS)))
    assert sorted(statuses) == [200] * (LABELERS - 1) + [201]
    assert Label.objects.count() == 1
    assert trainer.decisions()["last_seq"] == 1


def test_each_of_many_answers_sent_at_once_is_checked(trainer: Trainer, browsers: list[Browser]) -> None:
    trainer.register(5)
    Experiment.objects.update(min_watch_ms=60_000, stop_failures=5)
    browser = browsers[0]
    race(*(lambda lease=lease: browser.answer(lease) for lease in browser.lease(5)))
    participation = Participation.objects.get(labeler__name="labeler-0")
    assert participation.watch_checks == "00000"
    assert participation.stopped_at is not None


def test_an_undo_sent_many_times_at_once_is_recorded_once(trainer: Trainer, browsers: list[Browser]) -> None:
    trainer.register()
    browser = browsers[0]
    label = browser.answer(browser.lease()[0])
    path, body = f"/labels/{label['uuid']}/undo", {"uuid": str(uuid4())}
    replies = race(*(lambda: browser.post(path, body) for _ in range(LABELERS)))
    assert len({reply["lease"]["uuid"] for reply in replies}) == 1
    assert Undo.objects.count() == 1
    assert Lease.objects.count() == 2


def test_one_uuid_for_answers_to_two_pairs_is_refused_for_one_of_them(
    trainer: Trainer, browsers: list[Browser]
) -> None:
    browser = browsers[0]
    for _ in range(ROUNDS):
        trainer.register(2)
        bodies = [browser.label(lease, uuid=str(uuid4())) for lease in browser.lease(2)]
        bodies[1]["uuid"] = bodies[0]["uuid"]
        send = [lambda body=body: browser.send("POST", "/labels", body).status_code for body in bodies]
        assert sorted(race(*send)) == [201, 409]


def test_undo_and_answers_of_others_at_once_leave_what_the_standing_labels_say(
    trainer: Trainer, browsers: list[Browser]
) -> None:
    trainer.overlap(4)
    for _ in range(ROUNDS):
        [uuid] = trainer.register()
        leases = [browser.lease()[0] for browser in browsers[:4]]
        labels = [browser.answer(lease) for browser, lease in zip(browsers[:2], leases[:2], strict=True)]
        race(
            lambda: browsers[0].undo(labels[0]),  # noqa: B023  (over before the next round)
            lambda: browsers[1].undo(labels[1]),  # noqa: B023
            lambda: browsers[2].answer(leases[2]),  # noqa: B023
            lambda: browsers[3].answer(leases[3]),  # noqa: B023
        )
        comparison = Comparison.objects.get(uuid=uuid)
        last = Decision.objects.filter(comparison=comparison).latest("seq")
        assert comparison.n_labels == last.n_labels == 2
        assert Lease.objects.filter(live_leases(), comparison=comparison).count() == 2
        trainer.post(f"{trainer.path}/cancel", {"comparisons": [uuid]})
        Comparison.objects.update(status=Comparison.Status.CANCELLED)
    seqs = list(Decision.objects.order_by("seq").values_list("seq", flat=True))
    assert seqs == list(range(1, 6 * ROUNDS + 1))


def test_a_labeler_who_asks_many_times_at_once_holds_no_more_than_in_turn(
    trainer: Trainer, browsers: list[Browser]
) -> None:
    trainer.register(5 * LABELERS)
    browser = browsers[0]
    for _ in range(ROUNDS):
        replies = race(*(lambda: browser.ask(5) for _ in range(LABELERS)))
        held = {str(uuid) for uuid in Lease.objects.filter(live_leases()).values_list("uuid", flat=True)}
        assert len(held) == 5
        assert {lease["uuid"] for reply in replies for lease in reply["leases"]} == held
        Lease.objects.update(expires_at=Now())


def test_many_requests_at_once_give_no_more_pairs_than_answers_are_wanted(
    trainer: Trainer, browsers: list[Browser]
) -> None:
    trainer.register(5 * LABELERS)
    two = new_invite(trainer.experiment, answers_wanted=2)
    browser = browsers[0]
    browser.ask()
    mine = Participation.objects.filter(labeler__name="labeler-0")
    mine.update(invite=two)

    def given_and_held() -> int:
        return mine.get().answered + Lease.objects.filter(live_leases()).count()

    asking = [lambda: browser.ask(5)] * (LABELERS - 1)
    for _ in range(ROUNDS // 2):
        Lease.objects.update(expires_at=Now())
        [lease, _other] = race(*asking)[0]["leases"]
        assert given_and_held() == 2
        label, *_ = race(lambda: browser.answer(lease), *asking)  # noqa: B023  (over before the next round)
        assert given_and_held() == 2
        revision = Revision(uuid4(), UUID(label["uuid"]), "right")
        race(lambda: revise_answer(mine.get().labeler, revision), *asking)  # noqa: B023
        assert given_and_held() == 2
        race(lambda: browser.undo({"uuid": str(revision.uuid)}), *asking)  # noqa: B023
        assert given_and_held() == 2


def test_an_expired_lease_is_renewed_or_given_away_but_not_both(
    trainer: Trainer, browsers: list[Browser]
) -> None:
    for _ in range(ROUNDS):
        [uuid] = trainer.register()
        [lease] = browsers[0].lease()
        expire(lease)
        claims = [lambda browser=browser: browser.ask() for browser in browsers[1:4]]
        renewed, *claimed = race(lambda: browsers[0].ask(held=[lease["uuid"]]), *claims)  # noqa: B023
        assert len(renewed["renewed"]) + sum(len(reply["leases"]) for reply in claimed) == 1
        trainer.post(f"{trainer.path}/cancel", {"comparisons": [uuid]})


def test_a_comparison_is_cancelled_or_answered_but_not_both(
    trainer: Trainer, browsers: list[Browser]
) -> None:
    for _ in range(ROUNDS):
        uuids = trainer.register()
        [lease] = browsers[0].lease()
        label, cancel = race(
            lambda: browsers[0].answer(lease),  # noqa: B023
            lambda: trainer.post(f"{trainer.path}/cancel", {"comparisons": uuids}),  # noqa: B023
        )
        assert (label["status"], cancel["cancelled"]) in {("counted", 0), ("surplus", 1)}


def test_many_registrations_at_once_are_one(trainer: Trainer) -> None:
    body = {"comparisons": [trainer.comparison() for _ in range(10)]}
    replies = race(*(lambda: trainer.post(f"{trainer.path}/comparisons", body) for _ in range(4)))
    assert sorted(reply["registered"] for reply in replies) == [0, 0, 0, 10]
    assert Comparison.objects.count() == 10


def test_one_of_two_runs_gets_a_name(trainer: Trainer) -> None:
    for number in range(ROUNDS):
        bodies = [trainer.description(run_id=str(uuid4())) for _ in range(3)]
        path = f"/experiments/new-{number}"
        put = [lambda body=body: trainer.send("PUT", path, body).status_code for body in bodies]  # noqa: B023
        assert sorted(race(*put)) == [201, 409, 409]


def test_an_overlap_that_shrinks_during_answers_leaves_nothing_open_that_has_enough(
    trainer: Trainer, browsers: list[Browser]
) -> None:
    for _ in range(ROUNDS):
        trainer.overlap(2)
        trainer.register(3)
        leases = browsers[0].lease(3)
        answers = [lambda lease=lease: browsers[0].answer(lease) for lease in leases]
        race(*answers, lambda: set_overlap(trainer.experiment, 1))
        assert trainer.decisions()["open"] == 0


def test_one_name_invited_twice_is_one_labeler(trainer: Trainer) -> None:
    for number in range(ROUNDS):
        name = f"new-{number}"
        invite = lambda name=name: trainer.send("POST", f"{trainer.path}/invites", {"labeler": name})  # noqa: E731
        assert [response.status_code for response in race(*[invite] * 4)] == [200] * 4
        assert Labeler.objects.filter(name=name, experiments=trainer.experiment).count() == 1
        assert Invite.objects.filter(labeler__name=name).count() == 1


def test_one_person_signing_in_twice_at_once_gets_one_account() -> None:
    claims = {"iss": "https://login.example.org", "sub": "7", "preferred_username": "mia"}
    users = race(*[lambda: user_of(claims)] * LABELERS)
    assert len(set(users)) == 1
    assert Labeler.objects.get().name == "mia (SSO)"


MONTH = timedelta(days=31)


def test_all_chores_at_once_do_what_one_does(trainer: Trainer, browser: Browser, media_folder: Path) -> None:
    trainer.register(20)
    browser.lease(5)
    Lease.objects.update(expires_at=Now() - MONTH)
    trainer.put(state="finished")
    Experiment.objects.update(finished_at=Now() - MONTH)
    race(*(chore for chore in CHORES.values() for _ in range(3)))
    assert not Lease.objects.exists()
    assert list(media_folder.iterdir()) == []
    assert trainer.experiment.media_deleted_at is not None
    assert trainer.decisions()["open"] == 0


def test_answer_keeps_its_lease_or_the_lease_is_gone(trainer: Trainer, browser: Browser) -> None:
    for _ in range(ROUNDS):
        trainer.put(state="running")
        trainer.register()
        [lease] = browser.lease()
        Lease.objects.update(expires_at=Now() - MONTH)
        trainer.put(state="finished")
        body = browser.label(lease)
        status, _ = race(lambda: browser.send("POST", "/labels", body).status_code, forget_leases)  # noqa: B023
        assert status in {201, 404, 409}
        assert Label.objects.filter(uuid=str(body["uuid"])).exists() == (status == 201)
        assert Lease.objects.filter(uuid=lease["uuid"]).exists() == (status == 201)


def test_answers_during_expiry(trainer: Trainer, browser: Browser, invite: Invited) -> None:
    others = [invite(name) for name in ("mia", "leo")]
    for _ in range(ROUNDS):
        Experiment.objects.update(media_deleted_at=None)
        trainer.overlap(3)
        trainer.put(state="running")
        trainer.register()
        leases = [each.lease()[0] for each in (browser, *others)]
        trainer.put(state="finished")
        Experiment.objects.update(finished_at=Now() - MONTH)
        answers = [
            lambda each=each, lease=lease: each.answer(lease)["status"]
            for each, lease in zip((browser, *others), leases, strict=True)
        ]
        assert set(race(*answers, expire_media)[:3]) <= {"counted", "surplus"}
        assert trainer.decisions()["open"] == 0


def close_from_the_other_side() -> None:
    """Let the server end the connection that the site keeps."""
    ended = connection.connection.info.backend_pid
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [ended])
    other.close()


@pytest.mark.postgresql_only  # a file closes no connections
def test_a_labeler_does_not_notice_that_a_connection_was_closed(trainer: Trainer, browser: Browser) -> None:
    trainer.register()
    close_from_the_other_side()
    [lease] = browser.lease()
    close_from_the_other_side()
    assert browser.answer(lease)["status"] == "counted"
