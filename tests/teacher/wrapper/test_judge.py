"""Whose function judges is said by its name; no option of the command line is given here."""

import contextlib
import sys
import types

import pytest

from teacher.data.segments import Segment
from teacher.envs.trajectory import Trajectory
from teacher.errors import BackgroundError, BehaviorError, ConfigError
from tests.teacher.wrapper.conftest import Wrap, play


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
