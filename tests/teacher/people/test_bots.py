"""Scripted labelers as a program."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from teacher.bots import Bot, choose
from teacher.embedded_site import SiteHandle
from teacher.segments import Segment


@pytest.fixture
def token_file(tmp_path: Path, site: SiteHandle) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{site.token}\n")
    return path


def run_bots(*options: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "teacher.bots", *map(str, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("left", "right", "choice"),
    [(1.0, 0.5, "left"), (-2.0, -1.0, "right"), (3.0, 3.0, "equal"), (None, 1.0, "cant_tell")],
)
def test_the_larger_true_return_is_chosen(left: float | None, right: float, choice: str) -> None:
    assert choose({"left": {"true_return": left}, "right": {"true_return": right}}) == choice


def test_bots_wait_for_the_experiment_and_end_with_it(
    start_asking: Any,
    pairs: list[tuple[Segment, Segment]],
    site: SiteHandle,
    token_file: Path,
    experiment: Any,
) -> None:
    log = token_file.with_name("answers")
    bots = run_bots(
        *("--site", site.url, "--experiment", experiment.name, "--token-file", token_file),
        *("--count", 2, "--log", log),
    )
    with start_asking() as asking:
        asking.collector.submit(pairs[:6], "training", 100)
        asking.receive(6)
        asking.collector.finish()
    output, _ = bots.communicate(timeout=30)
    assert bots.returncode == 0
    assert [line.split(":")[0] for line in output.splitlines()] == ["bot-1", "bot-2"]
    answers = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(answers) == len({answer["comparison"] for answer in answers}) == 6


def test_a_wrong_token_is_reported(site: SiteHandle, token_file: Path) -> None:
    token_file.write_text("tt_wrong")
    bots = run_bots("--site", site.url, "--experiment", "x", "--token-file", token_file, "--count", 1)
    output, _ = bots.communicate(timeout=30)
    assert bots.returncode == 1
    assert "401" in output


@pytest.fixture
def signed_out(start_asking: Any, pairs: Any) -> Iterator[tuple[Any, Bot]]:
    """A bot that lost its session after the first answers."""
    with start_asking() as asking:
        asking.collector.submit(pairs[:2], "training", 100)
        (bot,) = asking.bots(1)
        asking.receive(2)
        bot._session.cookies.clear()
        yield asking, bot


def test_a_bot_that_was_signed_out_signs_in_again(signed_out: tuple[Any, Bot], pairs: Any) -> None:
    asking, bot = signed_out
    asking.collector.submit(pairs[2:4], "training", 100)
    asking.receive(2)
    assert bot.error is None
