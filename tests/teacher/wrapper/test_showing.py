"""Test what people see of a segment, in each way that it can be shown."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from teacher.errors import ConfigError
from tests.teacher.wrapper.conftest import Line, Wrap, play

PATIENCE_SECONDS = 120.0
STEPS = 5
GAP = 10  # pixels


def drawn() -> Line:
    return Line(render_mode="rgb_array")


def looked_at(observation: Any) -> Any:
    """The line's observation as the picture that it draws."""
    line = Line()
    line._state[:] = observation
    return line.render()


WAYS: dict[str, dict[str, Any]] = {
    "replay": {"env_fn": drawn},
    "observations": {"obs_transform_func": looked_at, "zoom_ratio": 2},
    "pictures": {},
}


def further_right(path: Path) -> str:
    """The side of the clip on which the red line is further to the right, over all its pictures."""
    columns: list[list[float]] = [[], []]
    pictures = 0.0
    with Image.open(path) as picture:
        for index in range(getattr(picture, "n_frames", 1)):  # pictures that are alike are one
            picture.seek(index)
            shown = picture.info["duration"] / 100  # of ten a second
            red = np.asarray(picture.convert("RGB")).astype(int)
            marked = (red[0, :, 0] > 150) & (red[0, :, 1] < 120)  # the middle of the line, whatever JPEG does
            half = len(marked) // 2
            columns[0].append(shown * float(np.flatnonzero(marked[:half]).mean()))
            columns[1].append(shown * (float(np.flatnonzero(marked[half:]).mean()) - GAP / 2))
            pictures += shown
    assert pictures == STEPS
    return "l" if sum(columns[0]) > sum(columns[1]) else "r"


@pytest.mark.parametrize("way", WAYS)
def test_a_pair_shows_what_happened(wrap: Wrap, tmp_path: Path, way: str) -> None:
    people = {"synthetic_prefs": False, "people": "notebook", "background": True, "train_reward": False}
    env = wrap(drawn(), segment_length=STEPS, **people, **WAYS[way])
    assert env.trainer.clips.mode == way
    collector: Any = env.trainer.learning.collector
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(collector._waiting) < 8:
        play(env, 40, seed=int(time.monotonic() * 1000) % 1000)
        assert time.monotonic() < deadline
    seen = tmp_path / "logs" / "pair.gif"
    assert collector.answer(8, lambda _: further_right(seen)) == 8
    answers = collector.receive()
    clear = [one for one in answers if abs(one.first.true_return - one.second.true_return) > STEPS / 4]
    for answer in clear:
        assert answer.value == float(answer.first.true_return > answer.second.true_return)


def test_people_need_something_to_look_at(wrap: Wrap) -> None:
    people = {"synthetic_prefs": False, "background": True}
    with pytest.raises(ConfigError, match="there is no source of clips"):
        wrap(people="notebook", **people)
    with pytest.raises(ConfigError, match='there is no terminal here; in a notebook, pass people="notebook"'):
        wrap(drawn(), people="terminal", **people)


def test_answers_are_given_here_in_notebooks_only(wrap: Wrap) -> None:
    with pytest.raises(ConfigError, match=r"answer\(\) needs a wrapper with"):
        wrap().answer()
