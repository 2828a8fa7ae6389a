"""The loop around a synthetic teacher: what it asks about, what it tells, and what it leaves alone."""

import dataclasses
import io
import itertools
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from agents.rollout import Rollout
from teacher.data.decisions import Phase
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment, SegmentPair
from teacher.envs.episodes import replay
from teacher.errors import UndecidedError
from teacher.queries.kinds import preferences_in
from teacher.queries.schedules import RateSchedule
from teacher.queries.selection import disagreement, select_pairs
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import FitReport
from teacher.settings.config import RunSettings
from teacher.settings.options import QueryConfig, RewardConfig
from teacher.training import asking, loop
from teacher.training.builder import build_run
from teacher.training.parts import RunPlan
from teacher.training.run import Run, Teaching
from tests.teacher.training.conftest import short_run

MakeRun = Callable[..., tuple[Run, Teaching]]
PRETRAINING = 12
SMALL = RewardConfig(hidden=16)


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[MakeRun]:
    """A short run, of short rollouts, whose teacher is the true reward."""
    with ExitStack() as parts:

        def make(**settings: Any) -> tuple[Run, Teaching]:
            common = {"num_timesteps": 470, "segment_steps": 4, "reward": SMALL}  # one round
            console = Console(width=300, file=io.StringIO())
            run = short_run(parts, tmp_path, console, **{**common, **settings})
            assert run.teaching is not None
            return run, run.teaching

        yield make


def asked(teaching: Teaching) -> list[SegmentPair]:
    """The pairs in the ledger, but for those before training."""
    pairs = [(preference.first, preference.second) for preference in preferences_in(teaching.ledger)]
    return pairs[PRETRAINING:]


def said(run: Run) -> str:
    """Return what was printed."""
    assert isinstance(run.console.rich.file, io.StringIO)
    return run.console.rich.file.getvalue()


def known_by(segment: Segment) -> tuple[int, int]:
    return segment.recipe.seed, segment.start


def test_each_round_is_told_when_it_is_over(make_run: MakeRun) -> None:
    run, _ = make_run(num_timesteps=980)
    rounds: list[loop.Round] = []
    assert loop.train(run, rounds.append)
    assert [told.step for told in rounds] == [496, 992]  # without those between two episodes
    assert all(told.run is run for told in rounds)
    assert [told.values["labels/asked"] for told in rounds] == [55, 60]
    assert {"predictor/accuracy", "predictor/rank_correlation", "agent/value_loss"} <= set(rounds[1].values)


def test_no_pair_of_a_run_is_asked_about_twice(make_run: MakeRun) -> None:
    run, teaching = make_run(n_labels=150, num_timesteps=980, schedule="constant", segment_steps=25)
    assert loop.train(run)
    pairs = [frozenset(map(known_by, pair)) for pair in asked(teaching)]
    assert len(pairs) == len(set(pairs)) == 150 - PRETRAINING
    assert all(len(pair) == 2 for pair in pairs)


def test_a_run_asks_what_its_members_disagree_about(make_run: MakeRun) -> None:
    run, teaching = make_run(queries=QueryConfig(selection="active"))
    asking.pretrain(run, teaching)
    fit, pairs = teaching.fit, []

    def late_fit(**limits: Any) -> FitReport:
        pool = SegmentPool(run.segment_length)
        pool.add(teaching.pool.segments)
        for some in (asked(teaching), pool.sample_pairs(300)):
            pairs.append(disagreement(teaching.predictor, some, "probability").mean())
        return fit(**limits)

    teaching.fit = late_fit  # type: ignore[method-assign]
    loop.iterate(run, correlate=False)
    of_asked, of_random = pairs
    assert of_asked > 1.5 * of_random


def test_explored_steps_are_asked_about_and_never_trained_on(make_run: MakeRun) -> None:
    run, teaching = make_run(queries=QueryConfig(exploration_frac=0.5))
    trained_on: set[int] = set()
    drain = run.envs.drain

    def watching() -> Any:
        trajectories = drain()
        trained_on.update(episode.seed for episode in trajectories)
        return trajectories

    run.envs.drain = watching  # type: ignore[method-assign]
    assert loop.train(run)
    assert run.agent.total_steps == 496
    segments = [segment for pair in asked(teaching) for segment in pair]
    explored = [segment for segment in segments if segment.recipe.seed not in trained_on]
    assert 0.35 < len(explored) / len(segments) < 0.65
    steps = list(replay(explored[0].recipe))[explored[0].start :]
    np.testing.assert_array_equal([step.observation for step in steps], explored[0].observations)


def test_without_a_mix_nothing_is_explored(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = make_run(num_timesteps=470)
    monkeypatch.delattr(type(run.opened.explorer), "explore")
    assert loop.train(run)


@pytest.mark.parametrize(("labels", "warnings"), [(30, 0), (120, 1)])
def test_too_few_segments_warn_once(make_run: MakeRun, labels: int, warnings: int) -> None:
    run, _ = make_run(n_labels=labels, num_timesteps=980, schedule="constant")
    assert loop.train(run)
    lines = [line for line in said(run).splitlines() if "segments are too few" in line]
    assert len(lines) == warnings
    assert all("--segment_steps" in line for line in lines)


def test_a_rollout_is_rewarded_by_one_predictor(make_run: MakeRun) -> None:
    run, teaching = make_run()
    asking.pretrain(run, teaching)
    seen: list[tuple[Rollout, NDArray[Any]]] = []
    update = run.agent.update

    def watching(rollout: Rollout, rewards: NDArray[Any], **more: Any) -> dict[str, float]:
        seen.append((rollout, rewards))
        return update(rollout, rewards, **more)

    run.agent.update = watching  # type: ignore[method-assign]
    for _ in range(2):
        loop.iterate(run, correlate=True)
        rollout, rewards = seen[-1]
        # All of it by the predictor as the last fit left it: its statistics do not move with the steps.
        steps = rollout.observations, rollout.executed_actions, rollout.next_observations
        by_step = [teaching.predictor.rewards(*step) for step in zip(*steps, strict=True)]
        np.testing.assert_allclose(by_step, rewards, atol=1e-6)


def test_the_critic_learns_new_rewards_where_the_predictor_was_fitted(make_run: MakeRun) -> None:
    run, teaching = make_run(value_refit=3)
    epochs: list[int] = []
    update = run.agent.update

    def watching(rollout: Rollout, rewards: NDArray[Any], *, critic_epochs: int = 0) -> dict[str, float]:
        epochs.append(critic_epochs)
        return update(rollout, rewards, critic_epochs=critic_epochs)

    run.agent.update = watching  # type: ignore[method-assign]
    asking.pretrain(run, teaching)
    loop.iterate(run, correlate=False)
    teaching.schedule = RateSchedule(60, 60, 470, lambda progress: 1.0)  # which asks for no more
    loop.iterate(run, correlate=False)
    assert epochs == [3, 0]


def test_running_statistics_are_of_steps_really_made(make_run: MakeRun) -> None:
    reward = dataclasses.replace(SMALL, normalization="running", inputs="state,action,next_state")
    run, teaching = make_run(reward=reward)
    asking.pretrain(run, teaching)
    scales: list[list[float]] = []
    update = run.agent.update

    def watching(rollout: Rollout, rewards: NDArray[Any], *, critic_epochs: int = 0) -> dict[str, float]:
        assert not rollout.valid.all()
        scales.append([rewards[rollout.valid].mean(), rewards[rollout.valid].std()])
        return update(rollout, rewards, critic_epochs=critic_epochs)

    run.agent.update = watching  # type: ignore[method-assign]
    loop.iterate(run, correlate=False)
    np.testing.assert_allclose(scales, [[0.0, 0.05]], rtol=1e-4, atol=1e-6)


def test_answers_that_teach_nothing_are_no_reason_to_fit(make_run: MakeRun) -> None:
    run, teaching = make_run(teacher="skip:0.9")
    asking.pretrain(run, teaching)
    loop.iterate(run, correlate=False)
    before, unfitted = len(teaching.dataset), teaching.unfitted
    teaching.collector.submit(teaching.pool.sample_pairs(20), "training", run.agent.total_steps)
    assert teaching.receive()
    assert 0 < len(teaching.dataset) - before < 20
    assert teaching.unfitted - unfitted == len(teaching.dataset) - before


def test_episodes_that_begin_to_end_early_are_told_once(make_run: MakeRun) -> None:
    for allowed in (False, True):
        run, _ = make_run(name=f"allowed-{allowed}", allow_variable_horizon=allowed)
        run.agent.collect()
        finished = [trajectory for trajectory in run.envs.drain() if trajectory.finished]
        run.remember(finished)
        assert "end early" not in said(run)
        finished[0].terminated = True
        run.remember(finished)
        run.remember(finished)
        assert said(run).count("now end early, and their length leaks the reward") == (not allowed)


def test_a_resumed_run_goes_on_asking_of_new_segments(make_run: MakeRun) -> None:
    """Also of explored ones, which come from environments that are not saved."""
    queries = QueryConfig(exploration_frac=0.5, selection="active", recency=20.0, diversity=2)
    run, _ = make_run(n_labels=40, queries=queries)
    assert loop.train(run)
    run.save()
    config = dataclasses.replace(run.config, num_timesteps=980, n_labels=60)
    resumed = build_run(RunPlan(RunSettings(config, uuid.uuid4()), run.task), run.console.rich)
    with resumed:
        assert loop.train(resumed)
        assert resumed.teaching is not None
        pairs = asked(resumed.teaching)
    assert len(pairs) == 60 - PRETRAINING
    segments = [known_by(segment) for pair in pairs for segment in pair]
    before, after = set(segments[:56]), set(segments[56:])
    assert before.isdisjoint(after)


def test_parts_set_in_python_are_missed_until_they_are_set_again(make_run: MakeRun) -> None:
    run, teaching = make_run(n_labels=40)
    used: list[str] = []

    def select(*given: Any) -> list[SegmentPair]:
        used.append("select")
        return select_pairs(*given)

    def loss(logits: Tensor, values: Tensor) -> Tensor:
        used.append("loss")
        return (logits.sigmoid() - values).square()

    def set_parts(teaching: Teaching) -> None:
        spaces, steps = (run.task.observation_space, run.task.action_space), run.config.num_timesteps
        teaching.schedule = RateSchedule(PRETRAINING, 40, steps, lambda progress: 1 - progress)
        teaching.select, state = select, teaching.predictor.state_dict()
        teaching.predictor = RewardPredictor(*spaces, run.config.reward, 1, loss=loss)
        if teaching.predictor.model == state["model"]:
            teaching.predictor.load_state_dict(state)

    set_parts(teaching)
    assert loop.train(run)
    assert {"select", "loss"} == set(used)
    assert "resuming with" not in said(run)
    run.save()
    for again in (False, True):
        with build_run(RunPlan(RunSettings(run.config, uuid.uuid4()), run.task), run.console.rich) as resumed:
            assert resumed.teaching is not None
            if again:
                set_parts(resumed.teaching)
            assert loop.train(resumed)
    for instead in ("--schedule exponential", "--queries.selection active", "the default loss"):
        assert said(run).count(f"resuming with {instead}") == 1


def test_comparisons_that_the_ledger_lost_are_missed(make_run: MakeRun, tmp_path: Path) -> None:
    """Check what a killed run leaves is a ledger and its -wal file; here the second is damaged."""
    run, teaching = make_run(n_labels=40)
    assert loop.train(run)
    run.save()
    for damage in (False, True):
        config = dataclasses.replace(run.config, runs_dir=str(tmp_path / f"copy-{damage}"))
        shutil.copytree(run.config.run_dir, config.run_dir, ignore=shutil.ignore_patterns("*-shm"))
        journal = config.run_dir / f"{teaching.ledger.path.name}-wal"
        if damage:
            journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2])
        with build_run(RunPlan(RunSettings(config, uuid.uuid4()), run.task), run.console.rich) as resumed:
            assert resumed.teaching is not None
            assert (resumed.teaching.forgotten > 0) == damage
            assert resumed.teaching.ledger.total() == 40 - resumed.teaching.forgotten
            assert loop.train(resumed)
    assert said(run).count("comparisons since this run was saved") == 1


def test_skipped_questions_use_no_label(make_run: MakeRun) -> None:
    run, teaching = make_run(teacher="skip:0.9")
    assert loop.train(run)
    assert teaching.ledger.total() > 60  # some were asked about in vain
    assert len(teaching.dataset) == 60


def test_thresholds_of_collected_segments_follow_the_runs_own(make_run: MakeRun) -> None:
    run, teaching = make_run(teacher="equal:0.1,collected:10")
    assert loop.train(run)
    average = np.mean([abs(segment.true_return) for segment in teaching.pool.newest(10)])
    teaching.collector.submit(pairs := teaching.pool.sample_pairs(50), "training", run.step)
    expected = [abs(first.true_return - second.true_return) < 0.1 * average for first, second in pairs]
    assert [each.value == 0.5 for each in teaching.collector.receive()] == expected
    assert 0 < sum(expected) < 50


def test_all_skipped_labels_complete_a_run(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run, teaching = make_run(teacher="skip:0.9")
    submit, times = teaching.collector.submit, itertools.count()

    def submit_in_time(pairs: Sequence[SegmentPair], phase: Phase, *rest: Any) -> None:
        if phase == "training" and next(times) > 0:  # not for the round itself, but again
            raise UndecidedError("nothing to 1000 questions in a row")
        submit(pairs, phase, *rest)

    monkeypatch.setattr(teaching.collector, "submit", submit_in_time)
    assert loop.train(run)
    assert next(times) == 2
    assert PRETRAINING < len(teaching.dataset) < 60
