"""The MuJoCo tasks of rl-teacher (2017): ``teacher/<Name>-v1`` and ``teacher/Short<Name>-v1``.

They are built on Gymnasium's v5 environments. Episodes never terminate, so their length reveals nothing about
the behavior. The reward leaves out the control cost, because people can't see it in a clip. In the table,
``v`` is the forward velocity during the step; positions and other velocities are taken after the step:

=============  ====  ================  ==============================================================
task           fps   steps (short)     reward of a step
=============  ====  ================  ==============================================================
Reacher        10    50 (20)           -distance from fingertip to target
Hopper         40    1000 (300)        v + 1 + (z - 1)
Walker         30    1000 (300)        v + 1 + (z - 2)
Cheetah        20    1000 (300)        v
Swimmer        40    1000 (300)        v
Ant            20    1000 (300)        v + (z - 1.2)
Humanoid       40    1000 (300)        1.25 v + 5 (z - 1)
Pendulum       10    25                1 - angle^2
DoublePendulum 10    50                10 - 0.01 x^2 - (y - 2)^2 - 0.001 w1^2 - 0.005 w2^2 + 10 (y - 1)
=============  ====  ================  ==============================================================

``v`` is the x velocity of the root (Hopper, Walker, Cheetah, Swimmer), the torso (Ant) or the center of mass
(Humanoid). ``z`` is the height of the root, ``angle`` the angle of the pole, ``(x, y)`` the position of the
double pendulum's tip, and ``w1, w2`` its joint velocities. The constants 1 and 10 are survival bonuses, paid
at every step, unlike v5's ``healthy_reward``, which is paid only while the robot is healthy. ``fps`` is the
playback rate of clips, independent of the physics time step.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, SupportsFloat

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from teacher.envs.suites import register, register_suite_task

NAMESPACE = "teacher"

_ENTRY_POINT = f"{__name__}:make_family"
_VERSIONED = re.compile(r".-v\d+")

_ALIASES = {
    "Walker2d": "Walker",
    "HalfCheetah": "Cheetah",
    "InvertedPendulum": "Pendulum",
    "InvertedDoublePendulum": "DoublePendulum",
}

# Function of the v5 environment's reward, with the family's weights, and its mujoco.MjData after the step.
RewardRule = Callable[[Any, Any], Any]


def _unchanged(base: Any, data: Any) -> Any:
    return base


# These two also work on batches: the reward and each component of the data may be arrays.
def _hopper(base: Any, data: Any) -> Any:
    return base + 1.0 + (data.qpos[1] - 1.0)


def _walker(base: Any, data: Any) -> Any:
    return base + 1.0 + (data.qpos[1] - 2.0)


def _ant(base: float, data: Any) -> float:
    return base + float(data.qpos[2] - 1.2)


def _humanoid(base: float, data: Any) -> float:
    return base + 5.0 * float(data.qpos[2] - 1.0)


def _pendulum(base: float, data: Any) -> float:
    # Ignore the v5 reward, a survival bonus that is paid only while the pole is up.
    return 1.0 - float(data.qpos[1]) ** 2


def _double_pendulum(base: float, data: Any) -> float:
    return base + 10.0 + 10.0 * float(data.site_xpos[0][2] - 1.0)


@dataclass(frozen=True)
class TaskFamily:
    """Rules of a MuJoCo task and its ``Short`` variant; one row of the table in this module's docstring.

    Attributes:
        fps: frames per second of clips, with one frame per environment step.
        reward: function that computes the task's reward, given in the last column of the table.
        weights: keyword arguments for the v5 environment that turn off its control cost, contact cost,
            survival bonus and termination, where it has them.
    """

    base_id: str
    fps: int
    horizon: int
    short_horizon: int
    reward: RewardRule
    weights: Mapping[str, Any] = field(default_factory=dict)


_NO_CONTROL = {"ctrl_cost_weight": 0.0}
_NO_CONTROL_NO_HEALTH = {**_NO_CONTROL, "healthy_reward": 0.0, "terminate_when_unhealthy": False}
_FORWARD_ONLY = {**_NO_CONTROL_NO_HEALTH, "contact_cost_weight": 0.0}

FAMILIES: Mapping[str, TaskFamily] = {
    "Reacher": TaskFamily("Reacher-v5", 10, 50, 20, _unchanged, {"reward_control_weight": 0.0}),
    "Hopper": TaskFamily("Hopper-v5", 40, 1000, 300, _hopper, _NO_CONTROL_NO_HEALTH),
    "Walker": TaskFamily("Walker2d-v5", 30, 1000, 300, _walker, _NO_CONTROL_NO_HEALTH),
    "Cheetah": TaskFamily("HalfCheetah-v5", 20, 1000, 300, _unchanged, _NO_CONTROL),
    "Swimmer": TaskFamily("Swimmer-v5", 40, 1000, 300, _unchanged, _NO_CONTROL),
    "Ant": TaskFamily("Ant-v5", 20, 1000, 300, _ant, _FORWARD_ONLY),
    "Humanoid": TaskFamily("Humanoid-v5", 40, 1000, 300, _humanoid, _FORWARD_ONLY),
    "Pendulum": TaskFamily("InvertedPendulum-v5", 10, 25, 25, _pendulum),
    "DoublePendulum": TaskFamily(
        "InvertedDoublePendulum-v5", 10, 50, 50, _double_pendulum, {"healthy_reward": 0.0}
    ),
}


class FamilyRules(gym.Wrapper[Any, Any, Any, Any]):
    """Gives a v5 environment the reward and frame rate of its task family, and prevents termination."""

    never_terminates = True

    def __init__(self, env: gym.Env[Any, Any], family: TaskFamily) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, "render_fps": family.fps}
        self.rule = family.reward
        self._data = env.unwrapped.data  # type: ignore[attr-defined]

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the v5 environment; return the family's reward, with ``terminated`` always False."""
        observation, base, _, truncated, info = self.env.step(action)
        return observation, float(self.rule(float(base), self._data)), False, truncated, info


def make_family(family: str, **kwargs: Any) -> FamilyRules:
    """Make an environment of a task family; this is the entry point that Gymnasium calls."""
    rules = FAMILIES[family]
    create: Callable[..., Any] = load_env_creator(str(gym.spec(rules.base_id).entry_point))
    return FamilyRules(create(**{**rules.weights, **kwargs}), rules)


def plain_class(spec: EnvSpec) -> str | None:
    """Return a spec's entry point, ``module:Class``; None if the spec has keyword arguments.

    For a task of this module, return the entry point of the underlying v5 environment.
    """
    if spec.entry_point == _ENTRY_POINT and spec.kwargs.keys() == {"family"}:
        spec = gym.spec(base_env_id(spec.id))
    return spec.entry_point if isinstance(spec.entry_point, str) and not spec.kwargs else None


def register_tasks() -> None:
    """Register all tasks with Gymnasium, unless they are already registered."""
    for name, family in FAMILIES.items():
        for prefix, horizon in (("", family.horizon), ("Short", family.short_horizon)):
            register(f"{NAMESPACE}/{prefix}{name}-v1", _ENTRY_POINT, horizon, family=name)


def base_env_id(env_id: str) -> str:
    """Return the ID of the v5 environment underlying a task of this module; return other IDs unchanged."""
    spec = gym.registry.get(env_id)
    if spec is None or spec.entry_point != _ENTRY_POINT:
        return env_id
    return FAMILIES[spec.kwargs["family"]].base_id


def old_names() -> dict[str, str]:
    """Return a dict that maps old task names, as used in rl-teacher and later in Gym, to task IDs."""
    names = {name: name for name in FAMILIES} | _ALIASES
    return {
        f"{prefix}{alias}-v1": f"{NAMESPACE}/{prefix}{name}-v1"
        for alias, name in names.items()
        for prefix in ("", "Short")
    }


def resolve_env_id(name: str) -> str:
    """Return the registered ID for an old task name or a suite's task; return all other names unchanged.

    For example, ``ShortHopper-v1`` becomes ``teacher/ShortHopper-v1``, ``Walker2d-v1`` becomes
    ``teacher/Walker-v1`` and ``dm_control/walker-walk`` becomes ``dm_control/walker-walk-v0``, but
    ``Pendulum-v1`` remains Gymnasium's classic task.
    """
    if name in gym.registry:
        return name
    if suite_id := register_suite_task(name):
        return suite_id
    return old_names().get(name.removeprefix(f"{NAMESPACE}/"), name)


def same_environment(one: str | None, other: str | None) -> bool:
    """Return False if two IDs are known to refer to different environments, otherwise True.

    Data from different environments must not be mixed. A task, its ``Short`` variant and the underlying v5
    environment count as one environment, because they have the same observations and actions. None matches
    every ID. An unversioned name also matches every ID, because it is only the class name of an unregistered
    environment or a placeholder for recorded episodes.
    """
    known = [_base(name) for name in (one, other) if name is not None and _VERSIONED.search(name)]
    return len(set(known)) < 2


def more_specific_id(old: str | None, new: str | None) -> str | None:
    """Return ``old`` if ``new`` is None or lacks the version that ``old`` has; otherwise, ``new``."""
    if new is None or (old is not None and _VERSIONED.search(old) and not _VERSIONED.search(new)):
        return old
    return new


def _base(name: str) -> str:
    """Return the base environment ID for a name, without any ``module:`` prefix."""
    return base_env_id(resolve_env_id(name.rpartition(":")[2]))
