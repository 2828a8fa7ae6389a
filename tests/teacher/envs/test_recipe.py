"""Recipes survive the way through JSON; random and exploring steps can be replayed."""

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from teacher.envs.episodes import replay
from teacher.envs.random_episodes import Explorer, random_trajectories
from teacher.envs.recipe import EpisodeRecipe, library_versions
from teacher.envs.tasks import TaskInfo, describe_task
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError


@given(
    actions=hnp.arrays(
        st.sampled_from([np.dtype(name) for name in ("<f4", ">f8", "<i8", "u1", "?")]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    ),
    seed=st.integers(0, 2**63),
)
def test_json_keeps_every_bit(actions: NDArray[Any], seed: int) -> None:
    recipe = EpisodeRecipe("teacher/Hopper-v1", {"max_episode_steps": 30}, seed, actions)
    again = EpisodeRecipe.from_json(recipe.to_json())
    assert (again.env_id, again.kwargs, again.seed) == (recipe.env_id, recipe.kwargs, seed)
    assert again.actions.shape == actions.shape
    assert again.actions.dtype == actions.dtype.newbyteorder("=")
    assert again.actions.tobytes() == actions.astype(actions.dtype.newbyteorder("=")).tobytes()


def test_versions_are_those_of_the_recording() -> None:
    recipe = EpisodeRecipe("CartPole-v1", {}, 0, np.zeros(2, np.int64))
    assert recipe.versions == library_versions()
    assert set(recipe.versions) == {"gymnasium", "mujoco", "numpy"}
    older = recipe.to_json().replace(recipe.versions["numpy"], "1.0.0")
    assert EpisodeRecipe.from_json(older).versions["numpy"] == "1.0.0"


VALID = json.loads(EpisodeRecipe("CartPole-v1", {}, 0, np.zeros(2, np.int64)).to_json())
VALID_ACTIONS = VALID["actions"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "not json",
        *[json.dumps({key: VALID[key] for key in VALID if key != missing}) for missing in VALID],
        json.dumps({**VALID, "seed": "today"}),
        json.dumps({**VALID, "seed": float("inf")}),
        json.dumps({**VALID, "kwargs": 3}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "shape": [3]}}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "dtype": "O"}}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "dtype": "nonsense"}}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "dtype": "(2,3"}}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "base64": "!!!!"}}),
        "[" * 100_000,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="not an episode recipe"):
        EpisodeRecipe.from_json(text)


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
