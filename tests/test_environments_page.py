"""What the page about environments shows can be done."""

import re
import shlex
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from teacher.teach import main, parse_arguments

PAGE = (Path(__file__).parents[1] / "docs" / "environments.md").read_text()
COMMANDS = re.findall(r"^teach (.*)", PAGE, re.MULTILINE)
WALK, TOGETHER = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_there_are_commands_of_each_kind() -> None:
    text = "\n".join(COMMANDS)
    for shown in (
        "my_walk",
        "MovingDot",
        "flatten",
        "minigrid:",
        "Collect",
        "Pong",
        "Enduro",
        "--capture_frames",
    ):
        assert shown in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_accepted(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parse_arguments(shlex.split(command))


def test_the_environment_of_ones_own_is_taught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_walk.py").write_text(WALK)
    (command,) = [command for command in COMMANDS if "my_walk" in command]
    assert main([*shlex.split(command), *"-t 2048 -i 20".split()]) == 0
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
