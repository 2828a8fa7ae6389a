"""Random episodes."""

from itertools import islice

import numpy as np
import pytest

from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import describe_task


def test_random_trajectories_are_finished_and_reproducible() -> None:
    task = describe_task("CartPole-v1")
    first = list(islice(random_trajectories(task, seed=3), 12))
    again = list(islice(random_trajectories(task, seed=3, workers=3), 12))
    other = list(islice(random_trajectories(task, seed=4), 12))
    assert all(trajectory.finished for trajectory in first)
    assert [t.recipe().to_json() for t in first] == [t.recipe().to_json() for t in again]
    assert not {t.seed for t in first} & {t.seed for t in other}
    assert len({t.seed for t in first}) == 12


def test_progress_is_told_before_the_first_episode_ends() -> None:
    told: list[int] = []
    episodes = random_trajectories(
        describe_task("teacher/MovingDot-v1"), seed=1, num_envs=2, tell=told.append
    )
    next(episodes)
    assert told == list(range(2, 82, 2))


def test_random_actions_fill_the_action_box() -> None:
    trajectory = next(random_trajectories(describe_task("ShortHumanoid-v1"), seed=0, num_envs=1))
    assert np.abs(trajectory.actions).max() == pytest.approx(0.4, abs=0.01)
    assert trajectory.actions.mean() == pytest.approx(0, abs=0.02)
