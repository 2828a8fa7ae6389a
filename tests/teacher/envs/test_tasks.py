"""Task ids, what a run learns about a task, and what it refuses in one line."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from teacher.envs.families import FAMILIES, more_specific_id, register_tasks, resolve_env_id, same_environment
from teacher.envs.make import make_env
from teacher.envs.tasks import describe_task, make_vector_env
from teacher.errors import EnvironmentUnsuitableError

# fps, steps, steps of the short task
RULES = {
    "Reacher": (10, 50, 20),
    "Hopper": (40, 1000, 300),
    "Walker": (30, 1000, 300),
    "Cheetah": (20, 1000, 300),
    "Swimmer": (40, 1000, 300),
    "Ant": (20, 1000, 300),
    "Humanoid": (40, 1000, 300),
    "Pendulum": (10, 25, 25),
    "DoublePendulum": (10, 50, 50),
}

MODULE = """
import gymnasium as gym
import numpy as np

class Walk(gym.Env):
    metadata = {"render_modes": []}
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, observation_space=None, action_space=None):
        self.observation_space = observation_space or self.observation_space
        self.action_space = action_space or self.action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}

class Leave(Walk):
    def __init__(self):
        raise SystemExit(0)

gym.register("WalkAway-v0", Leave, max_episode_steps=40)
gym.register("WalkWithLimit-v0", Walk, max_episode_steps=40)
gym.register("WalkForever-v0", Walk)
gym.register("WalkInWords-v0", Walk, max_episode_steps=40,
             kwargs={"observation_space": gym.spaces.Text(5)})
gym.register("WalkBySwitches-v0", Walk, max_episode_steps=40,
             kwargs={"action_space": gym.spaces.MultiBinary(2)})
"""


@pytest.fixture
def walking_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an importable module that registers environments of its own."""
    (tmp_path / "walking_for_tests.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(gym.registry)
    yield "walking_for_tests"
    sys.modules.pop("walking_for_tests", None)
    for env_id in set(gym.registry) - known:
        del gym.registry[env_id]


@pytest.mark.parametrize("name", RULES)
def test_families_keep_the_rules_of_rl_teacher(name: str) -> None:
    fps, horizon, short_horizon = RULES[name]
    for env_id, steps in ((f"teacher/{name}-v1", horizon), (f"teacher/Short{name}-v1", short_horizon)):
        task = describe_task(env_id)
        assert (task.env_id, task.fps, task.horizon) == (env_id, fps, steps)
        assert task.never_terminates


@pytest.mark.parametrize("name", RULES)
def test_an_episode_lasts_exactly_its_horizon(name: str) -> None:
    with make_env(f"teacher/Short{name}-v1", {}) as env:
        env.reset(seed=1)
        env.action_space.seed(1)
        ends: list[tuple[bool, bool]] = []
        while not ends or not ends[-1][1]:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            ends.append((terminated, truncated))
        assert len(ends) == RULES[name][2]
        assert not any(terminated for terminated, _ in ends)


def test_the_table_is_complete() -> None:
    assert RULES.keys() == FAMILIES.keys()


@pytest.mark.parametrize(
    ("name", "env_id"),
    [
        ("Reacher-v1", "teacher/Reacher-v1"),
        ("ShortHopper-v1", "teacher/ShortHopper-v1"),
        ("Walker-v1", "teacher/Walker-v1"),
        ("Walker2d-v1", "teacher/Walker-v1"),
        ("ShortWalker2d-v1", "teacher/ShortWalker-v1"),
        ("HalfCheetah-v1", "teacher/Cheetah-v1"),
        ("Cheetah-v1", "teacher/Cheetah-v1"),
        ("InvertedPendulum-v1", "teacher/Pendulum-v1"),
        ("ShortPendulum-v1", "teacher/ShortPendulum-v1"),
        ("InvertedDoublePendulum-v1", "teacher/DoublePendulum-v1"),
        ("DoublePendulum-v1", "teacher/DoublePendulum-v1"),
        ("teacher/Walker2d-v1", "teacher/Walker-v1"),
        ("teacher/Pendulum-v1", "teacher/Pendulum-v1"),
        ("Pendulum-v1", "Pendulum-v1"),
        ("Hopper-v5", "Hopper-v5"),
        ("module:Hopper-v1", "module:Hopper-v1"),
        ("Unknown-v1", "Unknown-v1"),
    ],
)
def test_old_names_resolve_where_gymnasium_has_no_such_id(name: str, env_id: str) -> None:
    assert resolve_env_id(name) == env_id


def test_an_id_that_someone_else_registered_is_theirs() -> None:
    gym.register("ShortHopper-v1", "gymnasium.envs.classic_control:PendulumEnv", max_episode_steps=5)
    try:
        assert describe_task("ShortHopper-v1").horizon == 5
    finally:
        del gym.registry["ShortHopper-v1"]


def test_registering_again_changes_nothing() -> None:
    before = dict(gym.registry)
    register_tasks()
    assert dict(gym.registry) == before


def test_the_specification_of_a_task_makes_it_again() -> None:
    with make_env("ShortHopper-v1", {}) as env:
        spec = env.spec
    assert spec is not None
    with gym.make(spec) as again:
        again.reset(seed=0)
        assert again.step(np.zeros(3, np.float32))[1] == pytest.approx(1.25, abs=0.1)


def test_other_environments_are_described_by_their_own_metadata() -> None:
    task = describe_task("CartPole-v1")
    assert (task.env_id, task.kwargs, task.fps, task.horizon) == ("CartPole-v1", {}, 50, 500)
    assert not task.never_terminates
    assert isinstance(task.action_space, gym.spaces.Discrete)


def test_a_limit_of_ones_own_replaces_the_registered_one() -> None:
    task = describe_task("Hopper-v1", max_episode_steps=7)
    assert task.horizon == 7
    with make_env(task.env_id, task.kwargs) as env:
        env.reset(seed=0)
        ends = [env.step(np.zeros(3, np.float32))[3] for _ in range(7)]
    assert ends == [False] * 6 + [True]


def test_an_environment_of_an_unimported_module_is_found(walking_module: str) -> None:
    task = describe_task(f"{walking_module}:WalkWithLimit-v0")
    assert task.env_id == f"{walking_module}:WalkWithLimit-v0"
    assert (task.fps, task.horizon) == (30, 40)


def refusal(env_id: str) -> str:
    with pytest.raises(EnvironmentUnsuitableError) as caught:
        describe_task(env_id)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_unknown_id_is_refused_with_close_matches() -> None:
    message = refusal("ShortHoper-v1")
    assert "ShortHoper-v1" in message
    assert "ShortHopper-v1" in message


def test_an_id_like_no_other_is_refused() -> None:
    assert "gymnasium.registry" in refusal("QQQQ")


def test_an_id_of_vector_environments_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gym.envs.registration.EnvSpec("Many-v0", vector_entry_point="many:Many", max_episode_steps=9)
    monkeypatch.setitem(gym.registry, "Many-v0", spec)
    with pytest.raises(EnvironmentUnsuitableError, match=r"only as a vector .* to HumanPreferencesVectorWr"):
        describe_task("Many-v0")


def test_tasks_of_a_suite_are_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {
        "teacher.envs.dm_control": ["ball_in_cup-catch", "cartpole-swingup", "humanoid_CMU-run"],
        "teacher.envs.metaworld": ["button-press", "drawer-open"],
    }
    for module, names in tasks.items():
        monkeypatch.setattr(f"{module}.task_names", lambda names=names: names)
    for written, meant in (
        ("dm_control/ball-in-cup-catch", "dm_control/ball_in_cup-catch"),
        ("dm_control/humanoid-cmu-run-v0", "dm_control/humanoid_CMU-run"),
        ("dm_control/cartpole_swingup", "dm_control/cartpole-swingup"),
        ("metaworld/button_press-v3", "metaworld/button-press"),
    ):
        assert refusal(written).endswith(f"; did you mean {meant}?")


def test_an_id_of_a_suite_that_is_missing_is_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dm_control", None)
    assert refusal("dm_control/ball-in-cup-catch").endswith(
        "expected an ID such as dm_control/walker-walk (needs pip install 'rl-teacher[dmc]')"
    )


def test_close_ids_of_a_module_come_with_the_module() -> None:
    assert "did you mean ale_py:ALE/Tennis-v5" in refusal("ale_py:ALE/Tenis-v5")


def test_a_missing_module_is_refused() -> None:
    assert refusal("no_such_module:Env-v0").startswith("can't import no_such_module:")


def test_a_module_in_the_current_folder_is_found(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = "gymnasium.envs.classic_control:PendulumEnv"
    text = f"import gymnasium\ngymnasium.register('Here-v0', '{entry}', max_episode_steps=9)\n"
    (here / "in_this_folder.py").write_text(text)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert describe_task("in_this_folder:Here-v0").horizon == 9


def test_a_missing_extra_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    message = refusal("LunarLander-v3")
    assert message.endswith("Box2D is not installed: pip install 'rl-teacher[box2d]'")


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("minigrid:MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
        ("ale_py:ALE/Tennis-v5", "ale_py", "atari"),
    ],
)
def test_missing_extra_named(monkeypatch: pytest.MonkeyPatch, env_id: str, module: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert refusal(env_id).endswith(f": pip install 'rl-teacher[{extra}]'")


def test_a_module_that_ends_the_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving_for_tests.py").write_text("import sys\nsys.exit('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert refusal("leaving_for_tests:Walk-v0") == "can't import leaving_for_tests: SystemExit: no licence"


def test_the_module_of_an_id_is_told_where_it_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MiniGrid-Empty-5x5-v0", "ALE/Tennis-v5"):
        monkeypatch.delitem(gym.registry, name, raising=False)
    assert refusal("MiniGrid-Empty-5x5-v0").endswith("did you mean minigrid:MiniGrid-Empty-5x5-v0?")
    assert refusal("ALE/Tennis-v5").endswith("did you mean ale_py:ALE/Tennis-v5?")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("WalkForever-v0", ": pass --max_episode_steps"),
        ("WalkAway-v0", "can't make walking_for_tests:WalkAway-v0: SystemExit: 0"),
        ("WalkInWords-v0", "which a run can't use: pass --obs_transform"),
        (
            "WalkBySwitches-v0",
            "only Discrete, MultiDiscrete and floating-point Box spaces are supported",
        ),
    ],
)
def test_an_unsuitable_environment_is_refused(walking_module: str, name: str, expected: str) -> None:
    assert expected in refusal(f"{walking_module}:{name}")


def test_a_limit_makes_an_endless_environment_suitable(walking_module: str) -> None:
    task = describe_task(f"{walking_module}:WalkForever-v0", max_episode_steps=11)
    assert (task.horizon, task.kwargs) == (11, {"max_episode_steps": 11})


def test_rendering_arguments_reach_the_physics() -> None:
    rendering: dict[str, Any] = {"width": 64, "height": 48, "camera_name": "track"}
    with make_env("ShortHopper-v1", {}, render_mode="rgb_array", **rendering) as env:
        physics: Any = env.unwrapped
        assert env.render_mode == "rgb_array"
        assert (physics.width, physics.height, physics.camera_name) == (64, 48, "track")


def test_parts_of_environments_are_the_environments_of_one() -> None:
    task = describe_task("teacher/Reacher-v1")

    def seeds(num_envs: int, part: tuple[int, int]) -> list[int]:
        with contextlib.closing(make_vector_env(task, num_envs, 4, part=part)) as envs:
            envs.reset()
            envs.step(envs.action_space.sample())
            return [trajectory.seed for trajectory in envs.drain()]

    whole = seeds(6, (0, 1))
    assert len(set(whole)) == 6
    assert seeds(3, (0, 2)) + seeds(3, (1, 2)) == whole


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("HalfCheetah-v5", "Walker2d-v5", False),
        ("HalfCheetah-v4", "HalfCheetah-v5", False),
        ("ShortHopper-v1", "ShortWalker-v1", False),
        ("Any-v0", "Any-v0", True),
        ("ShortHopper-v1", "teacher/ShortHopper-v1", True),
        ("teacher/ShortHopper-v1", "teacher/Hopper-v1", True),
        ("teacher/Cheetah-v1", "HalfCheetah-v5", True),
        ("some_module:Any-v0", "Any-v0", True),
        ("Any-v0", None, True),
        ("Any-v0", "SyncVectorEnv", True),
        ("recorded", "Any-v0", True),
    ],
)
def test_names_tell_environments_apart_where_they_are_ids(one: str, other: str | None, same: bool) -> None:
    assert same_environment(one, other) is same
    assert same_environment(other, one) is same


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        (None, "Hopper-v5", "Hopper-v5"),
        ("Hopper-v5", None, "Hopper-v5"),
        ("Hopper-v5", "SyncVectorEnv", "Hopper-v5"),
        ("SyncVectorEnv", "Hopper-v5", "Hopper-v5"),
        ("Hopper-v5", "teacher/Hopper-v1", "teacher/Hopper-v1"),
        ("recorded", "SyncVectorEnv", "SyncVectorEnv"),
    ],
)
def test_generic_names_do_not_hide_useful_ones(old: str | None, new: str | None, kept: str) -> None:
    assert more_specific_id(old, new) == kept
