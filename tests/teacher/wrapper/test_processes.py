"""Environments of one agent, in vectors or in processes: one predictor, or a refusal that is seen."""

import logging
import multiprocessing
import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from stable_baselines3.common.vec_env import SubprocVecEnv

from teacher import HumanPreferencesEnvWrapper, HumanPreferencesVectorWrapper
from teacher.envs.episodes import replay
from teacher.errors import ConfigError, EnvironmentUnsuitableError
from teacher.queries.kinds import preferences_in
from teacher.wrapper import replayable
from tests.teacher.wrapper.conftest import INSIDE, Line, Wrap, WrapVector, play

OTHER_PREDICTOR = "another wrapper in this process"


def wrapped(log_dir: Path, **settings: Any) -> HumanPreferencesEnvWrapper:
    return HumanPreferencesEnvWrapper(Line(), log_dir=log_dir, **{**INSIDE, **settings})


def test_a_wrapper_is_not_sent_to_another_process(wrap: Wrap) -> None:
    """Send a function as SubprocVecEnv and AsyncVectorEnv do."""
    first = wrap()
    with pytest.raises(ConfigError, match=r"can't be copied or sent to another process.*DummyVecEnv"):
        SubprocVecEnv([lambda: first, lambda: first.beside(Line())])
    for copy in (pickle.dumps, deepcopy):
        with pytest.raises(ConfigError, match=r"HumanPreferencesEnvWrapper can't be copied or sent"):
            copy(first)


def test_the_vector_wrapper_is_not_sent_either(wrap_vector: WrapVector) -> None:
    envs = wrap_vector(AsyncVectorEnv([Line, Line]))
    with pytest.raises(ConfigError, match=r"HumanPreferencesVectorWrapper can't be copied or sent"):
        pickle.dumps(envs)


def test_one_predictor_per_process_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((EOFError, BrokenPipeError, ConnectionResetError)):  # the workers have ended
        SubprocVecEnv([partial(wrapped, tmp_path / name) for name in ("a", "b")])
    told = capfd.readouterr().err
    assert "would train a separate predictor in each process" in told
    assert "DummyVecEnv([lambda: first, lambda: first.beside(env)])" in told
    assert not (tmp_path / "a").exists()


def refusal_in_a_worker(send: Callable[[str], None], log_dir: Path, **settings: Any) -> None:
    try:
        env = wrapped(log_dir, **settings)
        send(str(play(env, 30)[0][0]))
        env.close()
    except ConfigError as error:
        send(str(error))


@pytest.mark.parametrize(
    ("daemon", "settings", "refused"),
    [
        (True, {}, True),
        (True, {"own_agent": True}, False),
        (True, {"collect_prefs": False, "train_reward": False}, False),
        (False, {}, False),
    ],
)
def test_daemon_with_agent(tmp_path: Path, daemon: bool, settings: dict[str, Any], refused: bool) -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    worker = context.Process(
        target=refusal_in_a_worker, args=(there.send, tmp_path / "logs"), kwargs=settings, daemon=daemon
    )
    worker.start()
    said = here.recv()
    worker.join()
    assert ("own_agent=True" in said) == refused


def step_elsewhere(send: Callable[[str], None], env: HumanPreferencesEnvWrapper) -> None:
    try:
        env.step(np.zeros(1, np.float32))
        send("stepped")
    except ConfigError as error:
        send(str(error))


def test_a_wrapper_is_not_stepped_in_a_process_that_was_forked_from_its_own(wrap: Wrap) -> None:
    env = wrap()
    env.reset(seed=1)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    worker = context.Process(target=step_elsewhere, args=(there.send, env))
    worker.start()
    assert "the wrapper was made in a different process" in here.recv()
    worker.join()
    env.step(np.zeros(1, np.float32))


def test_one_predictor_rewards_environments_in_several_processes(wrap_vector: WrapVector) -> None:
    """A Gymnasium vector environment steps them; it is wrapped as a whole, in this process."""
    envs = wrap_vector(AsyncVectorEnv([Line, Line]))
    envs.action_space.seed(1)
    envs.reset(seed=1)
    while not envs.using_reward_from_predictor:
        envs.step(envs.action_space.sample())
    rewards = [envs.step(envs.action_space.sample())[1] for _ in range(10)]
    assert np.count_nonzero(rewards) >= 16  # all but the steps that begin an episode
    assert envs.trainer.answers >= INSIDE["n_initial_prefs"]


def test_second_predictor_in_a_process_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "teacher.wrapper")
    first = wrapped(tmp_path / "first")
    first.beside(Line()).close()
    wrapped(tmp_path / "second", train_reward=False).close()
    assert OTHER_PREDICTOR not in caplog.text
    second = wrapped(tmp_path / "third")
    assert f"{OTHER_PREDICTOR}, with log_dir {tmp_path / 'first'}, trains a separate predictor" in caplog.text
    caplog.clear()
    first.close()
    second.close()
    wrapped(tmp_path / "fourth").close()
    assert OTHER_PREDICTOR not in caplog.text


def step_all(
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
    rewards, true = step_all(envs, 250)
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
    step_all(envs, 310)
    assert envs.using_reward_from_predictor
    inner.rows = 1
    with pytest.raises(
        EnvironmentUnsuitableError, match=r"expected an array of shape \(2,\) and dtype float32"
    ):
        step_all(envs, 30)


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
    rewards, _ = step_all(envs, 200)
    assert envs.using_reward_from_predictor
    envs.switch_to_true_reward()
    rewards, true = step_all(envs, 20)
    assert np.array_equal(rewards, true)
