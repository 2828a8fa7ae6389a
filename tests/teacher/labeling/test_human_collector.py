"""Comparisons reach people, their answers come back as preferences."""

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest

from teacher.behaviors import counter_clockwise
from teacher.clips import ClipJob, ClipRenderer, ClipSpec, render
from teacher.data.ledger import Ledger, Question
from teacher.data.preferences import PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.envs.trajectory import Trajectory
from teacher.errors import (
    ConfigError,
    ForgottenError,
    RenderError,
    SiteRefusedError,
    SiteUnreachableError,
    StorageError,
)
from teacher.labeling import human
from teacher.labeling.bots import Bot
from teacher.labeling.client import ExperimentSettings, FeedbackClient
from teacher.labeling.embedded_site import SiteHandle
from teacher.labeling.people import Site, SiteOptions, about_lost, open_site, reopen_experiment
from teacher.queries.judges import true_return
from teacher.queries.kinds import KINDS, preferences_in
from teacher.settings.options import KindName, QueryConfig
from teacher.storage import FolderStorage
from tests.teacher.labeling.conftest import CLIP_SIZE, SEGMENT_STEPS
from tests.waiting import wait_until

Pairs = list[tuple[Segment, Segment]]


def unplayable(segment: Segment) -> Segment:
    """A segment that no renderer can make a clip of."""
    return replace(segment, recipe=replace(segment.recipe, env_id="Nothing-v0"))


def better_first(pair: tuple[Segment, Segment]) -> bool:
    return pair[0].true_return > pair[1].true_return


def test_answers_follow_the_true_return(start_asking: Any, pairs: Pairs, tmp_path: Path) -> None:
    with start_asking() as asking:
        asking.collector.submit(pairs[:12], "training", 100)
        bots = asking.bots(2, tmp_path / "answers")
        received = asking.receive(12)
        asking.collector.finish()
        for bot in bots:
            bot.join(240)
    assert [bot.error for bot in bots] == [None, None]
    assert sum(bot.answered for bot in bots) == 12
    assert len(received) == 12
    for preference in received:
        assert preference.value == float(better_first((preference.first, preference.second)))
        assert any(preference.first.true_return == first.true_return for first, _ in pairs)


def test_scripted_labelers_follow_a_function(start_asking: Any, pairs: Pairs, tmp_path: Path) -> None:
    with start_asking(value=counter_clockwise) as asking:
        (bot,) = asking.bots(1, tmp_path / "answers", teacher="mistake:1")
        asking.collector.submit(pairs[:6], "training", 100)
        received = asking.receive(6)
        asking.collector.finish()
        bot.join(240)
    assert bot.error is None
    for preference in received:
        turned = counter_clockwise(preference.first), counter_clockwise(preference.second)
        assert preference.value == float(turned[0] < turned[1])


class Away(FolderStorage):
    """A folder that is away for as long as a test wants."""

    def put(self, key: str, path: Path) -> None:
        raise StorageError("the store is away")


def test_submit_never_blocks(start_asking: Any, pairs: Pairs, site: SiteHandle) -> None:
    with start_asking(storage=Away(Path(site.storage))) as asking:
        asking.collector.submit(pairs, "pretraining", 0)
        assert len(asking.ledger.unfinished()) == len(pairs)
        assert asking.collector.receive() == []


def test_a_comparison_is_shown_only_with_both_clips_and_none_is_left_behind(
    start_asking: Any, pairs: Pairs, open_labeler: Any, tmp_path: Path
) -> None:
    with start_asking() as asking:
        labeler = open_labeler(asking)
        asking.publish(pairs[:2])
        leases = labeler.leases(count=5)["leases"]
        assert len(leases) == 2
        for lease in leases:
            for side in ("first", "second"):
                assert asking.storage.size(f"{asking.settings.name}/{lease['comparison']}/{side}.mp4")
        assert list((tmp_path / "clips-on-their-way").iterdir()) == []
    assert not (tmp_path / "clips-on-their-way").exists()


def test_each_key_holds_the_clip_of_its_own_segment(
    start_asking: Any, pairs: Pairs, tmp_path: Path, site: SiteHandle
) -> None:
    with start_asking() as asking:
        asking.publish(pairs[:1])
        (folder,) = (Path(site.storage) / asking.settings.name).iterdir()
        clips = {side: (folder / f"{side}.mp4").read_bytes() for side in ("first", "second")}
    for side, segment in zip(("first", "second"), pairs[0], strict=True):
        render(ClipJob(ClipSpec.of(segment), tmp_path / f"{side}.mp4", 10, size=CLIP_SIZE))
        assert (tmp_path / f"{side}.mp4").read_bytes() == clips[side]
    assert clips["first"] != clips["second"]


def test_policy_pairs_come_first(start_asking: Any, pairs: Pairs, open_labeler: Any) -> None:
    with start_asking() as asking:
        labeler = open_labeler(asking)
        asking.collector.submit(pairs[:1], "training", 100)
        asking.collector.submit(pairs[1:3], "pretraining", 0)
        wait_until(lambda: asking.ledger.unfinished() == [])
        labeler.answer(labeler.leases()["leases"][0], "equal")
        wait_until(lambda: asking.ledger.usable() == 1)
        assert asking.ledger.usable("training") == 1


def test_gold_pairs_registered(start_asking: Any, pairs: Pairs, site: SiteHandle) -> None:
    with start_asking() as asking:
        asking.collector.submit(pairs[:1], "training", 100, reasons=["disagreement:3:2"])
        asking.collector.submit(pairs[1:3], "gold", 100)
        wait_until(lambda: asking.ledger.unfinished() == [])
        assert (asking.ledger.open(), asking.ledger.gold()) == (1, 2)
        asking.bots(1)
        asking.receive(1)
    with site_database(site) as connection:
        known = connection.execute(
            "SELECT gold, first_return, second_return, reason FROM feedback_comparison c "
            "JOIN feedback_experiment e ON e.id = c.experiment_id WHERE e.name = ? ORDER BY gold IS NULL",
            (asking.settings.name,),
        ).fetchall()
    *known, asked = known
    assert [reason for *_, reason in known] == ["attention_check"] * 2
    assert asked[-1] == "disagreement:3:2"
    assert all(gold == ("first" if first > second else "second") for gold, first, second, _ in known)


def test_undo_removes_preference(start_asking: Any, pairs: Pairs, open_labeler: Any) -> None:
    with start_asking() as asking:
        labeler = open_labeler(asking)
        asking.publish(pairs[:1])
        label = labeler.answer(labeler.leases()["leases"][0], "equal")
        assert [preference.value for preference in asking.receive(1)] == [0.5]
        labeler.undo(label)
        assert [preference.value for preference in asking.receive(1)] == [None]
        assert (asking.ledger.usable(), asking.ledger.open()) == (0, 1)


def test_cant_tell_frees_budget(start_asking: Any, pairs: Pairs, open_labeler: Any) -> None:
    with start_asking() as asking:
        labeler = open_labeler(asking)
        asking.publish(pairs[:1])
        labeler.answer(labeler.leases()["leases"][0], "cant_tell")
        assert [preference.value for preference in asking.receive(1)] == [None]
        assert asking.ledger.asked() == 0


def test_cancels_free_the_budget(start_asking: Any, pairs: Pairs, site: SiteHandle) -> None:
    with start_asking() as asking:
        asking.publish(pairs[:3])
        client = FeedbackClient(site.url, site.token)
        url = f"{site.url}/api/v1/experiments/{asking.settings.name}/comparisons"
        listed = client._session.get(url, timeout=60).json()["items"]
        assert client.cancel(asking.settings.name, [UUID(item["uuid"]) for item in listed[:2]]) == 2
        client.close()
        wait_until(lambda: asking.ledger.asked() == 1)


def test_a_comparison_that_cannot_be_rendered_is_given_up_and_the_others_go_on(
    start_asking: Any, pairs: Pairs, caplog: pytest.LogCaptureFixture
) -> None:
    (first, second), *others = pairs[:3]
    with start_asking() as asking:
        asking.publish([(first, unplayable(second)), *others])
        assert asking.collector.status.failed == 1
        assert asking.ledger.asked() == 2
        assert asking.collector.receive() == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Nothing-v0" in caplog.text


def test_a_run_that_can_render_nothing_stops(start_asking: Any, pairs: Pairs) -> None:
    with start_asking() as asking:
        hopeless = [(unplayable(first), unplayable(second)) for first, second in pairs[:10]]
        asking.collector.submit(hopeless, "training", 100)
        wait_until(lambda: asking.collector.status.failed >= 8)
        with pytest.raises(RenderError, match="Nothing-v0"):
            wait_until(lambda: asking.collector.receive() != [])


def test_resume_continues(start_asking: Any, pairs: Pairs, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    ledger.write([Question(uuid4(), pair, "training", 7) for pair in pairs[:3]])
    ledger.close()
    with start_asking() as asking:
        wait_until(lambda: asking.ledger.unfinished() == [])
        asking.bots(1)
        asking.receive(3)


# Questions of other kinds

OTHER_KINDS: list[KindName] = ["graded", "rating", "best_worst"]


def questions_of(kind: KindName, pairs: Pairs, count: int) -> list[tuple[Segment, ...]]:
    """Questions about different segments."""
    size = KINDS[kind].size
    items = [item for pair in pairs for item in pair]
    return [tuple(items[at : at + size]) for at in range(0, size * count, size)]


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_questions_of_any_kind_are_answered_and_none_is_lost_if_the_trainer_is_killed(
    start_asking: Any, pairs: Pairs, tmp_path: Path, kind: KindName
) -> None:
    questions = questions_of(kind, pairs, 8)
    with start_asking(kind=kind) as asking:
        asking.publish(questions[:4])
        asking.collector._stop.set()  # as if killed: nothing is read any more
        asking.collector._wake.set()
        asking.collector._thread.join()
        asking.collector.submit(questions[4:6], "training", 200, kind)
        asking.bots(1, tmp_path / "answers")
        wait_until(lambda: asking.client.decisions(asking.settings.name, 0).open == 0)
        assert (asking.ledger.usable(), asking.ledger.open()) == (0, 6)
        asking.dismiss()
        asking.client.put_experiment(asking.settings, state="running")
    with start_asking(kind=kind) as asking:
        asking.bots(1, tmp_path / "answers")
        asking.collector.submit(questions[6:], "training", 300, kind)
        wait_until(lambda: asking.ledger.usable() == 8)
        asking.collector.finish()
        held, following = PreferenceDataset(), PreferenceDataset()
        held.upsert(asking.collector.receive())
        following.upsert(preferences_in(asking.ledger))
        answered = list(asking.ledger.answered())
        labelers = {labeler for _, labeler, _ in asking.ledger.answers(kind)}
    lines = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
    assert len(lines) == len({line["comparison"] for line in lines}) == 8
    assert [line["status"] for line in lines] == ["counted"] * 8
    assert {UUID(line["comparison"]) for line in lines} == {each.uuid for each in answered}
    for each in answered:
        assert each.decision is not None
        assert KINDS[kind].fits(each.decision, [item.true_return for item in each.items])
    # Ratings are told by labeler, which is what they are compared by.
    assert (0 in labelers) == (kind != "rating")
    assert {*map(tuple, held.ids.tolist())} == {*map(tuple, following.ids.tolist())}


def test_ratings_of_two_labelers_are_kept_apart(start_asking: Any, pairs: Pairs, site: SiteHandle) -> None:
    with start_asking(kind="rating") as asking:
        with site_database(site) as database:
            query = "UPDATE feedback_experiment SET overlap = 2 WHERE name = ?"
            database.execute(query, (asking.settings.name,))
        asking.publish(questions_of("rating", pairs, 3))
        asking.bots(1)
        wait_until(lambda: asking.ledger.usable() == 3)
        (first,) = {labeler for _, labeler, _ in asking.ledger.answers("rating")}
        bot = Bot(site.url, asking.settings.name, site.token, "another")
        bot.start()
        wait_until(lambda: len(asking.ledger.answers("rating")) == 6)
        asking.collector.finish()
        bot.join(240)
        told = [(uuid, labeler) for uuid, labeler, _ in asking.ledger.answers("rating")]
    assert bot.error is None
    assert Counter(uuid for uuid, _ in told) == dict.fromkeys((uuid for uuid, _ in told), 2)
    assert sum(labeler == first for _, labeler in told) == len(set(told)) // 2 == 3


def test_open_questions_of_an_earlier_kind_are_asked_and_answered(
    start_asking: Any, pairs: Pairs, tmp_path: Path
) -> None:
    with start_asking(kind="best_worst") as asking:
        asking.publish(questions_of("best_worst", pairs, 2))
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    ledger.write([Question(uuid4(), pairs[4], "training", 7)])  # not registered yet
    ledger.close()
    with start_asking(kind="rating") as asking:
        asking.publish(questions_of("rating", pairs, 2))
        asking.bots(1)
        wait_until(lambda: asking.ledger.usable() == 5)
        kinds = sorted(each.kind for each in asking.ledger.answered())
    assert kinds == ["best_worst", "best_worst", "pair", "rating", "rating"]


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("graded", lambda first, second: "clearly_first" if first > second else "clearly_second"),
        ("best_worst", lambda *of: f"{of.index(max(of)) + 1}>{of.index(min(of)) + 1}"),
        ("rating", None),
    ],
)
def test_attention_checks_of_any_kind_have_their_known_answer(
    start_asking: Any, pairs: Pairs, site: SiteHandle, kind: KindName, known: Any
) -> None:
    """Also if the trainer was killed before it had registered them."""
    pool = SegmentPool(len(pairs[0][0]), seed=1)
    pool.add([item for pair in pairs for item in pair])
    checks = KINDS[kind].checks(pool, 2, QueryConfig(), true_return)
    expected = {tuple(item.true_return for item in items): answer for items, answer in checks}
    with start_asking(storage=Away(Path(site.storage)), kind=kind) as asking:
        asking.collector.submit_checks(checks, 100, kind)
    with start_asking(kind=kind) as asking:
        wait_until(lambda: asking.ledger.unfinished() == [])
        assert (asking.ledger.open(), asking.ledger.gold()) == (0, 2)
    with site_database(site) as connection:
        rows = connection.execute(
            "SELECT gold, first_return, second_return, third_return, fourth_return FROM feedback_comparison "
            "JOIN feedback_experiment e ON e.id = experiment_id WHERE e.name = ? AND status = 'gold'",
            (asking.settings.name,),
        ).fetchall()
    stored = {tuple(each for each in returns if each is not None): gold for gold, *returns in rows}
    assert stored == expected
    if known is not None:
        assert all(known(*returns) == gold for returns, gold in stored.items())
    else:
        ordered = sorted(item.true_return for pair in pairs for item in pair)
        lowest, highest = ordered[: len(ordered) // 5], ordered[-len(ordered) // 5 :]
        assert all(value in (highest if gold == "5" else lowest) for (value,), gold in stored.items())


def test_a_site_that_does_not_know_the_kind_is_refused_before_anything_is_made_there(
    start_asking: Any, pairs: Pairs, site: SiteHandle, experiment: ExperimentSettings,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(FeedbackClient, "kinds", lambda _: frozenset({"pair"}))
    said = (
        f"the labeling site at {site.url} doesn't know rating questions; update the site, or use --feedback "
        "pair"
    )
    with pytest.raises(ConfigError, match=said), start_asking(kind="rating"):
        pass
    assert not knows(site, experiment.name)
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    ledger.write([Question(uuid4(), pairs[0][:1], "training", 7, "rating")])
    ledger.close()
    with pytest.raises(ConfigError, match=said), start_asking():
        pass
    with contextlib.closing(Ledger(tmp_path / "ledger.sqlite3")) as ledger:
        assert len(ledger.unfinished()) == 1


def test_resume_reuses_clips(start_asking: Any, pairs: Pairs, tmp_path: Path) -> None:
    closed = ClipRenderer(workers=1)
    closed.close()
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    uuid = uuid4()
    ledger.write([Question(uuid, pairs[0], "training", 7)])
    ledger.close()
    with start_asking() as asking:
        wait_until(lambda: asking.ledger.unfinished() == [])
        asking.ledger.set_status([uuid], "written")  # as if killed between registering and noting it
    with start_asking(renderer=closed) as asking:
        wait_until(lambda: asking.ledger.unfinished() == [])
        assert asking.collector.receive() == []


def test_pause_and_finish_on_the_site_reach_the_run(
    start_asking: Any, site: SiteHandle, experiment: ExperimentSettings
) -> None:
    with start_asking() as asking:
        assert asking.collector.status.state == "running"
        client = FeedbackClient(site.url, site.token)
        client.put_experiment(experiment, state="finished")
        client.close()
        wait_until(lambda: asking.collector.status.state == "finished")


def test_curves_and_what_training_waits_for_reach_the_site(
    start_asking: Any, open_labeler: Any, site: SiteHandle
) -> None:
    with start_asking() as asking:
        labeler = open_labeler(asking)
        asking.collector.report({"agent/true_reward_per_episode": 3.5, "predictor/loss": float("nan")}, 40, 7)
        wait_until(lambda: labeler.leases()["waiting_for"] == 7)
        asking.collector.report({"labels/answered": 2.0}, 41, None)
        asking.collector.finish()
        assert labeler.leases()["waiting_for"] is None
        assert labeler.leases()["state"] == "finished"
    with site_database(site) as connection:
        points = connection.execute(
            "SELECT step, tag, value FROM feedback_trainingpoint JOIN feedback_experiment "
            "ON feedback_experiment.id = experiment_id WHERE name = ? ORDER BY step",
            (asking.settings.name,),
        ).fetchall()
    assert points == [(40, "agent/true_reward_per_episode", 3.5), (41, "labels/answered", 2.0)]


def test_predicted_rewards_reach_the_site_once_it_knows_the_film_and_the_question(
    start_asking: Any, pairs: Pairs, site: SiteHandle, tmp_path: Path
) -> None:
    def stored() -> tuple[Any, Any]:
        experiment = "SELECT id FROM feedback_experiment WHERE name = ?"
        films = f"SELECT rewards FROM feedback_episode WHERE experiment_id = ({experiment})"  # noqa: S608
        clips = (
            "SELECT items FROM feedback_predictedrewards JOIN feedback_comparison "  # noqa: S608
            f"ON id = comparison_id WHERE experiment_id = ({experiment})"
        )
        with site_database(site) as database:
            film, clip = (
                database.execute(query, (asking.settings.name,)).fetchone() or [None]
                for query in (films, clips)
            )
        return film[0], clip[0]

    predictor: Any = SimpleNamespace(step_rewards=lambda steps: np.full(len(steps.actions), 0.25))
    (tmp_path / "film.mp4").write_text("film")
    clip = pairs[0][0]
    episode = Trajectory.from_arrays(
        np.repeat(clip.observations[:1], SEGMENT_STEPS + 1, axis=0), clip.actions, clip.true_rewards
    )
    with start_asking() as asking:
        asking.collector.submit(pairs[:1], "training", 40)
        asking.collector.show(tmp_path / "film.mp4", 40, episode)
        asking.collector.explain(predictor, 1, 50)  # before any of them is registered
        wait_until(lambda: all(stored()))
    curve = [0.25] * SEGMENT_STEPS
    assert [json.loads(each) for each in stored()] == [curve, [curve] * 2]


def test_final_points_are_sent(start_asking: Any, site: SiteHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    def left_at() -> Any:
        with site_database(site) as connection:
            return connection.execute(
                "SELECT trainer_left_at, count(step) FROM feedback_experiment "
                "LEFT JOIN feedback_trainingpoint ON feedback_experiment.id = experiment_id WHERE name = ?",
                (asking.settings.name,),
            ).fetchone()

    with start_asking() as asking:
        monkeypatch.setattr(human, "POLL_SECONDS", 60.0)
        asking.collector.report({"labels/answered": 2.0}, 41, 3)
        assert left_at()[0] is None
    left, points = left_at()
    assert left is not None
    assert points == 1
    with start_asking() as asking:
        assert left_at() == (None, 1)


def test_no_goodbye_to_an_absent_site(start_asking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_asking() as asking:
        goodbyes: list[object] = []
        monkeypatch.setattr(asking.client, "say_goodbye", lambda *_: goodbyes.append(1))
        asking.collector._stop.set()
        asking.collector._wake.set()
        asking.collector._thread.join()
        asking.collector._to_site.failed(SiteUnreachableError("it is away"))
    assert goodbyes == []


def test_another_runs_name_is_refused_at_once(start_asking: Any, site: SiteHandle, experiment: Any) -> None:
    with start_asking():
        client = FeedbackClient(site.url, site.token)
        with pytest.raises(SiteRefusedError, match=experiment.name) as refusal:
            client.put_experiment(replace(experiment, run_id=uuid4()))
        client.close()
    assert refusal.value.status == 409


def test_a_wrong_token_is_refused_at_once(start_asking: Any, site: SiteHandle) -> None:
    with (
        pytest.raises(SiteRefusedError, match="teach site token"),
        start_asking(at=replace(site, token="tt_x")),
    ):
        pass


def test_silent_site_is_error(start_asking: Any, site: SiteHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(human, "_START_DELAYS", (0.01, 0.01))
    nowhere = replace(site, url="http://127.0.0.1:9")
    with pytest.raises(SiteUnreachableError, match=r"127\.0\.0\.1:9"), start_asking(at=nowhere):
        pass


# A site that has forgotten


@contextlib.contextmanager
def site_database(site: SiteHandle) -> Iterator[sqlite3.Connection]:
    """The database of a site, to change it as a restoration or a deletion does."""
    path = Path(site.storage).parent / "site.sqlite3"
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as database, database:
        yield database


def knows(site: SiteHandle, name: str) -> bool:
    with site_database(site) as database:
        return bool(database.execute("SELECT 1 FROM feedback_experiment WHERE name = ?", (name,)).fetchone())


DELETE = "UPDATE feedback_experiment SET name = name || '-deleted' WHERE name = ?"
OLDER = "UPDATE feedback_sequencecounter SET last_seq = last_seq - 1 WHERE experiment_id = ?"
OTHER = "UPDATE feedback_decision SET decision = 'equal', probability = 0.5 WHERE experiment_id = ?"


@pytest.fixture
def answered(start_asking: Any, pairs: Pairs, tmp_path: Path) -> None:
    """A run that has read two decisions of its experiment, and was stopped."""
    with start_asking() as asking:
        asking.have_answered(pairs[:2])


@pytest.mark.usefixtures("answered")
def test_an_experiment_that_was_deleted_is_not_made_again(
    start_asking: Any, site: SiteHandle, experiment: ExperimentSettings, tmp_path: Path
) -> None:
    with site_database(site) as database:
        database.execute(DELETE, (experiment.name,))
    with pytest.raises(ForgottenError) as refused, start_asking():
        pass
    assert str(refused.value) == (
        f"this run has read 2 decisions from experiment {experiment.name}, but the site at {site.url} "
        "has no such experiment for this token: it was deleted, or the site has a different database; "
        "restore the newest backup of the site, or start over in a different log_dir; "
        f"{tmp_path / 'ledger.sqlite3'} keeps the labels"
    )
    (tmp_path / "config.json").touch()  # a run of teach, which has other remedies
    with pytest.raises(ForgottenError, match=rf"-n NAME --policy {tmp_path} \(teach export {tmp_path} FILE"):
        reopen(site, experiment, tmp_path)
    assert not knows(site, experiment.name)


def reopen(site: SiteHandle, experiment: ExperimentSettings, run: Path) -> None:
    with contextlib.closing(Ledger(run / "ledger.sqlite3")) as ledger:
        reopen_experiment(Site(site.url, site.token, site.storage), ledger, experiment)


@pytest.mark.usefixtures("answered")
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            OLDER,
            "read 2 decisions from .* has only 1: the site's database was replaced or restored to an older",
        ),
        (
            OTHER,
            "decision 1 in .* differs from .* run has read: the site's database was restored to an older",
        ),
    ],
    ids=["older", "older and answered since"],
)
def test_a_database_that_was_restored_to_an_older_state_is_noticed_before_anything_changes(
    start_asking: Any,
    site: SiteHandle,
    experiment: ExperimentSettings,
    tmp_path: Path,
    statement: str,
    said: str,
) -> None:
    with site_database(site) as database:
        (number,) = database.execute(
            "SELECT id FROM feedback_experiment WHERE name = ?", (experiment.name,)
        ).fetchone()
        database.execute("UPDATE feedback_experiment SET state = 'finished' WHERE id = ?", (number,))
        database.execute(statement, (number,))
    with pytest.raises(ForgottenError, match=said), start_asking():
        pass
    with pytest.raises(ForgottenError, match=said):
        reopen(site, experiment, tmp_path)
    with site_database(site) as database:
        query = "SELECT state FROM feedback_experiment WHERE id = ?"
        assert database.execute(query, (number,)).fetchone() == ("finished",)


@pytest.mark.parametrize("statement", [DELETE, OLDER], ids=["deleted", "older"])
def test_comparisons_lost_by_the_site_are_noticed(
    start_asking: Any, pairs: Pairs, site: SiteHandle, experiment: ExperimentSettings, statement: str
) -> None:
    with start_asking() as asking:
        asking.have_answered(pairs[:2])
        asking.dismiss()
        with site_database(site) as database:
            query = "SELECT id FROM feedback_experiment WHERE name = ?"
            (number,) = database.execute(query, (experiment.name,)).fetchone()
            database.execute(statement, (experiment.name if statement == DELETE else number,))
        wait_until(lambda: not asking.collector._thread.is_alive())
        with pytest.raises(ForgottenError, match=r"the site's database was replaced|it was deleted"):
            asking.collector.receive()
        with pytest.raises(ForgottenError):
            asking.collector.finish()
    assert knows(site, experiment.name) == (statement != DELETE)


@pytest.mark.usefixtures("answered")
def test_name_of_a_deleted_run(start_asking: Any, site: SiteHandle, experiment: ExperimentSettings) -> None:
    with site_database(site) as database:
        database.execute(DELETE, (experiment.name,))
    with contextlib.closing(FeedbackClient(site.url, site.token)) as client:
        client.put_experiment(replace(experiment, run_id=uuid4()))
    with pytest.raises(SiteRefusedError, match="belongs to another run"), start_asking():
        pass


def test_a_new_site_is_not_started_where_the_one_that_the_run_has_read_from_is_gone(tmp_path: Path) -> None:
    options = SiteOptions(state_dir=str(tmp_path / "state"))
    with contextlib.closing(Ledger(tmp_path / "ledger.sqlite3")) as ledger, contextlib.ExitStack() as parts:
        ledger.record([], cursor=5)
        with pytest.raises(
            ForgottenError, match=r"has read 5 decisions from .*site\.sqlite3 is missing; restore"
        ):
            open_site(options, ledger, parts)
    assert not (tmp_path / "state").exists()


@pytest.mark.usefixtures("s3_variables")
def test_new_site_registration(start_asking: Any, pairs: Pairs, s3_site: SiteHandle) -> None:
    with start_asking() as asking:
        asking.publish(pairs[:2])
    with contextlib.closing(FeedbackClient(s3_site.url, s3_site.token)) as client:
        reopen(s3_site, asking.settings, asking.ledger.path.parent)
        with pytest.raises(
            SiteRefusedError, match="You have no experiment named"
        ):  # who begins it anew says so
            client.decisions(asking.settings.name, 0)
    with start_asking(at=s3_site) as asking:
        (said,) = about_lost(asking.collector)
        assert said.startswith(f"The site had lost the experiment {asking.settings.name}; it was created")
        assert said.endswith("again, with 2 comparisons to label")
        for bot in asking.bots(1):
            asking.receive(2)
            asking.collector.finish()
            bot.join(240)
