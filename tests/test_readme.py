"""Test what the README and pages on teaching show works: commands, in order in one folder, and programs.

Each is given in a short form; ``tests/test_docs.py`` reads the commands as they stand.
"""

import re
import runpy
import shlex
import subprocess
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, flatten
from PIL import Image

from teacher.data.demonstrations import load_demonstrations
from teacher.settings.config_files import load_config
from teacher.settings.teachers import ErrorModel
from teacher.settings.unused import UNUSED
from teacher.teach import main
from teacher.training import warmstart
from tests.conftest import MakeOnce
from tests.documents import README, ROOT, blocks_of, commands_of, page_of, run_programs

COMMANDS = list(commands_of(README))
OF_TEACHERS = list(commands_of(page_of("teachers")))
ONE_ROLLOUT = "-t 1 -i 20 -l 20 -V".split()


def shortened(command: str) -> list[str]:
    """Arguments of ``teach``, to be done sooner; answers of people are made from the true reward."""
    arguments = shlex.split(command)[1:]
    if arguments[0] == "record":
        return [*arguments, "--episodes", "2"]
    if "human" not in arguments:
        return [*arguments, *ONE_ROLLOUT] if "rl" not in arguments else [*arguments, "-t", "1", "-V"]
    for option in UNUSED["synth"]:
        if f"--{option}" in arguments:
            at = arguments.index(f"--{option}")
            del arguments[at : at + 2]
    return [*arguments, *ONE_ROLLOUT, "-p", "synth"]


@pytest.fixture(scope="module")
def folder(make_once: MakeOnce) -> Path:
    """Run the README's commands, except the one that needs another machine."""
    return make_once("reader", give_commands)


def give_commands(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(warmstart, "CLONING_EPOCHS", 10)
        for command in COMMANDS:
            if command.startswith("teach ") and "--site_url" not in command:
                assert main(shortened(command)) == 0, command


def test_the_readme_shows_the_commands_that_matter() -> None:
    assert COMMANDS[:2] == ["make demo", "make test"]
    assert {"-p human", "-p rl", "-p synth"} <= set(re.findall(r"-p \w+", "\n".join(COMMANDS)))


def test_every_run_of_the_readme_is_saved(folder: Path) -> None:
    names = {path.parent.name for path in folder.glob("runs/ShortHopper-v1/*/checkpoint.npz")}
    assert names == {"backflip", "sanity", "synth", "clumsy", "flip", "gait", "gait2"}


def test_a_run_on_the_true_reward_is_an_expert_to_begin_from(folder: Path) -> None:
    assert len(load_demonstrations(folder / "expert.npz").episode_returns) == 2
    runs = folder / "runs" / "ShortHopper-v1"
    gait, gait2 = (load_config(runs / name)[0] for name in ("gait", "gait2"))
    assert (gait.demonstrations, gait2.policy) == (str(folder / "expert.npz"), str(runs / "sanity"))


def test_learned_policy_is_filmed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command of the page on teachers, of the run that it shares with the README."""
    (command,) = [command for command in OF_TEACHERS if "scripts/film.py" in command]
    _, program, run_dir, *options = shlex.split(command)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "sys.argv", [program, str(folder / run_dir), *options, "--episodes", "2", "--steps", "30"]
    )
    runpy.run_path(str(ROOT / program), run_name="__main__")
    said = capsys.readouterr().out
    assert "teacher.behaviors:backflip" in said
    assert "backflips per episode" in said
    with Image.open("flip.gif") as film:
        assert getattr(film, "n_frames", 1) == 10


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make ")])
def test_every_make_target_in_the_readme_starts_its_program(command: str) -> None:
    result = subprocess.run(
        [*shlex.split(command), "--dry-run", "--always-make"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    started = {"demo": "scripts/demo.py", "test": "pytest", "stack": "-m stack"}
    assert started[command.split()[1]] in result.stdout


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_nothing_is_left_to_fill_in() -> None:
    assert "<!--" not in README.read_text()


def test_the_pictures_exist() -> None:
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README.read_text()):
        assert (ROOT / path).stat().st_size > 1000, path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_python_program_runs(here: Path) -> None:
    shorter = {"n_labels=40": "n_labels=20", "num_timesteps=20_000": "num_timesteps=1, pretrain_iters=20"}
    run_programs(README, here, shorter)


def test_the_programs_about_demonstrations_run(here: Path) -> None:
    run_programs(page_of("demonstrations"), here, {"n_epochs=20": "n_epochs=2"})
    assert (here / "returns.png").exists()


def test_the_programs_about_python_run_and_learn(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With fewer than 40 answers: with more, a predictor tries two kinds of features first."""
    shorter = {
        "n_labels=60": "n_labels=20",
        "num_timesteps=6_144": "num_timesteps=1",
        "range(120)": "range(20)",
        "n_labels=200": "n_labels=30",
        "select_pairs(pool, 40,": "select_pairs(pool, 39,",
    }
    run_programs(page_of("python"), here, shorter)
    *_, last = capsys.readouterr().out.splitlines()
    accuracy, correlation = map(float, last.split())
    assert accuracy > 0.7
    assert correlation > 0.8
    for name in ("look", "own"):
        assert (here / "runs" / "teacher-ShortReacher-v1" / name / "checkpoint.npz").exists()


def test_the_program_about_datasets_learns(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_programs(page_of("datasets"), here, {"oracle, 60": "oracle, 39"})
    accuracy, loss, calibration_error = map(float, capsys.readouterr().out.split())
    assert accuracy > 0.8
    assert loss < 0.55
    assert calibration_error < 0.3


def test_nested_observations_of_minari_are_flattened_as_their_page_says(tmp_path: Path) -> None:
    """Stand in for Minari: spaces, and episodes with a dict of arrays each."""
    (program,) = [one for one in blocks_of(page_of("datasets"), "python") if "def flattened" in one]
    (tmp_path / "flat.py").write_text(program)
    made = runpy.run_path(str(tmp_path / "flat.py"))
    here, goal = Box(-1, 1, (2, 2)), Box(-1, 1, (3,))
    space = Dict({"here": here, "goal": goal})
    states = [space.sample() for _ in range(5)]
    episode = SimpleNamespace(
        observations={name: np.stack([state[name] for state in states]) for name in ("here", "goal")},
        actions=np.zeros((4, 1)),
        rewards=np.arange(4.0),
        terminations=np.array([False, False, False, True]),
    )
    dataset = SimpleNamespace(
        observation_space=space, action_space=Box(-1, 1, (1,)), iterate_episodes=lambda: iter([episode])
    )
    (flat,) = made["flattened"](dataset)
    assert np.array_equal(flat.all_observations, [np.asarray(flatten(space, state)) for state in states])
    assert flat.terminated
    assert made["flat_spaces"](dataset)[0].shape == (7,)


def test_a_teacher_of_ones_own_is_accepted(here: Path) -> None:
    (command,) = [command for command in OF_TEACHERS if "my_wishes" in command]
    (wishes,) = [
        block for block in blocks_of(page_of("teachers"), "") if block.startswith("# my_wishes.py\n")
    ]
    (here / "my_wishes.py").write_text(wishes)
    assert main(shortened(command)) == 0


def test_every_part_of_a_teacher_is_on_its_page() -> None:
    text = page_of("teachers").read_text()
    listed = {row.partition(":")[0] for row in re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)}
    assert listed == {"oracle", "module", *(field.name for field in fields(ErrorModel))} - {"function"}
