"""Observations that are made of the environment's own, from the command line to the replay."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from teacher.clips.render import ClipSpec, ReplayRenderer
from teacher.data.segment_pool import SegmentPool
from teacher.envs.collect import CollectGame, everyone
from teacher.envs.make import make_env
from teacher.envs.minigrid import cells
from teacher.envs.random_episodes import check_replay, random_trajectories
from teacher.envs.tasks import describe_task
from teacher.errors import ConfigError, EnvironmentUnsuitableError
from teacher.teach import main

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


class Sampled(gym.Env[Any, Any]):
    """Observations drawn from a space."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, space: gym.Space[Any], render_mode: str | None = None) -> None:
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


def sampled(space: gym.Space[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = gym.envs.registration.EnvSpec("Sampled-v0", lambda **_: Sampled(space), max_episode_steps=20)
    monkeypatch.setitem(gym.registry, "Sampled-v0", spec)
    return describe_task("Sampled-v0")


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
def test_multi_agent_run_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of one step, as few labels as can be."""
    monkeypatch.chdir(tmp_path)
    line = (
        "-p synth -e teacher/Collect-v1 -n game -l 20 -L 10 -i 4 -t 500 -V --segment_steps 1 "
        "--obs_transform teacher.envs.collect:everyone --reward.members 2"
    )
    assert main(line.split()) == 0
    assert main(["--resume", "runs/teacher-Collect-v1/game"]) == 0
