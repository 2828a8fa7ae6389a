"""Vector environments, in each way they reset."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

from teacher import HumanPreferencesVectorWrapper
from teacher.envs.episodes import replay
from teacher.errors import ConfigError, EnvironmentUnsuitableError
from teacher.queries.kinds import preferences_in
from teacher.wrapper import replayable
from tests.teacher.wrapper.conftest import Line, WrapVector


def play(
    envs: HumanPreferencesVectorWrapper, steps: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rewards and true rewards, ``(steps, num_envs)``, of random actions."""
    envs.action_space.seed(1)
    envs.reset(seed=1)
    rewards, true = [], []
    for _ in range(steps):
        _, reward, terminated, truncated, infos = envs.step(envs.action_space.sample())
        rewards.append(reward)
        true.append(infos["true_reward"])
        ended = terminated | truncated
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            envs.reset(options={"reset_mask": ended})
    return np.array(rewards), np.array(true)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_they_learn_and_their_segments_replay(wrap_vector: WrapVector, mode: AutoresetMode) -> None:
    makers = replayable(Line, 3)
    envs = wrap_vector(SyncVectorEnv(makers, autoreset_mode=mode), env_fn=Line)
    rewards, true = play(envs, 250)
    real = rewards[120:] != 0  # a step in which an environment is only reset has none
    assert envs.using_reward_from_predictor
    assert np.corrcoef(rewards[120:][real], true[120:][real])[0, 1] > 0.8
    assert envs.trainer.steps == (250 * 3 if mode is not AutoresetMode.NEXT_STEP else 250 * 3 - 3 * 10)
    preferences = list(preferences_in(envs.trainer.learning.ledger))
    assert len(preferences) == 24
    for segment in (side for one in preferences for side in (one.first, one.second)):
        steps = list(replay(segment.recipe, Line()))[segment.start :]
        assert np.array_equal([step.observation for step in steps], segment.observations)
        last = list(replay(segment.recipe, Line()))[-1]
        assert last.env.unwrapped._state.tolist() == segment.next_observations[-1].tolist()  # type: ignore[attr-defined]


class AsObjects(VectorWrapper[Any, Any, Any, Any, Any]):
    """Returns final observations as arrays of objects, of a shape of its own if ``rows`` is given."""

    rows: int | None = None

    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        if "final_obs" in infos:
            final = [None if one is None else one.astype(object)[: self.rows] for one in infos["final_obs"]]
            infos["final_obs"] = final
        return (*outcome, infos)


def test_final_observations_may_be_arrays_of_objects(wrap_vector: WrapVector) -> None:
    inner = AsObjects(SyncVectorEnv([Line, Line], autoreset_mode=AutoresetMode.SAME_STEP))
    envs = wrap_vector(inner)
    play(envs, 310)
    assert envs.using_reward_from_predictor
    inner.rows = 1
    with pytest.raises(
        EnvironmentUnsuitableError, match=r"expected an array of shape \(2,\) and dtype float32"
    ):
        play(envs, 30)


def test_environments_whose_resets_are_not_known_are_refused(wrap_vector: WrapVector) -> None:
    envs = wrap_vector(SyncVectorEnv([Line, Line]), env_fn=Line)
    with pytest.raises(ConfigError, match=r"make them with teacher\.wrapper\.replayable"):
        envs.reset(seed=1)


def test_gymnasiums_own_work_too(wrap_vector: WrapVector) -> None:
    envs = wrap_vector(
        gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"),
        segment_length=4,
        allow_variable_horizon=True,
    )
    rewards, _ = play(envs, 200)
    assert envs.using_reward_from_predictor
    envs.switch_to_true_reward()
    rewards, true = play(envs, 20)
    assert np.array_equal(rewards, true)
