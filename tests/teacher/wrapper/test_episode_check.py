"""Test what the wrapper finds out of its environment, by the rule of ``teach``, and its arguments."""

import contextlib
import logging
import re
import sys
import types
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import uuid4

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import ClipReward, RecordEpisodeStatistics, RenderCollection
from stable_baselines3.common.monitor import Monitor

from docs.reference_pages import wrapper_arguments
from teacher import FixedHorizon
from teacher.data.ledger import LEDGER_NAME, Ledger, Question
from teacher.data.segments import Segment
from teacher.envs.make import make_again
from teacher.envs.trajectory import Trajectory
from teacher.envs.trial import usual_length
from teacher.errors import BackgroundError, BehaviorError, ConfigError, EnvironmentUnsuitableError
from teacher.labeling.people import SiteOptions
from teacher.queries.schedules import ConstantRate
from teacher.settings.options import QueryConfig, RewardConfig
from teacher.wrapper import episode_check
from teacher.wrapper.builder import first_predictors
from teacher.wrapper.episode_check import fit_to_environment
from teacher.wrapper.settings import DROPPED, WrapperConfig, read_settings
from tests.environments import Sampled, registered
from tests.teacher.wrapper.conftest import Line, Wrap, WrapVector, play


class Falls(Line):
    """Ends early after a number of steps that is drawn, from some episode on."""

    def __init__(self, first: int = 0, steps: int = 23, *, truncates: bool = False) -> None:
        super().__init__(steps=steps)
        self._first, self.episodes, self._truncates = first, -1, truncates

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episodes += 1
        self._end = self._steps
        observation = super().reset(seed=seed)
        if self.episodes >= self._first:
            self._end = int(self.np_random.integers(5, self._steps))
        return observation

    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        ended = self._time == self._end
        return observation, reward, ended and not self._truncates, truncated or ended, info


@pytest.fixture
def falls(monkeypatch: pytest.MonkeyPatch) -> str:
    return registered(monkeypatch, "Falls-v0", Falls, 100)


@pytest.mark.parametrize("env_id", ["Hopper-v5", "InvertedPendulum-v5", "FrozenLake-v1", "Blackjack-v1"])
def test_segments_fit_into_episodes(wrap: Wrap, env_id: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"segment_length": None, "allow_variable_horizon": True, "total_timesteps": 500}
    env = wrap(gym.make(env_id), **settings)
    length = env.trainer.config.segment_steps
    assert 1 <= length <= 10
    assert f"Segments of {length} step" in caplog.text
    shortened = length < usual_length(None, env.trainer.source.fps)
    assert ("half the median length of random episodes" in caplog.text) == shortened
    play(env, 520)
    assert env.trainer.answers == 24, "where there were none at all"


def test_a_usual_segment_takes_as_long_as_in_teach(wrap: Wrap) -> None:
    assert wrap(gym.make("Pendulum-v1"), segment_length=None).trainer.config.segment_length == 45


def test_answers_that_are_there_decide_the_length(wrap: Wrap, tmp_path: Path) -> None:
    env = wrap(segment_length=4)
    play(env, 300)
    env.save_prefs()
    env.close()
    again = wrap(segment_length=None)
    assert again.trainer.config.segment_length == 4
    again.close()
    assert (
        wrap(segment_length=None, prefs_dir=tmp_path / "logs", log_dir=tmp_path / "new").trainer.answers >= 12
    )


def test_pairs_that_wait_for_an_answer_decide_the_length(wrap: Wrap, tmp_path: Path) -> None:
    env = wrap(segment_length=4)
    play(env, 300)
    env.close()
    with contextlib.closing(Ledger(tmp_path / "logs" / LEDGER_NAME)) as ledger:
        pairs = ledger.decided_items(3)
    (tmp_path / "asked").mkdir()
    with contextlib.closing(Ledger(tmp_path / "asked" / LEDGER_NAME)) as ledger:
        ledger.write([Question(uuid4(), pair, "pretraining", 0) for pair in pairs])
    assert wrap(segment_length=None, log_dir=tmp_path / "asked").trainer.config.segment_length == 4


@pytest.mark.parametrize("vector", [False, True])
def test_refused_as_by_teach(wrap: Wrap, wrap_vector: WrapVector, falls: str, vector: bool) -> None:
    env: Any = SyncVectorEnv([lambda: gym.make(falls)] * 2) if vector else gym.make(falls)
    make: Any = wrap_vector if vector else wrap
    with pytest.raises(EnvironmentUnsuitableError) as refused:
        make(env, segment_length=101)
    said = str(refused.value)
    for part in (
        "50 of 50 random episodes of",
        "the length of an episode leaks the reward",
        'teacher.FixedHorizon(env, "restart") (or "absorb")',
        "or pass allow_variable_horizon=True to accept this",
        "a segment of 101 steps fits into only 0 of 50",
        "pass segment_length=100 or less",
    ):
        assert part in said
    assert "\n" not in said


def test_fixed_length_episodes_are_named(wrap: Wrap) -> None:
    with pytest.raises(
        EnvironmentUnsuitableError,
        match="the environment with terminate_when_unhealthy=False; use teacher/Walker-v1, whose episodes",
    ):
        wrap(gym.make("Walker2d-v5"))
    wrap(gym.make("Walker2d-v5", terminate_when_unhealthy=False, max_episode_steps=50)).close()


@pytest.mark.parametrize("filling", ["absorb", "restart"])
def test_fixed_horizons(wrap: Wrap, filling: Any, falls: str, caplog: pytest.LogCaptureFixture) -> None:
    made: list[FixedHorizon] = []

    def make() -> FixedHorizon:
        made.append(FixedHorizon(gym.make(falls), filling, 30))
        return made[-1]

    env = wrap(make(), segment_length=None, env_fn=make)
    assert env.trainer.config.segment_length == 15
    _, predictor = first_predictors(env.trainer.config, env.trainer.source, None)
    expected = "next_state,absorbing" if filling == "absorb" else "next_state"
    assert predictor.config.inputs == expected
    play(env, 600)
    assert env.trainer.answers >= 12
    for _ in range(5):
        env.reset()
        ends = [env.step(np.zeros(1))[2:4] for _ in range(env.get_wrapper_attr("_end"))]
        assert not any(map(any, ends[:-1]))
        assert ends[-1] == (filling == "absorb", False)
    env.beside(make()).close()
    assert made[-1].terminates == (filling == "absorb")
    assert "ended early" not in caplog.text


@pytest.mark.parametrize("filling", ["absorb", "restart"])
def test_absorbing_vector_is_recognized(wrap_vector: WrapVector, filling: Any, falls: str) -> None:
    envs = SyncVectorEnv([lambda: FixedHorizon(gym.make(falls), filling, 30)] * 2)
    trainer = wrap_vector(envs).trainer
    assert trainer.source.absorbs == (filling == "absorb")
    after_end = trainer.config.segment_steps if trainer.source.absorbs else None
    assert envs.get_attr("max_frozen_steps") == (after_end, after_end)
    assert trainer.source.horizon == (30 if filling == "absorb" else None)
    assert envs.get_attr("terminates") == (filling == "absorb",) * 2


def test_agents_own_environments_are_not_touched(wrap: Wrap, tmp_path: Path, falls: str) -> None:
    inner = Monitor(gym.make(falls), str(tmp_path / "true"))
    env = wrap(inner, allow_variable_horizon=True)
    assert not inner.get_episode_lengths()
    assert env.trainer.config.segment_length == 5
    env.close()
    collection = RenderCollection(gym.make("Pendulum-v1", render_mode="rgb_array"))
    again = make_again(collection)
    assert again is not None
    assert "RenderCollection" in str(collection)
    assert "RenderCollection" not in str(again), "nor RecordVideo, which writes files"


def test_an_environment_in_use_is_not_tried(wrap_vector: WrapVector) -> None:
    inner = Falls()
    wrap_vector(SyncVectorEnv([lambda: inner]))
    assert inner.episodes == -1


@pytest.mark.parametrize(
    "wrapper", [Monitor, RecordEpisodeStatistics, lambda env: Monitor(ClipReward(env, 0, 1))]
)
def test_recording_wrappers_are_fine(wrap: Wrap, falls: str, wrapper: Callable[[Any], Any]) -> None:
    with pytest.raises(EnvironmentUnsuitableError, match="50 of 50 random episodes of Falls-v0 end before"):
        wrap(wrapper(gym.make(falls)))


@pytest.mark.parametrize("truncates", [False, True])
def test_first_episodes_as_trial(wrap: Wrap, truncates: bool, caplog: pytest.LogCaptureFixture) -> None:
    env = wrap(Monitor(Falls(truncates=truncates)))
    assert "no second instance of Falls can be made; the agent's first 50 episodes are" in caplog.text
    with pytest.raises(
        EnvironmentUnsuitableError, match=r"episodes of Falls have \d+ to \d+ steps, and the le"
    ):
        play(env, 100)
    play(wrap(Falls(), allow_variable_horizon=True, log_dir=env.trainer.config.logs / "allowed"), 200)


def test_short_episodes_end_the_run_that_would_have_no_segment(wrap: Wrap) -> None:
    env = wrap(Line(steps=4))
    play(env, 4 * 49)
    with pytest.raises(EnvironmentUnsuitableError, match=r"0 of 50 .*: 4 steps.: pass segment_length=4 or"):
        play(env, 4)


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize(("allowed", "warnings"), [(False, 1), (True, 0)])
def test_an_early_end_later_is_warned_of_once(
    wrap: Wrap, caplog: pytest.LogCaptureFixture, allowed: bool, warnings: int, truncates: bool
) -> None:
    env = wrap(Falls(first=50, truncates=truncates), allow_variable_horizon=allowed)
    play(env, 23 * 55)
    told = [record for record in caplog.records if "leaks the reward" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"] * warnings


def test_an_end_at_the_same_step_each_time_is_none(wrap: Wrap, caplog: pytest.LogCaptureFixture) -> None:
    play(wrap(Line(steps=22)), 22 * 55)  # which terminates, and tells nothing by that
    assert "leaks the reward" not in caplog.text


class Parts(Sampled):
    """With observations of several parts; the first number is to be large."""

    spec = None
    length = 20

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, *rest = super().step(action)
        numbers: Any = gym.spaces.flatten(self.observation_space, observation)
        return observation, float(numbers[0]), *rest


BOX = gym.spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "numbers"),
    [
        (gym.spaces.Dict({"what": BOX, "where": gym.spaces.Discrete(3)}), 5),
        (gym.spaces.Tuple([BOX, gym.spaces.Discrete(3)]), 5),
        (gym.spaces.MultiBinary(4), 4),
        (gym.spaces.Discrete(3), None),
        (gym.spaces.MultiDiscrete([2, 3]), None),
    ],
)
def test_observations_of_parts_are_flattened_for_the_predictor_alone(
    wrap: Wrap, space: gym.Space[Any], numbers: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    env = wrap(Parts(space))
    play(env, 600)
    observation, _ = env.reset()
    assert space.contains(observation), "the agent's own"
    assert env.using_reward_from_predictor
    kept = env.trainer.learning.pool.segments[0].observations.shape
    assert kept == (5, *((numbers,) if numbers else space.shape or ()))
    assert caplog.text.count(f"are flattened into {numbers} numbers") == (numbers is not None)
    path = env.save_reward_predictor()
    env.close()
    used = wrap(
        Parts(space), collect_prefs=False, train_reward=False, pretrained_reward_predictor_dir=path.parent
    )
    assert play(used, 3)[-1][0] != 0


@pytest.mark.parametrize(
    "space", [gym.spaces.Text(4), gym.spaces.Dict({"where": BOX, "says": gym.spaces.Sequence(BOX)})]
)
def test_texts_and_the_like_are_refused(wrap: Wrap, space: gym.Space[Any]) -> None:
    with pytest.raises(EnvironmentUnsuitableError, match="are not numeric arrays: pass obs_transform_func"):
        wrap(Parts(space))


def test_nothing_is_tried_where_nothing_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "teacher.wrapper")
    config = WrapperConfig(collect_prefs=False, train_reward=False)
    assert fit_to_environment(config, gym.make("CartPole-v1"), "CartPole-v1", 50).config.segment_length == 75
    assert not caplog.text


def test_long_trial_is_reported_once(
    wrap: Wrap, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_check, "_PATIENCE_SECONDS", -1.0)
    wrap(gym.make("Pendulum-v1", max_episode_steps=20))
    assert caplog.text.count("running random episodes (0 of 50 finished)") == 1


def test_all_that_is_refused_is_refused_at_once(wrap: Wrap) -> None:
    env = gym.make("minigrid:MiniGrid-Empty-5x5-v0")
    with pytest.raises(EnvironmentUnsuitableError) as refused:
        wrap(env, segment_length=101)
    for part in (
        "observations in Dict('direction'",
        "pass obs_transform_func=teacher.envs.minigrid.cells, a function that",
        "leaks the reward",
        "a segment of 101 steps fits into only 0 of 50",
    ):
        assert part in str(refused.value)


def test_resets_with_options_are_said_to_get_no_labels(wrap: Wrap, caplog: pytest.LogCaptureFixture) -> None:
    env = wrap(env_fn=Line)
    for _ in range(2):
        env.reset(options={"level": 3})
    assert caplog.text.count("can't be replayed, so no labels are requested for them") == 1


# Of HumanPreferencesEnvWrapper in DRLHP, but for env and reward_predictor_network.
KNOWN = """train_reward collect_prefs segment_length mp_context prefs_dir log_dir max_prefs_in_db
    obs_transform_func n_initial_training_steps n_initial_prefs pretrained_reward_predictor_dir
    reward_predictor_ckpt_interval reward_predictor_refresh_interval validation_interval
    reward_database_refresh_interval synthetic_prefs max_pref_interface_segs zoom_ratio channels
    env_wrapper_log_level reward_predictor_log_level pref_interface_log_level""".split()
PAGE = (Path(__file__).parents[3] / "docs" / "wrapper.md").read_text()


def test_every_known_argument_is_taken_or_was_dropped_for_a_reason() -> None:
    assert {field.name for field in fields(WrapperConfig)} | set(DROPPED) >= set(KNOWN)


@pytest.mark.parametrize("name", DROPPED)
def test_dropped_arguments_warn(name: str) -> None:
    with pytest.warns(UserWarning, match=f"{name} has no effect here: {re.escape(DROPPED[name])}"):
        read_settings({name: 1})


def test_both_names_are_understood() -> None:
    assert not read_settings({"synthetic_preferences": False}).synthetic_prefs
    with pytest.raises(ConfigError, match="synthetic_preferences and synthetic_prefs are the same setting"):
        read_settings({"synthetic_prefs": False, "synthetic_preferences": False})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"segment_lenght": 3}, "no argument segment_lenght; did you mean segment_length"),
        ({"segment_length": 0}, "segment_length: expected 1 or more; got 0"),
        ({"n_prefs": 100}, "n_prefs: must be passed together with total_timesteps"),
        (
            {"n_prefs": 10, "total_timesteps": 100},
            r"n_prefs: must be at least n_initial_prefs \(40\); got 10",
        ),
        (
            {"max_prefs_in_db": 39},
            r"max_prefs_in_db: must be at least n_initial_prefs \(40\), or training never starts; got 39",
        ),
        ({"background": False}, "background: without a thread, labels need a schedule: pass"),
        (
            {"background": False, "synthetic_prefs": False, "n_prefs": 50, "total_timesteps": 100},
            "background: must be True if people label",
        ),
        ({"collect_prefs": False}, "train_reward: training needs labels"),
        ({"people": "everyone"}, "people: expected site, terminal or notebook; got 'everyone'"),
        ({"channels": 4}, "channels: expected 1 or 3; got 4"),
        (
            {"schedule": ConstantRate(9, 1.0), "n_prefs": 50, "total_timesteps": 100},
            "schedule: can't be combined with n_prefs and total_timesteps",
        ),
        (
            {"judge": "mistake:0.1", "synthetic_prefs": False},
            "judge: has no effect with synthetic_prefs=False, because",
        ),
        (
            {"people": "notebook"},
            "people: has no effect with synthetic_prefs=True, because",
        ),
        (
            {"site": SiteOptions(name="a")},
            r"site\.name: has no effect .*with synthetic_prefs=True",
        ),
        (
            {"site": SiteOptions(name="a"), "synthetic_prefs": False, "people": "notebook"},
            r'site\.name: has no effect unless people="site"',
        ),
        (
            {"reward": RewardConfig(initial_epochs=3)},
            r"reward\.initial_epochs: has no effect .*n_initial_training_steps sets .*; got 3",
        ),
        (
            {"reward": RewardConfig(converge=True)},
            r"reward\.converge: has no effect .*in the wrapper",
        ),
        (
            {"queries": QueryConfig(exploration_frac=0.1)},
            r"queries\.exploration_frac: has no effect in the wrapper, which takes no",
        ),
        (
            {"queries": QueryConfig(exploration_frac=0.1, switch_prob=0.1)},
            r"queries\.switch_prob: has no effect",
        ),
        (
            {"queries": QueryConfig(exploration_frac=0.1, random_prob=0.1)},
            r"queries\.random_prob: has no effect",
        ),
    ],
)
def test_bad_arguments_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(settings)


def test_every_argument_is_in_the_reference_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .+ \| (.*?) ?\|$", wrapper_arguments(), re.MULTILINE))
    assert rows.keys() == {field.name for field in fields(WrapperConfig)}
    assert (rows["zoom_ratio"], rows["env_wrapper_log_level"], rows["reward"]) == ("`4`", "`INFO`", "")
    assert set(DROPPED) <= set(re.findall(r"`(\w+)`", PAGE))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "  "}, r"^site\.prompt: expected a sentence of up to 500 characters; got '  '$"),
        ({"site_url": "here"}, r"^site\.site_url: expected http\(s\)://host\[/path\]; got 'here'"),
        ({"bind": "::"}, r"^site\.bind: needs public_url"),
    ],
)
def test_options_of_the_site_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SiteOptions(**options)


def broken(steps: Segment | Trajectory) -> float:
    raise ZeroDivisionError("no steps")


FUNCTIONS = types.SimpleNamespace(
    broken=broken, no_number=lambda steps: float("nan"), text=lambda steps: "good", nothing=lambda steps: None
)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("broken", "wrapper_judges:broken failed: ZeroDivisionError: no steps; fix the function$"),
        (
            "no_number",
            "wrapper_judges:no_number returned nan, but must return a finite number; fix the function$",
        ),
        ("text", "wrapper_judges:text returned good, but must return a finite number; fix the function$"),
        (
            "nothing",
            "wrapper_judges:nothing returned None, but must return a finite number; fix the function$",
        ),
    ],
)
@pytest.mark.parametrize("background", [False, True])
def test_a_function_that_fails_is_named(
    wrap: Wrap, monkeypatch: pytest.MonkeyPatch, background: bool, function: str, says: str
) -> None:
    monkeypatch.setitem(sys.modules, "wrapper_judges", FUNCTIONS)
    env = wrap(judge=f"wrapper_judges:{function}", background=background)
    with pytest.raises((BehaviorError, BackgroundError), match=says) as error:
        play(env, 10**6)
    assert "--" not in str(error.value)
    with contextlib.suppress(BackgroundError):  # which says it again
        env.close()


def test_a_judge_that_cannot_be_is_refused_by_its_argument(wrap: Wrap) -> None:
    with pytest.raises(ConfigError, match=r"^judge: expected one or more of oracle, .*; got 'nobody'$"):
        wrap(judge="nobody")
    with pytest.raises(ConfigError, match=r"^cannot import no_such_module:judge: ModuleNotFoundError"):
        wrap(judge="no_such_module:judge")
