"""Test what the page about environments shows works; tests/test_docs.py looks at its commands and links."""

import shlex
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from teacher.teach import main
from tests.documents import blocks_of, commands_of, page_of

PAGE = page_of("environments")
WALK, TOGETHER = blocks_of(PAGE, "python")


def test_the_environment_of_ones_own_is_taught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_walk.py").write_text(WALK)
    (command,) = [command for command in commands_of(PAGE) if "my_walk" in command]
    assert main([*shlex.split(command)[1:], *"-t 2048 -i 20".split()]) == 0
    assert list(tmp_path.glob("runs/*/walk/videos/*.mp4")), "it was drawn from a replay"


class ListGame(gym.Env[Any, Any]):
    def step(self, action: Any) -> Any:
        assert isinstance(action, list)
        return (0, 0), [1.0, 2.0], [True, False], [True, True], {}


def test_a_game_of_lists_becomes_one_of_numbers() -> None:
    found: dict[str, Any] = {}
    exec(TOGETHER, found)  # noqa: S102 (of this project's own page)
    _, reward, terminated, truncated, _ = found["Together"](ListGame()).step(np.array([1, 2]))
    assert (reward, terminated, truncated) == (3.0, False, True)
