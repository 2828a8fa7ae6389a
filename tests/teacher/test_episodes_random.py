"""Random episodes, and which environments they show to be unsuitable."""

from itertools import islice

import numpy as np
import pytest

from teacher.envs.random_episodes import check_episode_lengths, check_random_episodes, random_trajectories
from teacher.envs.tasks import describe_task
from teacher.errors import EnvironmentUnsuitableError


def test_random_trajectories_are_finished_and_reproducible() -> None:
    task = describe_task("CartPole-v1")
    first = list(islice(random_trajectories(task, seed=3), 12))
    again = list(islice(random_trajectories(task, seed=3, workers=3), 12))
    other = list(islice(random_trajectories(task, seed=4), 12))
    assert all(trajectory.finished for trajectory in first)
    assert [t.recipe().to_json() for t in first] == [t.recipe().to_json() for t in again]
    assert not {t.seed for t in first} & {t.seed for t in other}
    assert len({t.seed for t in first}) == 12


def test_random_actions_fill_the_action_box() -> None:
    trajectory = next(random_trajectories(describe_task("ShortHumanoid-v1"), seed=0, num_envs=1))
    assert np.abs(trajectory.actions).max() == pytest.approx(0.4, abs=0.01)
    assert trajectory.actions.mean() == pytest.approx(0, abs=0.02)


def test_too_short_episodes_are_refused_with_a_value_that_works() -> None:
    lengths = [30] * 41 + [90] * 9
    with pytest.raises(EnvironmentUnsuitableError, match=r"9 of 50 .* length is 30: pass --segment_steps 30"):
        check_episode_lengths(lengths, 75)
    check_episode_lengths(lengths, 30)


def test_a_fifth_of_the_episodes_is_enough() -> None:
    check_episode_lengths([30] * 40 + [90] * 10, 75)


def test_episodes_that_end_early_need_to_be_allowed() -> None:
    task = describe_task("CartPole-v1")
    with pytest.raises(EnvironmentUnsuitableError, match=r"leaks the reward.*--allow_variable_horizon"):
        check_random_episodes(task, 10, seed=0, allow_variable_horizon=False)
    check_random_episodes(task, 10, seed=0, allow_variable_horizon=True)


def test_cartpole_is_too_short_for_its_own_clips() -> None:
    with pytest.raises(EnvironmentUnsuitableError, match="--segment_steps"):
        check_random_episodes(describe_task("CartPole-v1"), 75, seed=0, allow_variable_horizon=True)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "teacher/Pendulum-v1", "Hopper-v1"])
def test_fixed_horizons_pass(env_id: str) -> None:
    check_random_episodes(describe_task(env_id), 15, seed=0, allow_variable_horizon=False)


def test_a_segment_longer_than_the_horizon_is_refused() -> None:
    with pytest.raises(EnvironmentUnsuitableError, match="pass --segment_steps 25"):
        check_random_episodes(describe_task("teacher/Pendulum-v1"), 26, seed=0, allow_variable_horizon=False)
