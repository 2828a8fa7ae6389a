"""Arguments by the names that are known, what becomes of the others, and whose function judges."""

import contextlib
import logging
import re
import sys
import types
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from teacher.data.segments import Segment
from teacher.envs.trajectory import Trajectory
from teacher.errors import BackgroundError, BehaviorError, ConfigError
from teacher.labeling.people import SiteOptions
from teacher.queries.schedules import ConstantRate
from teacher.settings.options import QueryConfig, RewardConfig
from teacher.wrapper.settings import DROPPED, WrapperConfig, read_settings
from tests.teacher.wrapper.conftest import Wrap, play

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


def test_every_argument_is_on_its_page_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) ?\|", PAGE, re.MULTILINE))
    for field in fields(WrapperConfig):
        default = "" if field.default is MISSING else str(field.default)
        shown = {str(logging.INFO): "INFO"}.get(default, default) if "log_level" in field.name else default
        assert rows[field.name].strip().strip("`") == shown, field.name
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
