"""The loop around people: how much it asks, when it waits, and what it obeys."""

import dataclasses
import io
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from teacher.cli import train
from teacher.data.decisions import CERTAIN, Decision, SiteState
from teacher.data.ledger import Ledger, Question, Role
from teacher.data.preferences import Preference
from teacher.data.segments import Segment
from teacher.errors import ConfigError
from teacher.queries.collector import Collector, CollectorStatus
from teacher.queries.judges import oracle
from teacher.queries.kinds import KINDS
from teacher.queries.learning import MIN_OPEN_COMPARISONS
from teacher.reporting.console import RunConsole
from teacher.reward import choice
from teacher.reward.report import FitReport
from teacher.settings.config import TeachConfig
from teacher.settings.options import KindName, RewardConfig
from teacher.training import asking, loop
from teacher.training.parts import predicted_rewards
from teacher.training.run import Run, Teaching
from tests.teacher.training.conftest import short_run
from tests.waiting import wait_until

QUIET = Console(quiet=True)
SMALL = RewardConfig(members=2, hidden=16)


class Person(Collector):
    """Answers ``patience`` questions in all, one at each look; what is asked is in the ledger at once.

    Attributes:
        looks: how often it was asked for answers.
        paused_looks: how often the experiment is still found paused before it runs again.
    """

    def __init__(self, ledger: Ledger, patience: float) -> None:
        self.patience = patience
        self.judge: Callable[[Segment, Segment], Decision] = oracle
        self.state: SiteState = "running"
        self.looks = self.paused_looks = 0
        self.active_labelers: int | None = 1
        self.asked: list[Question] = []
        self.gold: list[Question] = []
        self.most_open = 0
        self.waited_for: list[int | None] = []
        super().__init__(ledger)
        self._questions: deque[Question] = deque()

    @property
    def status(self) -> CollectorStatus:
        paused = self.paused_looks > 0
        self.paused_looks -= paused
        return CollectorStatus(state="paused" if paused else self.state, active_labelers=self.active_labelers)

    def submit(
        self,
        questions: Sequence[tuple[Segment, ...]],
        phase: Role,
        step: int,
        kind: KindName = "pair",
        reasons: Sequence[str] = (),
    ) -> None:
        comparisons = self._write(questions, phase, step, kind)
        if phase == "gold":
            self.gold += comparisons
            return
        self._questions.extend(comparisons)
        self.asked += comparisons
        self.most_open = max(self.most_open, self._ledger.open("training"))

    def receive(self) -> list[Preference]:
        self.looks += 1
        if not self._questions or self.patience < 1:
            return []
        self.patience -= 1
        comparison = self._questions.popleft()
        first, second = comparison.items
        decision = self.judge(first, second)
        self._decide([comparison], [(decision, CERTAIN[decision])])
        return super().receive()

    def report(self, point: Mapping[str, float], step: int, waiting_for: int | None) -> None:
        self.waited_for.append(waiting_for)

    def finish(self) -> None:
        self.state = "finished"


class TaughtRun(Run):
    """A run that learns a reward."""

    teaching: Teaching


MakeRun = Callable[..., tuple[TaughtRun, Person]]


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeRun]:
    """A run of short rollouts with a person who answers; ``human`` by its settings, but without a site."""
    monkeypatch.setattr(asking, "POLL_SECONDS", 0.002)
    with ExitStack() as parts:

        def make(patience: float = float("inf"), **settings: Any) -> tuple[TaughtRun, Person]:
            common = {"num_timesteps": 2000, "segment_steps": 8, "reward": SMALL}
            run = short_run(parts, tmp_path, QUIET, **{**common, **settings, "gold": 0.0, "pace": None})
            gold, pace = settings.get("gold", 0.0), settings.get("pace")
            run.config = dataclasses.replace(run.config, predictor="human", gold=gold, pace=pace)
            assert run.teaching is not None
            person = Person(run.teaching.ledger, patience)
            run.teaching.collector = person
            return cast("TaughtRun", run), person

        yield make


def test_a_person_who_keeps_up_is_asked_exactly_all_labels_and_waited_for(make_run: MakeRun) -> None:
    run, person = make_run(pace="labels")
    assert loop.train(run)
    assert len(person.asked) == 60
    assert [comparison.phase for comparison in person.asked].count("pretraining") == 12 + asking.FEWEST_SPARE
    assert person.most_open <= MIN_OPEN_COMPARISONS
    assert run.teaching.ledger.usable() == 60
    assert len(run.teaching.dataset) == 60
    assert person.waited_for[-1] is None


def test_a_share_of_gold_is_mixed_in_and_takes_no_place(make_run: MakeRun) -> None:
    run, person = make_run(pace="labels", gold=0.25)
    assert loop.train(run)
    assert len(person.asked) == 60
    assert len(person.gold) == 15
    assert 0 == person.gold[0].step < person.gold[-1].step
    known = [frozenset(each.items) for each in (*person.asked, *person.gold)]
    assert len(set(known)) == 75
    differences = [abs(each.items[0].true_return - each.items[1].true_return) for each in person.gold]
    assert min(differences) > 0
    assert len(run.teaching.dataset) == 60


def test_nobody_is_waited_for_who_answers_no_more(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LAST_LABELS_SECONDS", 0.0)
    monkeypatch.setattr(asking, "LAST_CLIPS_SECONDS", 0.0)  # this person's comparisons are never registered
    run, person = make_run(pace="labels")
    person.patience = 50
    assert loop.train(run)
    assert run.teaching.ledger.usable() == 50
    assert run.teaching.ledger.open() == 10


@pytest.mark.parametrize(("active", "all_come"), [(0, False), (None, True)])
def test_absence_needs_recent_news(make_run: MakeRun, active: int | None, all_come: bool) -> None:
    run, person = make_run()  # as one that was resumed while its last answers were taken
    asking.pretrain(run, run.teaching)
    person.submit(asking.first_questions(run, KINDS["pair"], 5), "training", 0)
    person.active_labelers = active
    asking.take_last_labels(run, run.teaching)
    assert (run.teaching.ledger.open() == 0) is all_come


def test_remaining_questions_are_asked_after_the_next_start(make_run: MakeRun) -> None:
    run, person = make_run()  # whose steps were all made before it was resumed, and whose pool is empty
    asking.pretrain(run, run.teaching)
    run.agent.total_steps = run.config.num_timesteps
    assert loop.train(run)
    assert len(person.asked) == run.teaching.ledger.usable() == 60
    assert person.most_open <= MIN_OPEN_COMPARISONS


def test_joint_training_starts_when_all_pretraining_labels_are_in(make_run: MakeRun) -> None:
    run, person = make_run(patience=12)
    assert asking.pretrain(run, run.teaching)
    assert run.teaching.ledger.usable() == 12
    assert [needed for needed in person.waited_for if needed][:2] == [12, 11]


@pytest.mark.parametrize(
    ("settings", "spare"),
    [
        ({"n_labels": 300, "pretrain_labels": 20}, 5),
        ({"n_labels": None, "pretrain_labels": 4}, 3),
        ({"n_labels": 22, "pretrain_labels": 20}, 2),
        ({"n_labels": 20, "pretrain_labels": 20}, 0),
        ({"n_labels": 300, "pretrain_labels": 20, "predictor": "synth"}, 0),
    ],
)
def test_people_are_asked_more_pairs_than_needed(settings: dict[str, Any], spare: int) -> None:
    config = TeachConfig(**{"env_id": "Pendulum-v1", "predictor": "human", "name": "x", **settings})
    assert asking.spare_pairs(config) == spare


def test_training_holds_for_a_person_and_goes_on_by_itself(make_run: MakeRun) -> None:
    run, person = make_run(patience=12, pace="labels")
    trainer = threading.Thread(target=loop.train, args=(run,))
    trainer.start()
    wait_until(lambda: any(person.waited_for[-1:]) and run.agent.total_steps > 0)
    held_at, looks = run.agent.total_steps, person.looks
    wait_until(lambda: person.looks >= looks + 20)
    assert run.agent.total_steps == held_at < 2000
    assert run.teaching.due(run.step) - run.teaching.ledger.usable() > MIN_OPEN_COMPARISONS
    person.patience = float("inf")
    trainer.join(240)
    assert run.agent.total_steps >= 2000
    assert person.waited_for[-1] is None


def test_a_free_pace_never_waits_and_keeps_to_the_open_cap(make_run: MakeRun) -> None:
    run, person = make_run(patience=12, pace="free")
    assert loop.train(run)
    assert len(person.asked) == 12 + asking.FEWEST_SPARE + MIN_OPEN_COMPARISONS
    assert person.most_open == MIN_OPEN_COMPARISONS


def test_cant_tell_gives_its_place_in_the_budget_back(make_run: MakeRun) -> None:
    run, person = make_run(pace="labels")
    answers = iter(["cant_tell"] * 10)
    person.judge = lambda first, second: next(answers, oracle(first, second))  # type: ignore[arg-type]
    assert loop.train(run)
    assert len(person.asked) == 70
    assert run.teaching.ledger.asked() == 60
    assert len(run.teaching.dataset) == run.teaching.ledger.usable()


def assert_waits_through_a_pause(
    person: Person, wait: Callable[[Run, Teaching], object], run: TaughtRun
) -> None:
    """A stage of the loop begins while the site has paused the run, and ends once that goes on."""
    person.paused_looks = 20
    wait(run, run.teaching)
    assert person.paused_looks == 0


def test_a_paused_experiment_holds_training_until_it_runs_again(make_run: MakeRun) -> None:
    run, person = make_run(pace="free")
    asking.pretrain(run, run.teaching)
    assert_waits_through_a_pause(person, asking.hold, run)


def test_a_pause_is_said_once_and_so_is_its_end(make_run: MakeRun) -> None:
    run, person = make_run()
    said = Console(record=True, file=io.StringIO(), width=200)
    run.console = RunConsole(said)
    person.paused_looks = 20
    assert asking.pretrain(run, run.teaching)
    assert run.agent.total_steps == 0
    text = said.export_text()
    assert text.count("Paused on the site.") == text.count("No longer paused.") == 1


def test_last_answers_are_awaited_in_a_pause(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LAST_LABELS_SECONDS", 0.0)
    monkeypatch.setattr(asking, "LAST_CLIPS_SECONDS", 0.0)
    run, person = make_run()
    asking.pretrain(run, run.teaching)
    person.submit(asking.first_questions(run, KINDS["pair"], 1), "training", 0)
    person.patience = 0
    assert_waits_through_a_pause(person, asking.take_last_labels, run)


def test_site_finish_saves_the_run(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run, person = make_run()
    said = Console(record=True, file=io.StringIO(), width=200)
    run.console = RunConsole(said)
    monkeypatch.setattr(train, "_greet", lambda _: person.finish())
    assert train._teach(run, "teach --resume x") == 0
    assert (run.config.run_dir / "checkpoint.npz").exists()
    text = said.export_text()
    assert "experiment was finished on the site; saved at step 0." in text
    assert "To resume: teach --resume x --reopen\n" in text
    with pytest.raises(ConfigError, match=r"finished on the site at step 0 of 2,000; .* x --reopen$"):
        train._teach(run, "teach --resume x")


@pytest.mark.parametrize("trained", [False, True])
def test_a_finished_experiment_ends_the_run(make_run: MakeRun, trained: bool) -> None:
    run, person = make_run(patience=12 if trained else 3)

    def finish_in_time() -> None:
        wait_until(lambda: (run.agent.total_steps > 0) is trained and any(person.waited_for[-1:]))
        person.finish()

    finisher = threading.Thread(target=finish_in_time)
    finisher.start()
    assert not loop.train(run)
    finisher.join()
    assert run.agent.total_steps < 2000


def test_a_run_without_questions_left_does_not_wait_for_answers_that_cannot_come(make_run: MakeRun) -> None:
    run, person = make_run(patience=12, pace="labels")
    asking.pretrain(run, run.teaching)
    person.patience = 0
    run.agent.total_steps = 1750  # as after a resume: much is due, and the pool is empty
    left_over = [comparison.uuid for comparison in person.asked]
    run.teaching.ledger.set_status(left_over, "cancelled")
    assert asking.hold(run, run.teaching)


def test_pretraining_pairs_use_no_segment_twice(make_run: MakeRun) -> None:
    run, _ = make_run(pretrain_labels=30)
    segments = [segment for pair in asking.first_questions(run, KINDS["pair"], 30) for segment in pair]
    assert len({(segment.recipe.seed, segment.start) for segment in segments}) == 60
    again = [segment for pair in asking.first_questions(run, KINDS["pair"], 30) for segment in pair]
    assert [s.recipe.seed for s in again] == [s.recipe.seed for s in segments]


def test_half_of_the_first_segments_show_the_policy_that_a_run_begins_from(make_run: MakeRun) -> None:
    first, _ = make_run()
    first.save()
    run, _ = make_run(policy=str(first.config.run_dir), name="warm", pretrain_labels=30)
    acted: set[float] = set()
    act = run.agent.act

    def remembering(observations: Any, *, deterministic: bool) -> Any:
        assert not deterministic
        actions = act(observations, deterministic=deterministic)
        acted.update(actions.ravel().tolist())
        return actions

    run.agent.act = remembering  # type: ignore[method-assign]
    for count in (30, 1):  # one pair in place of another
        segments = [segment for pair in asking.first_questions(run, KINDS["pair"], count) for segment in pair]
        of_policy = [set(segment.actions.ravel().tolist()) <= acted for segment in segments]
        assert len({(segment.recipe.seed, segment.start) for segment in segments}) == 2 * count
        assert sum(of_policy) == count


def test_a_policy_whose_episodes_are_too_short_gives_way_to_random_actions(make_run: MakeRun) -> None:
    first, _ = make_run()
    first.save()
    run, _ = make_run(policy=str(first.config.run_dir), name="warm")
    run.segment_length = run.task.horizon + 1
    assert len(asking.policy_segments(run, 3, seed=1)) == 0


def test_predicted_return_is_per_usual_episode(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = make_run(pace="free")
    asking.pretrain(run, run.teaching)
    given: list[Any] = []

    def remembered(*args: Any) -> Any:
        rewards = predicted_rewards(*args)
        given.append(rewards[args[1].valid])  # without the steps between two episodes
        return rewards

    monkeypatch.setattr(loop, "predicted_rewards", remembered)
    values = loop.iterate(run, correlate=False)
    assert {len(episode) for episode in run.episodes} == {run.task.horizon}
    expected = given[0].mean() * run.task.horizon
    assert values["agent/predicted_reward_per_episode"] == pytest.approx(expected, abs=1e-9)


def test_time_spent_waiting_does_not_count_for_labels_by_time(make_run: MakeRun) -> None:
    run, person = make_run()
    asking.pretrain(run, run.teaching)
    person.paused_looks = 20
    before = run.teaching.seconds
    asking.hold(run, run.teaching)
    assert person.paused_looks == 0
    assert run.teaching.seconds == before
    loop.iterate(run, correlate=True)
    assert run.teaching.seconds > before


def test_answers_that_come_while_training_holds_are_learned_from(make_run: MakeRun) -> None:
    run, person = make_run(pace="free")
    asking.pretrain(run, run.teaching)
    assert not run.teaching.stale
    person.submit(asking.first_questions(run, KINDS["pair"], 1), "training", 0)
    fitted: list[int] = []
    fit = run.teaching.fit

    def counted_fit(**limits: Any) -> FitReport:
        fitted.append(run.teaching.ledger.usable())
        return fit(**limits)

    run.teaching.fit = counted_fit  # type: ignore[method-assign]
    asking.hold(run, run.teaching)
    person.patience = 0
    answered = run.teaching.ledger.usable()
    loop.iterate(run, correlate=False)
    loop.iterate(run, correlate=False)
    assert fitted == [answered]


def test_the_predictor_is_fitted_again_when_enough_new_answers_have_come(make_run: MakeRun) -> None:
    run, person = make_run(pace="free", reward=dataclasses.replace(SMALL, refit_after=0.3))
    teaching = run.teaching
    assert teaching is not None
    asking.pretrain(run, teaching)
    before = len(teaching.dataset)
    while not teaching.stale:
        person.submit(asking.first_questions(run, KINDS["pair"], 1), "training", 0)
        assert teaching.receive()
    new = len(teaching.dataset) - before
    assert new == teaching.unfitted == math.ceil(0.3 * (before + new))
    teaching.fit()
    assert not teaching.stale


def test_diverged_fit_is_one_line_and_training_continues(make_run: MakeRun) -> None:
    reward = dataclasses.replace(SMALL, learning_rate=1e30, regularization="l2", strength=0.0)
    run, _ = make_run(pace="free", reward=reward, num_timesteps=1000)
    run.console = RunConsole(Console(file=io.StringIO(), soft_wrap=True))
    assert loop.train(run)
    said = run.console.rich.file.getvalue()  # type: ignore[attr-defined]
    assert said.count("--reward.learning_rate") == 1
    assert run.agent.total_steps >= 1000


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (["equal"], "no label used for fitting prefers either segment"),
        (["cant_tell"] * 12, 'all 10 labels so far are "can\'t tell", so nothing is learned'),
    ],
)
def test_undecided_answers_warn_once(make_run: MakeRun, answers: list[Decision], says: str) -> None:
    run, person = make_run(pace="free", num_timesteps=1000)
    run.console = RunConsole(Console(file=io.StringIO(), soft_wrap=True))
    if answers == ["equal"]:
        person.judge = lambda *_: "equal"
    else:
        person.judge = lambda *pair: answers.pop() if answers else oracle(*pair)
    assert loop.train(run)
    assert run.console.rich.file.getvalue().count(says) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(("gain", "times"), [(-9.0, 1), (9.0, 0)])
def test_squares_and_logarithms_are_told_once_where_they_are_read(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, gain: float, times: int
) -> None:
    monkeypatch.setattr(choice, "CLEAR_GAIN", gain)
    reward = dataclasses.replace(SMALL, patience=5)
    run, _ = make_run(pretrain_labels=54, pace="free", num_timesteps=600, reward=reward)
    run.console = RunConsole(Console(file=io.StringIO(), soft_wrap=True))
    assert loop.train(run)
    said = run.console.rich.file.getvalue()  # type: ignore[attr-defined]
    assert said.count("squares and logarithms") == times


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, {"max_updates": 20}), ({"initial_epochs": 7}, {"max_epochs": 7})],
)
def test_first_fit_length(make_run: MakeRun, settings: dict[str, int], expected: dict[str, int]) -> None:
    run, _ = make_run(reward=RewardConfig(**settings))  # type: ignore[arg-type]
    assert asking.first_limits(run.config) == expected
