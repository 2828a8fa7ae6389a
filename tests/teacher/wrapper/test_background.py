"""Asking and learning in a thread: it holds nothing up, and what goes wrong there is told."""

import threading
import time
from pathlib import Path

import pytest

from teacher.data.decisions import Decision
from teacher.data.segments import Segment
from teacher.errors import BackgroundError
from teacher.wrapper import trainer
from tests.teacher.wrapper.conftest import Wrap, play

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
