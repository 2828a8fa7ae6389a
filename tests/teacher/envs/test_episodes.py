"""Episodes are recorded as executed, replay bit-exactly, and do not depend on who steps them."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from teacher.envs.episodes import EpisodeRecorder, SeededResets, episode_seeds, replay
from teacher.envs.fast.threads import ThreadedVectorEnv
from teacher.envs.make import make_env
from teacher.envs.recipe import EpisodeRecipe
from teacher.envs.tasks import describe_task, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.errors import EnvironmentUnsuitableError, ReplayMismatchError
from tests.environments import Stub

Transition = tuple[NDArray[Any], float, bool, bool]


def play(envs: EpisodeRecorder, steps: int, seed: int = 0) -> Iterator[tuple[Any, ...]]:
    """Act at random."""
    envs.action_space.seed(seed)
    envs.reset()
    for _ in range(steps):
        yield envs.step(envs.action_space.sample())


def record(env_id: str, steps: int, num_envs: int = 3, horizon: int | None = None) -> list[Trajectory]:
    envs = make_vector_env(describe_task(env_id, horizon), num_envs, seed=5)
    for _ in play(envs, steps):
        pass
    trajectories = envs.drain()
    envs.close()
    return trajectories


def assert_replays(trajectory: Trajectory) -> None:
    steps = list(replay(trajectory.recipe()))
    assert len(steps) == len(trajectory) > 0
    observations = np.stack([step.observation for step in steps])
    assert observations.dtype == trajectory.observations.dtype
    np.testing.assert_array_equal(observations, trajectory.observations)
    np.testing.assert_array_equal([step.reward for step in steps], trajectory.true_rewards)


def assert_goes_on_to(trajectory: Trajectory) -> None:
    """Return what comes after each step, by stepping an environment of one's own."""
    with make_env(trajectory.recipe().env_id, trajectory.recipe().kwargs) as env:
        env.reset(seed=trajectory.seed)
        outcomes = [env.step(action.copy()) for action in trajectory.actions]
        after = np.array([outcome[0] for outcome in outcomes], env.observation_space.dtype)
    np.testing.assert_array_equal(trajectory.next_observations, after)
    np.testing.assert_array_equal(trajectory.final_observation, after[-1])
    assert trajectory.terminations.tolist() == [outcome[2] for outcome in outcomes]
    assert trajectory.truncated == outcomes[-1][3]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Hopper-v5", "ShortReacher-v1", "Acrobot-v1"])
def test_next_states_are_those_of_an_environment_alone(env_id: str) -> None:
    trajectories = record(env_id, 90, horizon=40 if env_id == "Acrobot-v1" else None)
    finished = [trajectory for trajectory in trajectories if trajectory.finished]
    assert len(finished) >= 6
    assert len(finished) < len(trajectories)
    for trajectory in trajectories:
        assert_goes_on_to(trajectory)


def test_next_states_of_a_growing_episode() -> None:
    envs = make_vector_env(describe_task("ShortHopper-v1"), 2, seed=0)
    for count, _ in enumerate(play(envs, 140), 1):
        if count in (1, 63, 64, 65, 130):  # around the steps that are kept together, and a doubling
            for trajectory in envs.drain():
                assert len(trajectory) == count
                assert_goes_on_to(trajectory)
    envs.close()


@pytest.mark.parametrize("env_id", ["ShortHopper-v1", "ShortReacher-v1", "CartPole-v1", "Acrobot-v1"])
def test_third_episode_of_second_environment_replays_bit_exactly(env_id: str) -> None:
    trajectories = record(env_id, 200, horizon=None if env_id == "ShortReacher-v1" else 60)
    (third,) = (t for t in trajectories if (t.env_index, t.episode_index) == (1, 2))
    assert third.finished
    assert_replays(third)


@pytest.mark.parametrize("family", ["Walker", "Cheetah", "Swimmer", "Ant", "Humanoid", "Pendulum"])
def test_the_families_replay_bit_exactly(family: str) -> None:
    for trajectory in record(f"Short{family}-v1", 60, num_envs=2):
        assert_replays(trajectory)


def test_a_recipe_replays_in_another_process(tmp_path: Path) -> None:
    task = describe_task("ShortHopper-v1", max_episode_steps=30)
    envs = make_vector_env(task, 2, seed=1)
    for _ in play(envs, 40):
        pass
    trajectory = next(t for t in envs.drain() if t.finished)
    envs.close()
    (tmp_path / "recipe.json").write_text(trajectory.recipe().to_json())
    program = (
        "import numpy, pathlib\n"
        "from teacher.envs.episodes import replay\n"
        "from teacher.envs.recipe import EpisodeRecipe\n"
        "recipe = EpisodeRecipe.from_json(pathlib.Path('recipe.json').read_text())\n"
        "steps = list(replay(recipe))\n"
        "assert steps[-1].env.get_wrapper_attr('_max_episode_steps') == 30\n"
        "numpy.save('observations.npy', numpy.stack([step.observation for step in steps]))\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "observations.npy"), trajectory.observations)


def test_trajectories_hold_every_real_step_and_no_dummy() -> None:
    envs = make_vector_env(describe_task("CartPole-v1"), 4, seed=2)
    real_steps = dummies = endings = 0
    after_end = np.zeros(4, bool)
    for _, rewards, terminated, truncated, _ in play(envs, 200):
        assert (rewards[~after_end] == 1).all()
        real_steps += int((~after_end).sum())
        dummies += int(after_end.sum())
        after_end = terminated | truncated
        endings += int(after_end.sum())
    trajectories = envs.drain()
    envs.close()
    assert endings > 20
    assert dummies > 20
    assert sum(len(t) for t in trajectories) == real_steps
    assert sum(t.finished for t in trajectories) == endings
    assert all(t.true_return == len(t) for t in trajectories)  # a dummy's reward would be 0


def test_observations_are_those_before_each_step() -> None:
    envs = make_vector_env(describe_task("CartPole-v1"), 2, seed=0)
    envs.action_space.seed(0)
    before, _ = envs.reset()
    seen: list[NDArray[Any]] = []
    made: list[NDArray[Any]] = []
    for _ in range(8):
        actions = envs.action_space.sample()
        seen.append(before[1].copy())
        made.append(actions[1])
        before, *_ = envs.step(actions)
        before_by_caller = before
        before = before.copy()
        before_by_caller[:] = np.nan  # what is handed out may be written over
    trajectory = envs.drain()[1]
    envs.close()
    np.testing.assert_array_equal(trajectory.observations, seen)
    np.testing.assert_array_equal(trajectory.actions, made)


def test_actions_are_noted_in_the_dtype_they_are_executed_in() -> None:
    envs = make_vector_env(describe_task("ShortHopper-v1"), 2, seed=0)
    envs.reset()
    actions = np.full((2, 3), 1 / 3)
    for _ in range(3):
        envs.step(actions)
    actions[:] = 9  # the record is not a view of the caller's array
    trajectory = envs.drain()[0]
    envs.close()
    assert trajectory.actions.dtype == np.float32
    np.testing.assert_array_equal(trajectory.actions, np.full((3, 3), 1 / 3, np.float32))
    assert_replays(trajectory)


def test_fractions_are_no_discrete_actions() -> None:
    envs = make_vector_env(describe_task("CartPole-v1"), 2, seed=0)
    envs.reset()
    with pytest.raises(TypeError, match="same_kind"):
        envs.step(np.array([0.5, 1.0]))
    envs.close()


def test_drain_returns_what_grew() -> None:
    envs = make_vector_env(describe_task("ShortReacher-v1"), 2, seed=0)
    envs.action_space.seed(0)
    envs.reset()
    assert envs.drain() == []
    for _ in range(15):
        envs.step(envs.action_space.sample())
    running = envs.drain()
    assert [(t.env_index, t.episode_index, len(t), t.finished) for t in running] == [
        (0, 0, 15, False),
        (1, 0, 15, False),
    ]
    assert envs.drain() == []
    for _ in range(9):  # five more, one dummy, three of the next episode
        envs.step(envs.action_space.sample())
    drained = envs.drain()
    envs.close()
    assert drained[:2] == running
    assert [(t.env_index, t.episode_index, len(t), t.finished) for t in drained] == [
        (0, 0, 20, True),
        (1, 0, 20, True),
        (0, 1, 3, False),
        (1, 1, 3, False),
    ]


def test_a_reset_cuts_running_episodes_off() -> None:
    envs = make_vector_env(describe_task("ShortReacher-v1"), 2, seed=0)
    envs.reset()
    envs.step(np.zeros((2, 2), np.float32))
    envs.reset(options={"reset_mask": np.array([True, False])})
    envs.step(np.zeros((2, 2), np.float32))
    found = {(t.env_index, t.episode_index): (len(t), t.finished) for t in envs.drain()}
    envs.close()
    assert found == {(0, 0): (1, False), (0, 1): (1, False), (1, 0): (2, False)}


def test_views_of_a_growing_episode_stay_what_they_were() -> None:
    envs = make_vector_env(describe_task("ShortHopper-v1"), 1, seed=0)
    run = play(envs, 290)
    for _ in range(50):
        next(run)
    (trajectory,) = envs.drain()
    recipe, observations = trajectory.recipe(), trajectory.observations
    actions_then, observations_then = recipe.actions.copy(), observations.copy()
    for _ in run:
        pass
    assert envs.drain() == [trajectory]
    assert len(trajectory) == 290
    np.testing.assert_array_equal(recipe.actions, actions_then)
    np.testing.assert_array_equal(observations, observations_then)
    np.testing.assert_array_equal(trajectory.actions[:50], actions_then)
    assert not recipe.actions.flags.writeable
    envs.close()


def plain(value: Any) -> Any:
    """Nested arrays of arrays, which final observations come in, as lists."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.dtype == object):
        return [plain(item) for item in value]
    return value


@pytest.mark.parametrize("env_id", ["Acrobot-v1", "ShortReacher-v1"])
def test_results_do_not_depend_on_workers(env_id: str) -> None:
    def run(workers: int) -> tuple[list[Any], list[EpisodeRecipe]]:
        envs = make_vector_env(describe_task(env_id, max_episode_steps=15), 5, 7, workers)
        outcomes = [plain(outcome) for outcome in play(envs, 80)]
        recipes = [trajectory.recipe() for trajectory in envs.drain()]
        envs.close()
        return outcomes, recipes

    alone, alone_recipes = run(1)
    for workers in (2, 3, 8):
        together, recipes = run(workers)
        np.testing.assert_equal(together, alone)
        assert [recipe.to_json() for recipe in recipes] == [recipe.to_json() for recipe in alone_recipes]


def test_an_error_in_a_thread_reaches_the_caller() -> None:
    envs = make_vector_env(describe_task("MountainCar-v0"), 3, seed=0, workers=2)
    envs.reset()
    with pytest.raises(
        EnvironmentUnsuitableError, match=r"^MountainCar-v0 failed in step: Asser.* invalid.*$"
    ):
        envs.step(np.array([0, 1, 3]))
    envs.close()


def test_seeds_are_never_shared() -> None:
    num_envs, episodes = 16, 2000
    drawn = [
        [next(seeds) for _ in range(episodes)]
        for seeds in (episode_seeds([1, 2], index, num_envs) for index in range(num_envs))
    ]
    assert len(set().union(*drawn)) == len({(i, s) for i, seeds in enumerate(drawn) for s in seeds})
    assert all(0 <= seed < 2**31 for seeds in drawn for seed in seeds)
    assert len(set(drawn[0])) >= episodes - 1  # and hardly ever repeated


def test_seeds_follow_from_the_run_seed() -> None:
    def first_seeds(seed: int | list[int]) -> list[int]:
        envs = make_vector_env(describe_task("ShortReacher-v1"), 3, seed)
        seeds: list[int] = envs.reset()[1]["episode_seed"].tolist()
        envs.close()
        return seeds

    assert first_seeds(4) == first_seeds(4)
    assert not set(first_seeds(4)) & set(first_seeds(5))
    assert not set(first_seeds(4)) & set(first_seeds([4, 1]))


def test_a_seed_of_the_caller_is_the_one_recorded() -> None:
    envs = make_vector_env(describe_task("ShortReacher-v1"), 2, seed=0)
    envs.reset(seed=100)
    envs.step(np.zeros((2, 2), np.float32))
    trajectories = envs.drain()
    envs.close()
    assert [trajectory.seed for trajectory in trajectories] == [100, 101]
    assert_replays(trajectories[1])


def test_resets_with_options_are_refused() -> None:
    env = SeededResets(gym.make("CartPole-v1"), iter([1]))
    with pytest.raises(ValueError, match="can't be replayed"):
        env.reset(options={"low": -0.1})
    env.close()


class Moody(Stub):
    """Ends after five steps while young, and after three from its second reset on."""

    length, terminates = 0, True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.length = 3 if self.length else 5
        return super().reset(seed=seed)


def test_a_replay_that_ends_early_is_refused() -> None:
    env = Moody()
    recipe = EpisodeRecipe("Moody-v0", {}, 1, np.zeros(5, np.int64))
    assert len(list(replay(recipe, env))) == 5
    with pytest.raises(ReplayMismatchError, match="ended after 3 of 5 steps"):
        list(replay(recipe, env))


OBSERVATION = np.zeros(2, np.float32)


class Broken(gym.Env[NDArray[np.float32], np.int64]):
    """Its step, or its reset, returns what it is told to, or raises it."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, step: Any = None, reset: Any = (OBSERVATION, {})) -> None:
        self._step, self._reset = step, reset
        self._needs_options = isinstance(reset, str)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._result(options["level"] if self._needs_options else self._reset)  # type: ignore[index]

    def step(self, action: np.int64) -> Any:
        return self._result(self._step)

    def _result(self, result: Any) -> Any:
        if isinstance(result, BaseException):
            raise result
        return result


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (RuntimeError("no\npower"), "failed in step: RuntimeError: no power; fix the env"),
        (SystemExit(0), "failed in step: SystemExit: 0; fix the env"),
        (
            (OBSERVATION, 0.0, False, {}),
            "got 4.*step must return observation, reward, terminated, truncated and info; fix the env",
        ),
        (None, "failed in step: TypeError: cannot unpack"),
        (
            (OBSERVATION[:1], 0.0, False, False, {}),
            r"observation of shape \(1,\) .* declares \(2,\) and float32; fix the env",
        ),
        ((None, 0.0, False, False, {}), r"an observation of shape \(\) and dtype object, .*; fix the env"),
        (
            (OBSERVATION.astype(object), 0.0, False, False, {}),
            r"of shape \(2,\) and dtype object, .* float32; fix the env",
        ),
        (
            (OBSERVATION, np.zeros(1), False, False, {}),
            r"returned the reward array\(\[0\.\]\), which is not a number",
        ),
        (
            (OBSERVATION, None, False, False, {}),
            "returned the reward None, which is not a number; fix the env",
        ),
    ],
)
@pytest.mark.parametrize("vector", [SyncVectorEnv, partial(ThreadedVectorEnv, workers=2)])
def test_broken_step_is_one_line(step: Any, said: str, vector: Callable[[Any], Any]) -> None:
    envs = vector([lambda: SeededResets(gym.wrappers.TimeLimit(Broken(step), 9), iter([1]))] * 2)
    envs.reset()
    with pytest.raises(EnvironmentUnsuitableError, match=said) as error:
        envs.step(np.zeros(2, np.int64))
    assert "\n" not in str(error.value)
    envs.close()


@pytest.mark.parametrize(
    ("reset", "said"),
    [
        (RuntimeError("no power"), "failed in reset: RuntimeError: no power; fix the env"),
        (np.zeros(3), "failed in reset: ValueError.*; reset must return observation and info; fix the env"),
        (
            "level",
            "failed in reset: TypeError: .* without options, which runs don't pass, so give them default",
        ),
        ((np.zeros(3), {}), r"shape \(3,\) and dtype float64, .* \(2,\) and float32; fix the env"),
    ],
)
def test_an_environment_that_breaks_in_a_reset_is_an_error_of_one_line(reset: Any, said: str) -> None:
    env = SeededResets(Broken(reset=reset), iter([1]))
    with pytest.raises(EnvironmentUnsuitableError, match=said):
        env.reset()


@pytest.mark.parametrize("reward", [1, np.float32(1), np.int64(1), np.array(1.0), True])
def test_numbers_and_lists_of_any_kind_are_rewards_and_observations(reward: Any) -> None:
    env = SeededResets(Broken(([0.0, 0.5], reward, False, False, {})), iter([1]))
    assert env.step(np.int64(0)) == ([0.0, 0.5], 1, False, False, {})


class InPlace(gym.Wrapper[Any, Any, Any, Any]):
    """Writes into its action, and always returns the same observation array."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.shared, info = self.env.reset(seed=seed, options=options)
        return self.shared, info

    def step(self, action: Any) -> Any:
        action *= 0.5
        observation, *rest = self.env.step(action)
        self.shared[:] = observation
        return self.shared, *rest


def test_environments_may_write_into_their_arrays() -> None:
    def make() -> gym.Env[Any, Any]:
        return InPlace(make_env("ShortReacher-v1", {}))

    envs = EpisodeRecorder(SyncVectorEnv([lambda: SeededResets(make(), iter([11]))]), "", {})
    for _ in play(envs, 6):
        pass
    (trajectory,) = envs.drain()
    steps = list(replay(trajectory.recipe(), make()))
    envs.close()
    np.testing.assert_array_equal([step.observation for step in steps], trajectory.observations)
    np.testing.assert_array_equal([step.reward for step in steps], trajectory.true_rewards)
