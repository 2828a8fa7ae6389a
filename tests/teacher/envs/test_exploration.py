"""Steps for questions only: who acts when, and that they can be replayed."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from teacher.envs.episodes import replay
from teacher.envs.random_episodes import Explorer
from teacher.envs.tasks import TaskInfo, describe_task
from teacher.envs.trajectory import Trajectory

NOTHING = 0.125  # what the agent of these tests always does; chance does it with probability 0


def stand(observations: NDArray[Any]) -> NDArray[Any]:
    return np.full((len(observations), 3), NOTHING, np.float32)


@pytest.fixture(scope="module")
def task() -> TaskInfo:
    return describe_task("ShortHopper-v1")


def explored(
    task: TaskInfo, switch: float, chance: float, seed: int = 0, steps: int = 800
) -> list[NDArray[np.bool_]]:
    """Return the randomly chosen steps of each episode."""
    explorer = Explorer(task, (seed,), switch, chance)
    episodes: dict[int, Trajectory] = {}
    for _ in range(3):
        episodes |= {id(episode): episode for episode in explorer.explore(stand, steps)}
    explorer.close()
    return [(episode.actions != NOTHING).all(axis=1) for episode in episodes.values()]


def test_the_agent_and_chance_take_turns(task: TaskInfo) -> None:
    turns = explored(task, switch=0.1, chance=0.4)
    assert sum(map(len, turns)) >= 2400 - 8 * 4
    steps = np.concatenate(turns)
    assert 0.25 < steps.mean() < 0.55
    # Who acts changes in a step where it is chosen anew and someone else comes: 0.1 * 2 * 0.4 * 0.6.
    changes = np.concatenate([np.diff(episode) for episode in turns])
    assert 0.025 < changes.mean() < 0.075
    # Environments change by themselves.
    assert len({episode.tobytes() for episode in turns}) == len(turns)


@pytest.mark.parametrize(("switch", "chance", "share"), [(1.0, 0.0, 0.0), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0)])
def test_either_may_act_alone(task: TaskInfo, switch: float, chance: float, share: float) -> None:
    assert np.concatenate(explored(task, switch, chance, steps=80)).mean() == share


def test_unchanged_actor_continues(task: TaskInfo) -> None:
    turns = explored(task, switch=0.0, chance=0.5, seed=3, steps=80)
    assert {float(episode.mean()) for episode in turns} == {0.0, 1.0}


def test_seed_decides_exploration(task: TaskInfo) -> None:
    def actions(seed: int) -> list[NDArray[Any]]:
        explorer = Explorer(task, (seed, 40), 0.5, 0.5)
        episodes = explorer.explore(stand, 400)
        explorer.close()
        return [episode.actions for episode in episodes]

    for one, again, other in zip(actions(1), actions(1), actions(2), strict=True):
        np.testing.assert_array_equal(one, again)
        assert not np.array_equal(one, other)


def test_explored_episodes_replay(task: TaskInfo) -> None:
    explorer = Explorer(task, (5,), 0.5, 0.5, num_envs=2)
    (episode, _) = explorer.explore(stand, 60)
    explorer.close()
    steps = list(replay(episode.recipe()))
    np.testing.assert_array_equal([step.observation for step in steps], episode.observations)


def test_discrete_actions_are_mixed_too() -> None:
    explorer = Explorer(describe_task("CartPole-v1"), (0,), 0.5, 0.5)
    episodes = explorer.explore(lambda observations: np.ones(len(observations), np.int64), 800)
    explorer.close()
    assert 0.6 < np.concatenate([episode.actions for episode in episodes]).mean() < 0.9
