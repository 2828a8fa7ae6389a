"""rl-teacher's tasks on the MuJoCo v5 environments: ``teacher/<Name>-v1`` and ``teacher/Short<Name>-v1``.

Episodes never terminate, so that their length reveals nothing about the behavior, and the reward leaves out
what people cannot see in a clip: the control cost. With ``v`` as the forward velocity in the step, and all
positions and velocities after the step:

=============  ====  ================  ==============================================================
task           fps   steps (short)     reward of a step
=============  ====  ================  ==============================================================
Reacher        10    50 (20)           -distance of fingertip and target
Hopper         40    1000 (300)        v + 1 + (z - 1)
Walker         30    1000 (300)        v + 1 + (z - 2)
Cheetah        20    1000 (300)        v
Swimmer        40    1000 (300)        v
Ant            20    1000 (300)        v + (z - 1.2)
Humanoid       40    1000 (300)        1.25 v + 5 (z - 1)
Pendulum       10    25                1 - angle^2
DoublePendulum 10    50                10 - 0.01 x^2 - (y - 2)^2 - 0.001 w1^2 - 0.005 w2^2 + 10 (y - 1)
=============  ====  ================  ==============================================================

``v`` is the velocity of the root's x (Hopper, Walker, Cheetah, Swimmer), the torso's (Ant) or the center of
mass's (Humanoid); ``z`` is the height of the root, ``angle`` the pole's, ``(x, y)`` the tip of the double
pendulum and ``w1, w2`` its joint velocities. The constants 1 and 10 are survival terms, paid at every step:
v5's ``healthy_reward`` would be paid only while healthy. ``fps`` is the playback rate of clips, regardless of
the physics time step.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, SupportsFloat

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

NAMESPACE = "teacher"

_ENTRY_POINT = f"{__name__}:make_family"
_VERSIONED = re.compile(r".-v\d+")

_ALIASES = {
    "Walker2d": "Walker",
    "HalfCheetah": "Cheetah",
    "InvertedPendulum": "Pendulum",
    "InvertedDoublePendulum": "DoublePendulum",
}

# Maps the reward of the v5 environment with the family's weights, and its mujoco.MjData after the step.
RewardRule = Callable[[Any, Any], Any]


def _unchanged(base: Any, data: Any) -> Any:
    return base


# These two also work on batches, with arrays as the reward and as each component of the data.
def _hopper(base: Any, data: Any) -> Any:
    return base + 1.0 + (data.qpos[1] - 1.0)


def _walker(base: Any, data: Any) -> Any:
    return base + 1.0 + (data.qpos[1] - 2.0)


def _ant(base: float, data: Any) -> float:
    return base + float(data.qpos[2] - 1.2)


def _humanoid(base: float, data: Any) -> float:
    return base + 5.0 * float(data.qpos[2] - 1.0)


def _pendulum(base: float, data: Any) -> float:
    # The base is the v5 survival term, which is paid only while the pole is up.
    return 1.0 - float(data.qpos[1]) ** 2


def _double_pendulum(base: float, data: Any) -> float:
    return base + 10.0 + 10.0 * float(data.site_xpos[0][2] - 1.0)


@dataclass(frozen=True)
class TaskFamily:
    """One row of the module's table.

    Attributes:
        base_id: the underlying Gymnasium environment.
        fps: frames per second of a clip, with one frame per environment step.
        horizon: steps of an episode.
        short_horizon: steps of an episode of the ``Short`` task.
        reward: the rule in the last column of the table.
        weights: arguments of the v5 environment that leave only its forward or distance term.
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
    """A v5 environment with the rules of its family: reward, frame rate, and no termination."""

    never_terminates = True

    def __init__(self, env: gym.Env[Any, Any], family: TaskFamily) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, "render_fps": family.fps}
        self.rule = family.reward
        self._data = env.unwrapped.data  # type: ignore[attr-defined]

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the v5 environment; return the rule's reward and never ``terminated``."""
        observation, base, _, truncated, info = self.env.step(action)
        return observation, float(self.rule(float(base), self._data)), False, truncated, info


def find_family_rules(env: gym.Env[Any, Any]) -> FamilyRules | None:
    """Return the family's wrapper among the wrappers of an environment, or None."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, FamilyRules):
            return env
        env = env.env
    return None


def make_family(family: str, **kwargs: Any) -> FamilyRules:
    """Make an environment of a family (entry point of the ids); pass ``kwargs`` to the v5 environment."""
    rules = FAMILIES[family]
    create: Callable[..., Any] = load_env_creator(str(gym.spec(rules.base_id).entry_point))
    return FamilyRules(create(**{**rules.weights, **kwargs}), rules)


def plain_class(spec: EnvSpec) -> str | None:
    """Return the class behind a family's or Gymnasium's id; None unless arguments are defaults."""
    if spec.entry_point == _ENTRY_POINT and spec.kwargs.keys() == {"family"}:
        spec = gym.spec(base_env_id(spec.id))
    return spec.entry_point if isinstance(spec.entry_point, str) and not spec.kwargs else None


def register_tasks() -> None:
    """Register all tasks with Gymnasium. Repeated calls have no effect."""
    for name, family in FAMILIES.items():
        for prefix, horizon in (("", family.horizon), ("Short", family.short_horizon)):
            env_id = f"{NAMESPACE}/{prefix}{name}-v1"
            if env_id not in gym.registry:
                gym.register(
                    env_id,
                    _ENTRY_POINT,
                    max_episode_steps=horizon,
                    disable_env_checker=True,
                    kwargs={"family": name},
                )


def base_env_id(env_id: str) -> str:
    """Return the Gymnasium environment underlying one of these tasks; return any other id unchanged."""
    spec = gym.registry.get(env_id)
    if spec is None or spec.entry_point != _ENTRY_POINT:
        return env_id
    return FAMILIES[spec.kwargs["family"]].base_id


def old_names() -> dict[str, str]:
    """Return the ids for rl-teacher's bare names and for those of later Gym versions."""
    names = {name: name for name in FAMILIES} | _ALIASES
    return {
        f"{prefix}{alias}-v1": f"{NAMESPACE}/{prefix}{name}-v1"
        for alias, name in names.items()
        for prefix in ("", "Short")
    }


def resolve_env_id(name: str) -> str:
    """Return the registered id for an old name; return other names and Gymnasium's own ids unchanged.

    ``ShortHopper-v1`` is ``teacher/ShortHopper-v1``, ``Walker2d-v1`` is ``teacher/Walker-v1``, and
    ``Pendulum-v1`` stays Gymnasium's classic task.
    """
    if name in gym.registry:
        return name
    return old_names().get(name.removeprefix(f"{NAMESPACE}/"), name)


def same_environment(one: str | None, other: str | None) -> bool:
    """Return False if two ids name different environments, so that data of one does not fit the other.

    The tasks of a family and the underlying environment have the same observations and actions, and count as
    one. Names without a version prove nothing: they are class names of unregistered environments, vector
    environments, or recorded episodes.
    """
    known = [_base(name) for name in (one, other) if name is not None and _VERSIONED.search(name)]
    return len(set(known)) < 2


def more_specific_id(old: str | None, new: str | None) -> str | None:
    """Return the newer of two names of an environment, unless only the older one has a version."""
    if new is None or (old is not None and _VERSIONED.search(old) and not _VERSIONED.search(new)):
        return old
    return new


def _base(name: str) -> str:
    """Return the environment underlying an id, which may have a ``module:`` prefix."""
    return base_env_id(resolve_env_id(name.rpartition(":")[2]))
