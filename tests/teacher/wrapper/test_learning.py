"""One environment, with asking and learning inside ``step`` or in a thread that holds nothing up."""

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from teacher.data.decisions import Decision
from teacher.data.segments import Segment
from teacher.envs.episodes import replay
from teacher.errors import BackgroundError, ConfigError, DataError, EnvironmentUnsuitableError
from teacher.queries.kinds import preferences_in
from teacher.reward import choice
from teacher.settings.options import RewardConfig
from teacher.wrapper import trainer
from tests.teacher.wrapper.conftest import SMALL, Line, Wrap, WrapVector, play


def test_rewards_are_predicted_once_there_is_a_predictor_and_the_true_one_stays_in_info(wrap: Wrap) -> None:
    env = wrap(seed=2)
    outcomes = play(env, 700)
    rewards, true = (
        np.array(some) for some in zip(*((r, i["true_reward"]) for r, i in outcomes), strict=True)
    )
    first = int(np.flatnonzero(rewards)[0])
    assert 100 < first < 200
    assert not rewards[:first].any()
    assert env.using_reward_from_predictor
    assert np.corrcoef(rewards[first:], true[first:])[0, 1] > 0.8
    assert outcomes[0][1]["time"] == 1
    assert env.trainer.answers == 24


def test_the_same_seed_is_the_same_run(wrap: Wrap, tmp_path: Path) -> None:
    runs = [[reward for reward, _ in play(wrap(log_dir=tmp_path / name), 400)] for name in "ab"]
    assert runs[0] == runs[1]
    assert any(runs[0])


@pytest.mark.parametrize(("gain", "times"), [(-9.0, 1), (9.0, 0)])
def test_squares_and_logarithms_are_noted_once_where_they_are_read(
    wrap: Wrap, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gain: float, times: int
) -> None:
    monkeypatch.setattr(choice, "CLEAR_GAIN", gain)
    caplog.set_level(logging.INFO, "teacher.wrapper.predictor")
    env = wrap(n_prefs=60, n_initial_prefs=40, reward=replace(SMALL, patience=10))
    play(env, 900)
    assert env.using_reward_from_predictor
    assert caplog.text.count("squares and logarithms") == times


@pytest.mark.parametrize(("model", "first_fits"), [("linear", [8]), ("network", [4, 8])])
def test_linear_models_are_fitted_once_to_the_same_labels(
    wrap: Wrap, caplog: pytest.LogCaptureFixture, model: Any, first_fits: list[int]
) -> None:
    caplog.set_level(logging.INFO, "teacher.wrapper.predictor")
    play(wrap(reward=RewardConfig(members=2, model=model)), 400)
    fits = [record.args for record in caplog.records if "training step" in record.msg]
    assert [fit[0] for fit in fits if isinstance(fit, tuple)][: len(first_fits)] == first_fits


def test_the_true_reward_comes_before_the_predictor_where_that_is_wanted(wrap: Wrap) -> None:
    rewards = [(reward, info["true_reward"]) for reward, info in play(wrap(initial_reward="true"), 50)]
    assert all(reward == true for reward, true in rewards)


def test_rewards_are_switched(wrap: Wrap) -> None:
    env = wrap()
    play(env, 400)
    env.switch_to_true_reward()
    assert not env.using_reward_from_predictor
    assert all(reward == info["true_reward"] for reward, info in play(env, 30))
    env.switch_to_predicted_reward()
    assert env.using_reward_from_predictor
    assert any(reward != info["true_reward"] for reward, info in play(env, 30))


def asked(env: Any) -> list[Segment]:
    return [
        segment for one in preferences_in(env.trainer.learning.ledger) for segment in (one.first, one.second)
    ]


@pytest.mark.parametrize("length", [1, 5, 11])
def test_segments_are_of_one_episode_each_and_replay(wrap: Wrap, length: int) -> None:
    env = wrap(segment_length=length, env_fn=Line, n_prefs=12)
    play(env, 900)
    segments = asked(env)
    assert len(segments) >= 20
    for segment in segments:
        assert len(segment) == length
        steps = list(replay(segment.recipe, Line()))[segment.start :]
        assert np.array_equal([step.observation for step in steps], segment.observations)
        assert [step.reward for step in steps] == segment.true_rewards.tolist()
    assert len({segment.start % length for segment in segments}) > min(length, 3) - 1
    assert len({segment.recipe.seed for segment in segments}) > 1


def test_without_a_way_to_replay_segments_hold_what_happened(wrap: Wrap) -> None:
    env = wrap()
    play(env, 300)
    for segment in asked(env):
        after = segment.next_observations
        assert np.array_equal(after[:, 0].astype(np.float64), segment.true_rewards)
        assert np.allclose(np.diff(after[:, 1]), 1 / 23)
        assert np.abs(np.diff(segment.observations[:, 0]) - 0.3 * segment.actions[:-1, 0]).max() < 0.3


def test_nothing_is_asked_about_while_collection_is_stopped(wrap: Wrap) -> None:
    env = wrap(train_reward=False)
    env.stop_segment_collection()
    play(env, 200)
    assert env.trainer.answers == 0
    env.start_segment_collection()
    play(env, 200)
    assert env.trainer.answers > 0


def test_a_function_may_answer(wrap: Wrap) -> None:
    def left_is_better(first: Segment, second: Segment) -> Decision:
        return "first" if first.true_return < second.true_return else "second"

    env = wrap(judge=left_is_better)
    outcomes = play(env, 600)[300:]
    assert np.corrcoef([r for r, _ in outcomes], [i["true_reward"] for _, i in outcomes])[0, 1] < -0.8


class Camera(gym.ObservationWrapper[Any, Any, Any]):
    """Tells the line's state under a name, beside a text."""

    def __init__(self) -> None:
        super().__init__(Line())
        text = gym.spaces.Text(5)
        self.observation_space = gym.spaces.Dict({"state": self.env.observation_space, "mission": text})

    def observation(self, observation: Any) -> Any:
        return {"state": observation, "mission": "right"}


def test_odd_observations_are_transformed_for_segments_and_prediction(wrap: Wrap) -> None:
    with pytest.raises(EnvironmentUnsuitableError, match="pass obs_transform_func"):
        wrap(Camera())
    env = wrap(Camera(), obs_transform_func=lambda observation: observation["state"][:1])
    outcomes = play(env, 600)[300:]
    assert asked(env)[0].observations.shape == (5, 1)
    assert np.corrcoef([r for r, _ in outcomes], [i["true_reward"] for _, i in outcomes])[0, 1] > 0.8
    assert env.reset()[0]["mission"] == "right"


def test_a_transform_that_fails_is_refused(wrap: Wrap) -> None:
    with pytest.raises(ConfigError, match="obs_transform_func failed on an observation: KeyError"):
        wrap(Camera(), obs_transform_func=lambda observation: observation["picture"])


def test_several_environments_are_learned_from_together(wrap: Wrap) -> None:
    first = wrap(env_fn=Line)
    second = first.beside(Line())
    for _ in range(4):
        play(first, 60)
        play(second, 60)
    assert first.using_reward_from_predictor
    assert second.using_reward_from_predictor
    assert first.trainer.steps == 480
    first.close()
    assert second.step(np.zeros(1, np.float32))[1] != 0
    second.close()
    with pytest.raises(ConfigError, match=r"beside\(\) needs an environment with the spaces"):
        first.beside(gym.make("CartPole-v1"))


def test_a_folder_belongs_to_one_wrapper(wrap: Wrap) -> None:
    wrap()
    with pytest.raises(ConfigError, match="in use by another wrapper"):
        wrap()


def test_answers_are_saved_and_learned_from_later(wrap: Wrap, tmp_path: Path) -> None:
    collector = wrap(train_reward=False, log_dir=tmp_path / "collected")
    assert all(reward == info["true_reward"] for reward, info in play(collector, 500))
    with pytest.raises(DataError, match="no reward predictor, and none is being trained"):
        collector.switch_to_predicted_reward()
    path = collector.save_prefs()
    collector.close()

    trainer = wrap(collect_prefs=False, prefs_dir=path.parent, log_dir=tmp_path / "trained")
    with pytest.raises(DataError, match="no reward predictor yet"):
        trainer.save_reward_predictor()
    play(trainer, 20)
    assert trainer.trainer.training_steps == 8
    saved = sorted((tmp_path / "trained" / "reward_predictor_checkpoints").iterdir())
    assert [one.name for one in saved] == ["predictor-00000004.npz", "predictor-00000008.npz"]
    rewards = [reward for reward, _ in play(trainer, 40, seed=7)]
    trainer.close()

    user = wrap(
        pretrained_reward_predictor_dir=tmp_path / "trained",
        collect_prefs=False,
        train_reward=False,
        log_dir=tmp_path / "used",
    )
    assert user.using_reward_from_predictor
    assert [reward for reward, _ in play(user, 40, seed=7)] == rewards
    user.close()
    with pytest.raises(
        ConfigError, match=r"^reward: hidden is 9, but 16 in the pretrained predictor .*npz; leave out reward"
    ):
        wrap(
            pretrained_reward_predictor_dir=tmp_path / "trained",
            log_dir=tmp_path / "used",
            reward=RewardConfig(hidden=9),
        )


def test_a_pretrained_predictor_only_needs_the_settings_that_were_passed(wrap: Wrap, tmp_path: Path) -> None:
    saved = RewardConfig(inputs="state,action", model="network", features="plain", members=2, reward_std=1.0)
    trained = wrap(log_dir=tmp_path / "trained", reward=saved)
    play(trained, 300)
    trained.save_reward_predictor()
    trained.close()
    for number, passed in enumerate((RewardConfig(), RewardConfig(reward_std=1.0), saved)):
        user = wrap(
            pretrained_reward_predictor_dir=tmp_path / "trained",
            log_dir=tmp_path / f"used-{number}",
            reward=passed,
        )
        assert user.predictor is not None
        assert user.predictor.config == saved
    with pytest.raises(ConfigError, match=r"^reward: reward_std is 0\.5, but 1\.0 in the pretrained"):
        wrap(
            pretrained_reward_predictor_dir=tmp_path / "trained",
            log_dir=tmp_path / "refused",
            reward=RewardConfig(reward_std=0.5),
        )


def test_predictor_keeps_its_own_scale(wrap: Wrap, tmp_path: Path) -> None:
    trained = wrap(log_dir=tmp_path / "trained", reward=RewardConfig(hidden=9, reward_std=0.3))
    play(trained, 300)
    trained.save_reward_predictor()
    trained.close()
    user = wrap(
        pretrained_reward_predictor_dir=tmp_path / "trained",
        log_dir=tmp_path / "used",
        reward=RewardConfig(hidden=9),
    )
    assert user.predictor is not None
    assert user.predictor.config.reward_std == 0.3


def test_saved_answers_and_new_ones_are_learned_from_together(wrap: Wrap, tmp_path: Path) -> None:
    collector = wrap(train_reward=False, log_dir=tmp_path / "collected")
    play(collector, 300)
    path, saved = collector.save_prefs(), collector.trainer.answers
    collector.close()
    env = wrap(prefs_dir=path, log_dir=tmp_path / "both")
    play(env, 700)
    assert env.trainer.answers == saved + env.trainer.learning.ledger.usable() == 24


def test_answers_of_other_segments_are_refused(wrap: Wrap, tmp_path: Path) -> None:
    env = wrap(train_reward=False)
    play(env, 300)
    path = env.save_prefs()
    env.close()
    with pytest.raises(ConfigError, match="segment_length: must be 5"):
        wrap(prefs_dir=path, segment_length=6, log_dir=tmp_path / "other")
    with pytest.raises(DataError, match="from a different environment"):
        wrap(
            gym.make("CartPole-v1"),
            allow_variable_horizon=True,
            prefs_dir=path,
            log_dir=tmp_path / "other",
        )


def test_foreign_data_is_refused(wrap: Wrap, wrap_vector: WrapVector, tmp_path: Path) -> None:
    env = wrap(gym.make("HalfCheetah-v5"), log_dir=tmp_path / "first")
    play(env, 200)
    env.save_prefs()
    env.save_reward_predictor()
    env.close()
    first = tmp_path / "first"
    others = {"collect_prefs": False, "log_dir": tmp_path / "other"}
    for saved in ({"prefs_dir": first}, {"pretrained_reward_predictor_dir": first, "train_reward": False}):
        with pytest.raises(DataError, match=r"env_id is HalfCheetah-v5, not Walker2d-v5; .*$"):
            wrap(gym.make("Walker2d-v5"), **{**others, **saved})
        wrap(gym.make("teacher/ShortCheetah-v1"), **{**others, **saved}).close()  # the same robot
        envs = SyncVectorEnv([lambda: gym.make("HalfCheetah-v5")])
        assert envs.spec is None
        wrap_vector(envs, **{**others, **saved}).close()
    with pytest.raises(ConfigError, match=r"^log_dir: .*first contains labels for HalfCheetah-v5, not for W"):
        wrap(gym.make("Walker2d-v5"), allow_variable_horizon=True, log_dir=first)


def test_aliases_share_their_preferences(wrap: Wrap, wrap_vector: WrapVector, tmp_path: Path) -> None:
    """The names of one environment come into one ledger, which later sessions read."""
    answers = [0]
    for name, steps in (("HalfCheetah-v5", 200), ("teacher/ShortCheetah-v1", 500)):
        env = wrap(gym.make(name), log_dir=tmp_path)
        assert env.trainer.answers == answers[-1]
        play(env, steps)
        answers.append(env.trainer.answers)
        env.close()
    assert 0 < answers[1] < answers[2]
    for name in ("HalfCheetah-v5", "teacher/ShortCheetah-v1"):
        env = wrap(gym.make(name), log_dir=tmp_path)
        assert env.trainer.answers == answers[2]
        env.close()
    wrap_vector(SyncVectorEnv([lambda: gym.make("HalfCheetah-v5")]), log_dir=tmp_path).close()


def test_only_the_last_of_saved_answers_are_kept_where_they_are_too_many(wrap: Wrap, tmp_path: Path) -> None:
    collector = wrap(train_reward=False, log_dir=tmp_path / "collected")
    play(collector, 700)
    path = collector.save_prefs()
    collector.close()
    assert collector.trainer.answers == 24
    env = wrap(prefs_dir=path, collect_prefs=False, max_prefs_in_db=13, log_dir=tmp_path / "few")
    assert env.trainer.answers == 13
    newest = list(collector.trainer.learning.dataset._rows)[-13:]
    assert all(uuid in env.trainer.learning.dataset for uuid in newest)


def test_the_predictors_settings_say_how_many_answers_are_learned_from(wrap: Wrap) -> None:
    env = wrap(reward=replace(SMALL, max_preferences=15))
    play(env, 700)
    assert env.trainer.learning.ledger.usable() == 24
    assert env.trainer.answers == 15
    env.close()
    with pytest.raises(
        ConfigError, match=r"^reward\.max_preferences: must be at least n_initial_prefs \(12\)"
    ):
        wrap(reward=replace(SMALL, max_preferences=11))


@pytest.mark.parametrize("reward", [{"image_dropout": 0.1}, {"no_image_batch_norm": True}])
def test_misplaced_network_settings_are_refused(wrap: Wrap, reward: dict[str, Any]) -> None:
    wrap(reward=RewardConfig(**reward), train_reward=False).close()
    with pytest.raises(ConfigError, match="has no effect when observations are not images"):
        wrap(reward=RewardConfig(**reward))


@pytest.mark.parametrize("decision", ["equal", "cant_tell"])
def test_undecided_answers_warn(wrap: Wrap, caplog: pytest.LogCaptureFixture, decision: Decision) -> None:
    play(wrap(judge=lambda *_: decision), 600)
    assert caplog.text.count("no label used for fitting prefers") == (decision == "equal")
    assert caplog.text.count('labels so far are "can\'t tell"') == (decision == "cant_tell")


class Failing(Line):
    """Return NaN observations once it is broken."""

    broken = False

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *others = super().step(action)
        return (observation * np.nan if self.broken else observation), *others


def test_nan_observation_gives_no_reward(wrap: Wrap) -> None:
    line = Failing()
    env = wrap(line)
    play(env, 300)
    assert env.using_reward_from_predictor
    line.broken = True
    with pytest.raises(DataError, match="observations or actions contain NaN or infinity"):
        env.step(np.zeros(1, np.float32))


def test_a_folder_is_gone_on_with(wrap: Wrap) -> None:
    env = wrap()
    play(env, 300)
    answers = env.trainer.answers
    env.close()
    env = wrap()
    assert env.trainer.answers == answers >= 12
    play(env, 20)
    assert env.using_reward_from_predictor


def test_a_predictor_is_looked_for_where_one_may_be(wrap: Wrap, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="contains no saved reward predictors"):
        wrap(pretrained_reward_predictor_dir=tmp_path, collect_prefs=False, train_reward=False)


PATIENCE_SECONDS = 60.0


def until_it_predicts(env: object, steps: int = 20) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not env.using_reward_from_predictor:  # type: ignore[attr-defined]
        play(env, steps)  # type: ignore[arg-type]
        assert time.monotonic() < deadline


def test_it_learns_beside_the_steps(wrap: Wrap, tmp_path: Path) -> None:
    env = wrap(background=True)
    until_it_predicts(env)
    env.close()
    assert list((tmp_path / "logs" / "reward_predictor_checkpoints").iterdir())


def test_new_segments_wait_for_the_next_turn(wrap: Wrap, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment faster than this would else keep it from ever asking."""
    env = wrap()
    play(env, 60)
    trainer = env.trainer
    segments, given = list(trainer.learning.pool.segments), trainer._given

    def meanwhile(segment: Segment) -> bool:
        given.append(segment)
        return True

    monkeypatch.setattr(trainer.clips, "can_show", meanwhile)
    given.extend(segments)
    trainer._take(trainer._given_now())
    assert len(trainer.learning.pool) == 2 * len(segments)
    assert list(given) == segments


def test_answers_come_by_the_clock_without_a_number(wrap: Wrap) -> None:
    env = wrap(background=True, n_prefs=None, total_timesteps=None)
    until_it_predicts(env)


def test_neither_step_nor_close_waits_for_an_answer(wrap: Wrap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "_CLOSE_SECONDS", 0.1)
    asked, go_on = threading.Event(), threading.Event()

    def thinks_long(first: Segment, second: Segment) -> Decision:
        asked.set()
        go_on.wait(PATIENCE_SECONDS)
        return "first"

    env = wrap(background=True, judge=thinks_long)
    play(env, 200)
    assert asked.wait(PATIENCE_SECONDS)
    play(env, 200)
    env.close()
    assert not go_on.is_set()
    go_on.set()
    env.trainer._thread.join(PATIENCE_SECONDS)  # type: ignore[union-attr]
    assert wrap().trainer.answers > 0  # the folder is free


def test_a_fit_is_given_up_when_the_wrapper_is_closed(wrap: Wrap) -> None:
    env = wrap(background=True, n_initial_training_steps=10**9, validation_interval=10**9)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while env.trainer.answers < 12:
        play(env, 20)
        assert time.monotonic() < deadline
    env.close()
    assert not env.trainer._thread.is_alive()  # type: ignore[union-attr]


def test_background_errors_are_raised_by_step_and_close(wrap: Wrap, tmp_path: Path) -> None:
    def fails(first: Segment, second: Segment) -> Decision:
        raise KeyError("nothing like this was seen before")

    env = wrap(background=True, judge=fails)
    said = "reward predictor failed: .*fails failed: KeyError: 'nothing like this was seen before'; fix"
    with pytest.raises(BackgroundError, match=said):
        play(env, 10**6)
    with pytest.raises(BackgroundError, match=said):
        env.close()
    env.close()  # told enough
    again = wrap()  # the folder is free, and what was asked there is answered now
    play(again, 20)
    assert again.trainer.answers > 0
