"""Somebody before the program: questions, answers, what becomes of both, and how segments are shown."""

import os
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from teacher.clips.encode import Frame
from teacher.data.decisions import Decision
from teacher.data.ledger import Ledger
from teacher.data.preferences import Preference
from teacher.data.segments import Segment
from teacher.datasets.preference_files import load_preferences
from teacher.errors import BackgroundError, BehaviorError, ConfigError, RenderError
from teacher.queries.kinds import KINDS
from teacher.queries.schedules import ConstantRate, ExponentialSchedule
from teacher.settings.options import KindName
from teacher.wrapper import SiteOptions, trainer
from teacher.wrapper.prompt import PromptCollector, terminal_descriptor
from tests.teacher.conftest import make_segment
from tests.teacher.wrapper.conftest import SMALL, Line, Wrap, WrapVector, play

PATIENCE_SECONDS = 60.0


def pictures(segment: Segment) -> "Future[list[Frame]]":
    """Render segments whose brightness is their return."""
    made: Future[list[Frame]] = Future()
    brightness = int(np.clip(128 + 20 * segment.true_return, 0, 255))
    made.set_result([np.full((8, 8, 3), brightness, np.uint8) for _ in range(len(segment))])
    return made


def brighter(path: Path) -> str:
    with Image.open(path) as picture:
        assert getattr(picture, "n_frames", 1) >= 1
        pixels = np.asarray(picture.convert("RGB"))
    assert pixels.shape == (8, 26, 3)
    return "l" if pixels[0, 0, 0] > pixels[0, -1, 0] else "r"


def pairs(count: int) -> list[tuple[Segment, Segment]]:
    returns = [(3.0, -3.0), (-2.0, 2.0)] * count
    return [
        (make_segment(2 * n, true_return=a), make_segment(2 * n + 1, true_return=b))
        for n, (a, b) in enumerate(returns[:count])
    ]


def test_left_is_not_always_first(ledger: Ledger, tmp_path: Path) -> None:
    collector = PromptCollector(ledger, pictures, tmp_path, fps=10)
    collector.submit(pairs(12), "training", 100)
    assert collector.answer(10, lambda _: brighter(tmp_path / "pair.gif")) == 10
    for preference in collector.receive():
        assert preference.value == float(preference.first.true_return > preference.second.true_return)
    assert ledger.usable() == 10
    assert ledger.open() == 2


def brightness(path: Path) -> list[float]:
    """Read the brightness of each clip in a grid from the middles of its quarters."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("L")).astype(float)
    assert pixels.shape == (26, 26)
    return [pixels[row, column] for row in (3, 22) for column in (3, 22)]


def test_the_best_and_the_worst_of_four_are_typed(ledger: Ledger, tmp_path: Path) -> None:
    collector = PromptCollector(ledger, pictures, tmp_path, fps=10)
    returns = np.random.default_rng(1).permuted(np.tile([-5.0, -2.0, 2.0, 5.0], (8, 1)), axis=1)
    questions = [
        tuple(make_segment(4 * row + at, true_return=value) for at, value in enumerate(values))
        for row, values in enumerate(returns.tolist())
    ]
    collector.submit(questions, "training", 100, "best_worst")
    places = set()

    def typed(prompt: str) -> str:
        assert "[3] [4]" in prompt
        seen = brightness(tmp_path / "pair.gif")
        best, worst = int(np.argmax(seen)), int(np.argmin(seen))
        places.add(best)
        return f" {best + 1} {worst + 1}"

    assert collector.answer(read=typed) == 8
    received = [each for each in collector.receive() if each.value is not None]
    assert len(received) == 40
    for each in received:
        assert each.value == float(each.first.true_return > each.second.true_return)
    assert len(places) > 1


@pytest.mark.parametrize(
    ("kind", "lines", "decisions"),
    [
        ("rating", ["0", "6", "best", "12", "3", "c", ""], ["3", "cant_tell", "cant_tell"]),
        ("best_worst", ["1", "11", "15", "123", "c", ""], ["cant_tell", "cant_tell"]),
        ("graded", ["x", "e", "can't tell"], ["equal", "cant_tell"]),
    ],
)
def test_answers_that_a_kind_lacks_are_asked_again(
    ledger: Ledger, tmp_path: Path,
    kind: KindName, lines: list[str], decisions: list[str]
) -> None:  # fmt: skip
    collector = PromptCollector(ledger, pictures, tmp_path, fps=10)
    size = KINDS[kind].size
    questions = [tuple(make_segment(size * n + at) for at in range(size)) for n in range(len(decisions))]
    collector.submit(questions, "training", 100, kind)
    typed = iter(lines)
    assert collector.answer(read=lambda _: next(typed)) == len(decisions)
    assert [decision for _, decision in ledger.outcomes(0).values()] == decisions


@pytest.mark.parametrize("kind", ["graded", "rating", "best_worst"])
def test_a_scripted_teacher_answers_any_kind(wrap: Wrap, kind: KindName) -> None:
    env = wrap(feedback=kind, n_initial_prefs=24)
    play(env, 620)
    ledger = env.trainer.learning.ledger
    assert ledger.usable() == env.trainer.answers == 24
    assert {len(answered.items) for answered in ledger.answered()} == {KINDS[kind].size}
    assert env.trainer.learning.fits > 0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"feedback": "rating", "judge": lambda _, __: "equal"},
            "judge: functions compare two segments, and can't answer rating",
        ),
        (
            {"synthetic_prefs": False, "background": True, "site": SiteOptions(highest_rating="walks")},
            r"site\.highest_rating: has no effect without --feedback=rating; leave it out; got 'walks'",
        ),
    ],
)
def test_settings_that_do_not_fit_the_kind_are_refused(
    wrap: Wrap, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        wrap(**changes)


def test_a_letter_typed_twice_means_clearly(ledger: Ledger, tmp_path: Path) -> None:
    collector = PromptCollector(ledger, pictures, tmp_path, fps=10)
    collector.submit(pairs(6), "training", 100, "graded")
    times = iter([1, 2] * 3)
    assert collector.answer(read=lambda _: brighter(tmp_path / "pair.gif") * next(times)) == 6
    received = collector.receive()
    for each in received:
        assert ((each.value or 0) > 0.5) == (each.first.true_return > each.second.true_return)
    certainty = [max(each.value or 0, 1 - (each.value or 0)) for each in received]
    assert certainty == pytest.approx([0.7, 0.95] * 3)


def test_unknown_words_are_asked_again(ledger: Ledger, tmp_path: Path) -> None:
    lines = iter(["what?", " Equal ", "", "c"])
    collector = PromptCollector(ledger, pictures, tmp_path, fps=10)
    collector.submit(pairs(3), "training", 100)
    assert collector.answer(read=lambda _: next(lines)) == 3
    assert [preference.value for preference in collector.receive()] == [0.5, None, None]


def test_in_a_terminal_it_asks_beside_the_program_until_the_lines_end(
    ledger: Ledger, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"e\n\ne\n")  # all at once, as from a file
    collector = PromptCollector(ledger, pictures, tmp_path, fps=10, terminal=reading)
    collector.submit(pairs(5), "training", 100)
    received: list[Preference] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(received) < 3:
        received += collector.receive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.close(writing)
    while collector.status.state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    collector.close()
    os.close(reading)
    assert sorted(str(preference.value) for preference in received) == ["0.5", "0.5", "None"]
    assert f"Which clip is better? See {tmp_path / 'pair.gif'}" in capfd.readouterr().out
    assert ledger.open() == 2
    again = PromptCollector(ledger, pictures, tmp_path, fps=10)
    assert again.answer(read=lambda _: "e") == 2


def test_closing_ends_the_wait(ledger: Ledger, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    collector = PromptCollector(ledger, pictures, tmp_path, fps=10, terminal=reading)
    collector.submit(pairs(1), "training", 100)
    collector.close()
    assert not collector._thread.is_alive()  # type: ignore[union-attr]
    assert ledger.open() == 1
    os.close(writing)
    os.close(reading)


class _Picture:
    """Stand in for ``IPython.display.Image``."""

    def __init__(self, data: bytes, format: str) -> None:  # noqa: A002 (its name there)
        self.data, self.format = data, format


@pytest.mark.parametrize("is_notebook", [True, False])
def test_a_clip_is_shown_in_a_notebook_and_told_of_elsewhere(
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    *,
    is_notebook: bool,
) -> None:
    """IPython may be installed where no notebook is; a shell without a kernel shows no pictures."""
    shown: list[_Picture] = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel="one" if is_notebook else None)  # type: ignore[attr-defined]
    display.Image, display.display = _Picture, shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    collector = PromptCollector(ledger, pictures, tmp_path, fps=10)
    collector.submit(pairs(1), "training", 100)
    assert collector.answer(read=lambda _: "l") == 1
    path = tmp_path / "pair.gif"
    assert [one.data for one in shown] == ([path.read_bytes()] if is_notebook else [])
    assert (f"See {path}" in capfd.readouterr().out) != is_notebook


def test_a_notebook_is_no_terminal_although_its_kernel_has_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as lines, os.fdopen(writing, "w"):
        monkeypatch.setattr(sys, "stdin", lines)
        assert terminal_descriptor() == reading
        ipython = ModuleType("IPython")
        ipython.get_ipython = lambda: SimpleNamespace(kernel="one")  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        with pytest.raises(ConfigError, match='in a notebook, pass people="notebook"'):
            terminal_descriptor()


def test_nothing_is_asked_after_the_end_about_clips_that_were_on_their_way(
    ledger: Ledger, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begun = threading.Event()

    def never_done(segment: Segment) -> "Future[list[Frame]]":
        begun.set()
        return Future()

    reading, writing = os.pipe()
    collector = PromptCollector(ledger, never_done, tmp_path, fps=10, terminal=reading)
    collector.submit(pairs(1), "training", 100)
    assert begun.wait(PATIENCE_SECONDS)
    collector.close()
    assert not collector._thread.is_alive()  # type: ignore[union-attr]
    assert "Which clip" not in capfd.readouterr().out
    assert ledger.open() == 1
    os.close(writing)
    os.close(reading)


def test_undrawable_pair_is_dropped(ledger: Ledger, tmp_path: Path) -> None:
    def fails(segment: Segment) -> "Future[list[Frame]]":
        never: Future[list[Frame]] = Future()
        never.set_exception(RenderError("no picture"))
        return never

    collector = PromptCollector(ledger, fails, tmp_path, fps=10)
    collector.submit(pairs(2), "training", 100)
    assert collector.answer(read=lambda _: "e") == 0
    assert collector.status.failed == 2
    assert ledger.asked() == 0


PLAIN = replace(SMALL, features="plain")  # the first fit is over sooner
FEW = "too few new segments"
COLLECT: dict[str, Any] = {"train_reward": False, "n_initial_prefs": 10, "n_prefs": 100}


@pytest.mark.parametrize(
    "settings",
    [
        {**COLLECT, "segment_length": 10},
        {"n_prefs": 50, "n_initial_prefs": 30, "total_timesteps": 300, "reward": PLAIN},
    ],
)
def test_last_step_asks_all(wrap: Wrap, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]) -> None:
    env = wrap(**settings)
    config = env.trainer.config
    assert config.total_timesteps is not None
    assert config.n_prefs is not None
    play(env, config.total_timesteps - 1)
    assert env.trainer.answers < config.n_prefs // 2
    play(env, 1)
    assert env.trainer.answers == config.n_prefs
    assert env.using_reward_from_predictor == config.train_reward
    play(env, 60)
    assert env.trainer.answers == config.n_prefs
    assert caplog.text.count(FEW) == 1
    assert (
        "100 labels will be due by step 600 and need 2 segments each, but there will be only 5" in caplog.text
        or "train_reward" not in settings
    )


def test_nothing_is_warned_of_where_segments_suffice(wrap: Wrap, caplog: pytest.LogCaptureFixture) -> None:
    env = wrap(**{**COLLECT, "n_prefs": 30})
    play(env, 600)
    assert env.trainer.answers == 30
    assert FEW not in caplog.text


def test_a_schedule_with_an_end_is_kept_to_as_well(wrap: Wrap, caplog: pytest.LogCaptureFixture) -> None:
    schedule = ExponentialSchedule(10, 90, 300)
    env = wrap(**{**COLLECT, "n_prefs": None}, total_timesteps=None, schedule=schedule)
    play(env, 300)
    assert env.trainer.answers == 90
    assert FEW in caplog.text


def test_a_schedule_without_an_end_asks_about_new_segments_alone(wrap: Wrap) -> None:
    env = wrap(**{**COLLECT, "n_prefs": None}, total_timesteps=None, schedule=ConstantRate(50, 1e6))
    play(env, 200)
    assert 0 < env.trainer.answers <= 200 // 5 // 2


def test_vector_environments_step_over_the_last_step(wrap_vector: WrapVector) -> None:
    envs = wrap_vector(gym.vector.SyncVectorEnv([Line] * 7), **COLLECT, total_timesteps=300)
    envs.reset(seed=1)
    while envs.trainer.steps < 300:
        envs.step(envs.action_space.sample())
    assert envs.trainer.answers == 100


def test_saved_labels_are_complete(wrap: Wrap) -> None:
    env = wrap(**COLLECT, background=True)
    play(env, 600)
    assert len(load_preferences(env.save_prefs())) == 100


def test_closed_wrapper_is_complete(wrap: Wrap) -> None:
    endless = {"n_initial_training_steps": 10**9, "validation_interval": 10**9}
    env = wrap(n_prefs=60, n_initial_prefs=6, background=True, **endless)
    env.reset(seed=1)
    while env.trainer.answers < 6:
        play(env, 20)
    play(env, 600)
    env.close()
    env = wrap(collect_prefs=False, train_reward=False, n_prefs=60)
    assert env.trainer.answers == 60


def test_saving_does_not_wait_for_ever(
    wrap: Wrap, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trainer, "_LAST_ANSWERS_SECONDS", 0.1)
    endless = {"n_initial_training_steps": 10**9, "validation_interval": 10**9}
    env = wrap(n_prefs=60, n_initial_prefs=6, background=True, **endless)
    play(env, 200)
    while env.trainer.answers < 6:
        time.sleep(0.01)
    play(env, 600)
    assert 6 <= len(load_preferences(env.save_prefs())) < 60
    assert "saving without the last labels" in caplog.text


@pytest.mark.parametrize(
    ("background", "steps", "error"),
    [(True, 600, BackgroundError), (False, 600, BehaviorError), (False, 60, BehaviorError)],
)
def test_a_judge_that_fails_loses_no_answer_and_holds_nobody_up(
    wrap: Wrap, tmp_path: Path, background: bool, steps: int, error: type[Exception]
) -> None:
    """In the thread, in a batch of the run, and in the last one, which asks for all that is missing."""
    told = 0

    def fails_late(first: Segment, second: Segment) -> Decision:
        nonlocal told
        told += 1
        if told > 13:
            raise KeyError("enough")
        return "first"

    env = wrap(**COLLECT, total_timesteps=steps, background=background, judge=fails_late)
    with pytest.raises(error, match="fails_late failed"):
        play(env, 10**6)
    assert len(load_preferences(env.save_prefs())) == 13
    with pytest.raises(BackgroundError, match="fails_late failed") if background else nullcontext():
        env.close()
    env = wrap(log_dir=tmp_path / "logs", collect_prefs=False, train_reward=False)  # the folder is free
    assert env.trainer.answers == 13


def test_unused_labels_are_reported(wrap: Wrap, caplog: pytest.LogCaptureFixture) -> None:
    env = wrap(**COLLECT, max_pref_interface_segs=4)
    play(env, 600)
    assert (
        "of 100 labels are missing at the end: the teacher can't tell apart the two segments of any "
        "remaining pair among the last 4" in caplog.text
    )
    assert env.trainer.answers < 100


PATIENCE = 120.0
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
    deadline = time.monotonic() + PATIENCE
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
