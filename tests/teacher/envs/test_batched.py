"""Environments that are stepped at once do what they do one by one, to the last bit."""

import functools
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from teacher.envs.episodes import SeededResets, episode_seeds, replay
from teacher.envs.fast import batched_mujoco
from teacher.envs.fast.batched_mujoco import BatchedMujoco, Physics, Simulation
from teacher.envs.fast.threads import ThreadedVectorEnv
from teacher.envs.make import make_env
from teacher.envs.tasks import describe_task, make_vector_env

NUM_ENVS = 5
LIMIT = 30  # most steps of an episode, where the environment's own would be waited for too long
V5 = ["Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Swimmer-v5"]
FALLING = {"Hopper-v5", "Walker2d-v5"}
FAMILIES = [
    f"teacher/{prefix}{name}-v1"
    for prefix in ("", "Short")
    for name in ("Hopper", "Walker", "Cheetah", "Swimmer")
]


def makers(env_id: str, **kwargs: Any) -> list[Callable[[], gym.Env[Any, Any]]]:
    def make(index: int) -> gym.Env[Any, Any]:
        return SeededResets(make_env(env_id, kwargs), episode_seeds([9], index, NUM_ENVS))

    return [functools.partial(make, index) for index in range(NUM_ENVS)]


def bits(value: Any) -> Any:
    """Return what tells apart all that may differ, even zeros by their sign."""
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [bits(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return value


def random_actions(envs: SyncVectorEnv[Any, Any], steps: int) -> Iterator[NDArray[Any]]:
    """Forward, none (zeros of both signs) and backward, at a strength at which some fall before the limit."""
    envs.action_space.seed(1)
    for step in range(steps):
        actions: NDArray[Any] = envs.action_space.sample()
        yield actions * np.float32(step % 3 - 1) if actions.dtype.kind == "f" else actions


def play(envs: SyncVectorEnv[Any, Any], steps: int) -> tuple[list[Any], NDArray[np.int64]]:
    """All that the environments return, and how many episodes terminated and were truncated."""
    trace = [bits(envs.reset(seed=4)[0])]
    endings = np.zeros(2, np.int64)
    for actions in random_actions(envs, steps):
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        assert observations.flags.c_contiguous
        trace.append([bits(value) for value in (observations, rewards, terminated, truncated, infos)])
        endings += terminated.sum(), truncated.sum()
        ended = terminated | truncated
        for array in (observations, rewards, terminated, truncated):
            array.fill(1)  # what is handed out may be written over
        if envs.autoreset_mode is AutoresetMode.DISABLED and ended.any():
            trace.append([bits(value) for value in envs.reset(options={"reset_mask": ended})])
    envs.close()
    return trace, endings


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("env_id", V5 + FAMILIES[:4])
def test_trajectories_are_those_of_one_by_one(env_id: str, mode: AutoresetMode) -> None:
    steps = 100
    expected, (fallen, timed_out) = play(
        SyncVectorEnv(makers(env_id, max_episode_steps=LIMIT), autoreset_mode=mode), steps
    )
    assert (fallen > 3) == (env_id in FALLING)
    assert timed_out > 3
    for workers in (1, 2):
        envs = BatchedMujoco(makers(env_id, max_episode_steps=LIMIT), workers, mode)
        assert play(envs, steps)[0] == expected


@pytest.mark.parametrize("env_id", ["Walker2d-v5", "teacher/ShortHopper-v1"])
def test_episodes_end_at_the_limit_of_the_environment_itself(env_id: str) -> None:
    for_each = [play(kind(makers(env_id)), 310)[0] for kind in (SyncVectorEnv, BatchedMujoco)]
    assert for_each[0] == for_each[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hopeless_actions_do_the_same_as_one_by_one(dtype: type) -> None:
    """Far out of the bounds, where the simulation breaks down; in the dtype that the caller gives."""
    traces = []
    for kind in (SyncVectorEnv, BatchedMujoco):
        envs: SyncVectorEnv[Any, Any] = kind(makers("HalfCheetah-v5"))
        envs.reset(seed=0)
        rng = np.random.default_rng(0)
        traces.append(
            [
                [bits(value) for value in envs.step(rng.normal(0, 1e4, (NUM_ENVS, 6)).astype(dtype))]
                for _ in range(40)
            ]
        )
        envs.close()
    assert traces[0] == traces[1]


@pytest.mark.parametrize("env_id", ["Hopper-v5", "teacher/ShortWalker-v1"])
def test_recorded_episodes_replay_bit_exactly(env_id: str) -> None:
    envs = make_vector_env(describe_task(env_id), 3, seed=2, workers=2)
    assert isinstance(envs.env, BatchedMujoco)
    envs.action_space.seed(0)
    envs.reset()
    for _ in range(150):
        envs.step(envs.action_space.sample())
    trajectories = envs.drain()
    envs.close()
    for trajectory in trajectories:
        steps = list(replay(trajectory.recipe()))
        assert bits(np.stack([step.observation for step in steps])) == bits(trajectory.observations)
        assert bits(np.array([step.reward for step in steps])) == bits(trajectory.true_rewards)


@pytest.mark.parametrize("env_id", [*V5, *FAMILIES, "ShortHopper-v1"])
def test_supported_tasks_are_stepped_at_once(env_id: str) -> None:
    for workers in (1, 2):
        envs = make_vector_env(describe_task(env_id, max_episode_steps=9), 2, seed=0, workers=workers)
        assert isinstance(envs.env, BatchedMujoco)
        envs.close()


def test_other_tasks_are_stepped_one_by_one() -> None:
    for workers, kind in ((1, SyncVectorEnv), (2, ThreadedVectorEnv)):
        envs = make_vector_env(describe_task("ShortReacher-v1"), 2, seed=0, workers=workers)
        assert type(envs.env) is kind
        envs.close()


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("CartPole-v1", {}),
        ("Acrobot-v1", {}),
        ("Ant-v5", {}),
        ("Hopper-v4", {}),
        ("no such environment", {}),
        ("gymnasium.envs.mujoco:Hopper-v5", {}),
        ("Hopper-v5", {"healthy_reward": 2.0}),
        ("Hopper-v5", {"max_episode_steps": -1}),
        ("teacher/Hopper-v1", {"exclude_current_positions_from_observation": False}),
    ],
)
def test_tasks_without_batched_rules_are_unsupported(env_id: str, kwargs: dict[str, Any]) -> None:
    assert not batched_mujoco.supports(env_id, kwargs)


def test_ids_of_classes_with_other_arguments_are_not_supported() -> None:
    entry_point = str(gym.spec("Hopper-v5").entry_point)
    try:
        gym.register("Tall-v0", entry_point, max_episode_steps=9, kwargs={"healthy_z_range": (1, 2)})
        gym.register("Endless-v0", entry_point)
        gym.register("Plain-v0", entry_point, max_episode_steps=9)
        supported = [batched_mujoco.supports(f"{name}-v0", {}) for name in ("Tall", "Endless", "Plain")]
        assert supported == [False, False, True]
    finally:
        for name in ("Tall", "Endless", "Plain"):
            gym.registry.pop(f"{name}-v0", None)


def test_misuse_is_refused() -> None:
    envs = BatchedMujoco(makers("Hopper-v5", max_episode_steps=1), 2, AutoresetMode.DISABLED)
    actions = np.zeros((NUM_ENVS, 3), np.float32)
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        envs.step(actions)
    envs.reset()
    with pytest.raises(ValueError, match=r"\(5, 3\), not \(5, 2\)"):
        envs.step(actions[:, :2])
    envs.step(actions)
    with pytest.raises(AssertionError, match="reset its environment before"):
        envs.step(actions)
    envs.close()


def test_an_error_in_whichever_thread_reaches_the_caller() -> None:
    with make_env("Hopper-v5", {}) as env:
        env.reset(seed=0)
        physical: Any = env.unwrapped
        sound = Simulation(physical.model, physical.data)
        broken = Simulation(None, SimpleNamespace(ctrl=np.zeros(3)))
        physics = Physics([broken, sound, broken], frame_skip=1, workers=3)
        controls = np.zeros((3, 3))
        for step in range(1, 30):  # the broken ones meet now one thread, now another
            with pytest.raises(TypeError, match="mj_step"):
                physics.step(controls, [0, 2])
            physics.step(controls, [1])  # what is sound goes on
            assert physical.data.time == pytest.approx(step * physical.model.opt.timestep)
        physics.close()


def test_closing_ends_the_threads() -> None:
    before = threading.active_count()
    envs = BatchedMujoco(makers("Hopper-v5"), 3)
    assert threading.active_count() == before + 2
    envs.close()
    assert threading.active_count() == before


def test_a_hopper_that_is_upright_but_too_fast_has_terminated() -> None:
    outcomes = []
    for kind in (SyncVectorEnv, BatchedMujoco):
        envs: SyncVectorEnv[Any, Any] = kind(makers("Hopper-v5"))
        envs.reset(seed=0)
        for env, velocity in zip(envs.envs, (99, 101, -99, -101, np.inf), strict=True):
            physical: Any = env.unwrapped
            physical.data.qvel[0] = velocity
        outcomes.append(envs.step(np.zeros((NUM_ENVS, 3), np.float32)))
        envs.close()
    assert outcomes[0][2].tolist()[:4] == [False, True, False, True]
    assert [bits(value) for value in outcomes[0]] == [bits(value) for value in outcomes[1]]
