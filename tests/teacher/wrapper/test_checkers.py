"""Test what other libraries check of an environment holds for a wrapped one."""

import os
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_for_sb3

from teacher import HumanPreferencesEnvWrapper
from teacher.errors import RenderError
from tests.teacher.wrapper.conftest import Line, Wrap, play


class Registered(Line):
    """Drawn in no other way than as an array; its episodes end by their limit alone."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._state = self._state.copy()  # what was returned before stays as it is
        observation, reward, *_, info = super().step(action)
        return observation.copy(), reward, False, False, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation.copy(), info


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    if "Registered-v0" not in gym.registry:
        gym.register("Registered-v0", f"{__name__}:Registered", max_episode_steps=20)


@pytest.mark.parametrize("name", ["Registered-v0", "CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("background", [True, False])
def test_both_checkers_pass_a_wrapper(
    tmp_path: Path, name: str, background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "SDL_VIDEODRIVER", "dummy")
    settings: dict[str, Any] = {} if background else {"n_prefs": 50, "total_timesteps": 1000}
    settings["allow_variable_horizon"] = name == "CartPole-v1"
    env = HumanPreferencesEnvWrapper(
        gym.make(name, render_mode="rgb_array"),
        log_dir=tmp_path / "logs",
        background=background,
        **settings,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a wrapper, and of the bounds of spaces
        check_env_for_sb3(env)
        check_env(env)
    env.close()


def make_again(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    assert env.spec is not None
    return gym.make(env.spec)


def test_a_wrapper_made_from_the_spec_of_an_open_one_is_beside_it(tmp_path: Path) -> None:
    first = HumanPreferencesEnvWrapper(gym.make("Registered-v0"), log_dir=tmp_path / "logs", segment_length=7)
    second = make_again(first)
    third = first.beside(gym.make("Registered-v0"))
    fourth = make_again(third)
    assert all(env.get_wrapper_attr("trainer") is first.trainer for env in (second, third, fourth))
    for env in (first, second, third):
        env.close()
    fourth.reset(seed=1)
    fourth.step(fourth.action_space.sample())
    fourth.close()
    alone = make_again(first)  # when all were closed, with the same arguments
    assert alone.get_wrapper_attr("trainer") is not first.trainer
    assert alone.get_wrapper_attr("trainer").config == first.trainer.config
    alone.close()


def test_missing_screen_says_what_to_do(wrap: Wrap, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnScreen(Line):
        def render(self) -> Any:
            raise RuntimeError("glfw is not initialized")

    monkeypatch.setitem(os.environ, "MUJOCO_GL", "glfw")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    env = wrap(OnScreen("rgb_array"), background=True, synthetic_prefs=False, people="notebook")
    with pytest.raises(RenderError, match=r"there is none here .DISPLAY is not set.; leave MUJOCO_GL unset"):
        play(env, 10**6)
