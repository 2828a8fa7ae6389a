"""Observations made of the environment's own, and environments that are stepped at once, to the last bit."""

import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from teacher.clips.render import ClipSpec, ReplayRenderer
from teacher.data.segment_pool import SegmentPool
from teacher.envs.collect import CollectGame, everyone
from teacher.envs.episodes import SeededResets, episode_seeds, replay
from teacher.envs.fast import batched_mujoco
from teacher.envs.fast.batched_mujoco import BatchedMujoco, Physics, Simulation
from teacher.envs.fast.threads import ThreadedVectorEnv
from teacher.envs.make import make_env
from teacher.envs.minigrid import cells
from teacher.envs.random_episodes import check_replay, random_trajectories
from teacher.envs.tasks import describe_task, make_vector_env
from teacher.errors import ConfigError, EnvironmentUnsuitableError
from teacher.teach import main
from tests.environments import Sampled, registered

OWN = """
import numpy as np

shapes = iter([(2,), (3,)])

def first(observations):
    return observations[0]

def words(observations):
    return "no numbers"

def growing(observations):
    return np.zeros(next(shapes))

def wrong(observations):
    return observations["there is none"]

def leaves(observations):
    raise SystemExit(0)

def truth(observations):
    return [True, False]
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder; each test has one of its own."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def collect(transform: str | None) -> Any:
    return describe_task("teacher/Collect-v1", obs_transform=transform)


def test_a_function_makes_the_observations(own_module: str) -> None:
    task = collect(f"{own_module}:first")
    assert task.observation_space == gym.spaces.Box(0, 255, (7, 7, 3), np.uint8)
    with make_env(task.env_id, task.kwargs) as env:
        seen, _ = env.reset(seed=5)
        after, *_ = env.step([1, 2])
    bare = CollectGame()
    np.testing.assert_array_equal(seen, bare.reset(seed=5)[0][0])
    np.testing.assert_array_equal(after, bare.step([1, 2])[0][0])
    assert collect(f"{own_module}:truth").observation_space.dtype == np.float32


def test_observations_of_fixed_size_can_be_flattened() -> None:
    assert collect("flatten").observation_space.shape == (2 * 7 * 7 * 3,)
    lake = describe_task("FrozenLake-v1", obs_transform="flatten")
    assert lake.observation_space.shape == (16,)
    assert lake.flattened is None
    with make_env(lake.env_id, lake.kwargs) as env:
        np.testing.assert_array_equal(env.reset(seed=1)[0], np.eye(16)[0])


BOX, TEXT = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Text(5)


def sampled(space: gym.Space[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    return describe_task(registered(monkeypatch, "Sampled-v0", functools.partial(Sampled, space), 20))


@pytest.mark.parametrize(
    ("space", "numbers"),
    [
        (gym.spaces.Discrete(4, start=3), 4),
        (gym.spaces.MultiDiscrete([2, 3]), 5),
        (gym.spaces.MultiBinary(3), 3),
        (gym.spaces.Tuple([BOX, gym.spaces.Discrete(3)]), 5),
        (gym.spaces.Dict({"a": BOX, "b": gym.spaces.Tuple([gym.spaces.MultiBinary(2)])}), 4),
    ],
)
def test_numbers_are_flattened(space: gym.Space[Any], numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    task = sampled(space, monkeypatch)
    assert task.observation_space.shape == (numbers,)
    assert task.observation_space.dtype.kind == "f"
    assert task.flattened == " ".join(str(space).split())
    check_replay(task, seed=2)  # the recipe says how, too
    assert next(random_trajectories(task, 1)).recipe().kwargs == {"obs_transform": "flatten"}


@pytest.mark.parametrize(
    "space",
    [
        TEXT,
        gym.spaces.Dict({"a": BOX, "says": TEXT}),
        gym.spaces.Sequence(BOX),
        gym.spaces.Graph(BOX, None),
        gym.spaces.OneOf([BOX, gym.spaces.Discrete(2)]),
    ],
)
def test_texts_and_the_like_are_refused(space: gym.Space[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentUnsuitableError, match=r"which a run can't use: pass --obs_tr"):
        sampled(space, monkeypatch)


def test_images_stay_images() -> None:
    dot = describe_task("teacher/MovingDot-v1")
    assert (dot.flattened, dot.kwargs) == (None, {})
    assert len(dot.observation_space.shape) > 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("words", r"returned shape \(\) and dtype <U10; it must return a non-empty numeric array"),
        ("wrong", "TypeError"),
        ("leaves", "SystemExit: 0"),
        (
            "growing",
            r"returned shape \(3,\) and dtype float64, but \(2,\) and float64 for the first observation",
        ),
    ],
)
def test_a_function_that_does_not_do_is_refused(own_module: str, function: str, message: str) -> None:
    with (
        pytest.raises(EnvironmentUnsuitableError, match=f"^--obs_transform own.*:{function}: {message}"),
        make_env("teacher/Collect-v1", {"obs_transform": f"{own_module}:{function}"}) as env,
    ):
        env.reset(seed=1)


def test_a_missing_function_and_missing_option_are_refused(own_module: str) -> None:
    with pytest.raises(ConfigError, match="--obs_transform: cannot import"):
        collect(f"{own_module}:second")
    with pytest.raises(EnvironmentUnsuitableError, match="have no fixed size"):
        describe_task("minigrid:MiniGrid-Empty-5x5-v0", 100, "flatten")


@pytest.mark.parametrize(
    ("env_id", "steps", "transform"),
    [
        ("teacher/Collect-v1", None, "teacher.envs.collect:everyone"),
        ("minigrid:MiniGrid-DoorKey-5x5-v0", 100, "teacher.envs.minigrid:cells"),
        ("FrozenLake-v1", None, "flatten"),
        ("FrozenLake-v1", None, None),
        ("Blackjack-v1", 6, None),
        ("teacher/MovingDot-v1", None, None),
    ],
)
def test_transformed_episodes_replay(env_id: str, steps: int | None, transform: str | None) -> None:
    task = describe_task(env_id, steps, transform)
    check_replay(task, seed=2)
    pool = SegmentPool(length=4, seed=1)
    for trajectory in random_trajectories(task, seed=1, num_envs=2):
        if pool.extend([trajectory]):
            break
    recipe = pool.segments[-1].recipe
    stage = ReplayRenderer(recipe.env_id, recipe.kwargs)
    pictures = list(stage.frames(ClipSpec.of(pool.segments[-1])))  # which compares observations, too
    stage.close()
    assert len(pictures) == 4
    assert {picture.shape[2] for picture in pictures} == {3}


def test_balls_are_taken_by_who_comes_to_them_and_come_back_elsewhere() -> None:
    env = CollectGame(players=2, balls=2, size=4)
    env.reset(seed=1)
    env._players, env._balls = [(0, 0), (3, 3)], [(0, 1), (1, 1)]
    _, reward, terminated, _, info = env.step([4, 1])
    assert (reward, info["rewards"], terminated) == (1.0, [1, 0], False)
    assert env._players == [(0, 1), (2, 3)]
    assert len(set(env._balls)) == 2
    assert (1, 1) in env._balls
    assert not {*env._balls} & {*env._players}
    env._players, env._balls = [(0, 0), (0, 1)], [(3, 0), (3, 1)]
    env.step([4, 1])
    assert env._players == [(0, 0), (0, 1)], "neither into another player nor off the field"


def test_each_player_sees_itself_the_others_and_the_balls() -> None:
    env = CollectGame(players=3, balls=2, size=5)
    views, _ = env.reset(seed=4)
    assert env.observation_space.contains(views)
    for player, view in enumerate(views):
        assert view[(*env._players[player], 0)] == 255
        np.testing.assert_array_equal((view == 255).sum(axis=(0, 1)), [1, 2, 2])
    image = everyone(views)
    assert image.shape == (5, 5, 4)
    for player, place in enumerate(env._players):
        assert image[(*place, player)] == 255
    assert env.render().shape == (200, 200, 3)


def test_every_cell_of_minigrid_is_one_hot() -> None:
    with gym.make("minigrid:MiniGrid-DoorKey-5x5-v0", disable_env_checker=True) as env:
        observation, _ = env.reset(seed=3)
    vector = cells(observation)
    assert vector.shape == (7 * 7 * 21 + 4,)
    assert vector.sum() == 3 * 49 + 1
    kinds = vector[: 49 * 11].reshape(7, 7, 11).argmax(axis=-1)
    np.testing.assert_array_equal(kinds, observation["image"][..., 0])


@pytest.mark.usefixtures("short_rollouts")
def test_multi_agent_run_from_the_command_line(here: Path) -> None:
    """Segments of one step, as few labels as can be."""
    line = (
        "-p synth -e teacher/Collect-v1 -n game -l 20 -L 10 -i 4 -t 500 -V --segment_steps 1 "
        "--obs_transform teacher.envs.collect:everyone --reward.members 2"
    )
    assert main(line.split()) == 0
    assert main(["--resume", "runs/teacher-Collect-v1/game"]) == 0


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
        for array in (observations, rewards, terminated, truncated):
            array.fill(1)  # what is handed out may be written over
    envs.close()
    return trace, endings


@pytest.mark.parametrize("env_id", V5 + FAMILIES[:4])
def test_trajectories_are_those_of_one_by_one(env_id: str) -> None:
    steps = 100
    expected, (fallen, timed_out) = play(SyncVectorEnv(makers(env_id, max_episode_steps=LIMIT)), steps)
    assert (fallen > 3) == (env_id in FALLING)
    assert timed_out > 3
    for workers in (1, 2):
        envs = BatchedMujoco(makers(env_id, max_episode_steps=LIMIT), workers)
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
    envs = BatchedMujoco(makers("Hopper-v5", max_episode_steps=1), 2)
    actions = np.zeros((NUM_ENVS, 3), np.float32)
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        envs.step(actions)
    envs.reset()
    with pytest.raises(ValueError, match=r"\(5, 3\), not \(5, 2\)"):
        envs.step(actions[:, :2])
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
