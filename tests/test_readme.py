"""Every command and program that the README shows is run, with fewer steps."""

import re
import runpy
import shlex
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, flatten
from PIL import Image

from teacher.ledger import Ledger
from teacher.teach import main, parse_arguments
from teacher.teachers import Manner

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DATASETS, DEMONSTRATIONS, FROM_PYTHON, TEACHERS = (
    (ROOT / "docs" / f"{name}.md").read_text()
    for name in ("datasets", "demonstrations", "python", "teachers")
)
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line.split("#")[0].strip()
    for language, block in BLOCKS
    if not language
    for line in block.splitlines()
    if re.match(r"(TEACHER_TOKEN=\S+ )?(teach|make|python|\.) ", line)
]
FEW_STEPS = "-t 4096 -i 100 -V".split()


def arguments_of(command: str) -> list[str]:
    words = shlex.split(command)
    return words[words.index("teach") + 1 :]


def test_the_readme_shows_the_commands_that_matter() -> None:
    assert COMMANDS[:2] == ["make demo", "make test"]
    assert {"-p human", "-p rl", "-p synth"} <= set(re.findall(r"-p \w+", "\n".join(COMMANDS)))


@pytest.mark.parametrize("command", [command for command in COMMANDS if "teach -" in command])
def test_every_setting_in_the_readme_is_accepted(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config, _, _ = parse_arguments(arguments_of(command))
    assert config.env_id == "ShortHopper-v1"


def test_a_run_learns_from_synthetic_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = [command for command in COMMANDS if "-p synth" in command and "--teacher" not in command]
    assert main([*arguments_of(command), *FEW_STEPS]) == 0


def test_a_run_on_the_true_reward_is_an_expert_to_begin_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People's answers are made from the true reward here."""
    monkeypatch.chdir(tmp_path)
    (recorder,) = [command for command in COMMANDS if command.startswith("teach record ")]
    warm = [command for command in COMMANDS if re.search("--(demonstrations|policy) ", command)]
    assert len(warm) == 2
    (sanity,) = [command for command in COMMANDS if "-p rl" in command]
    assert main([*arguments_of(sanity), *FEW_STEPS]) == 0
    assert main([*arguments_of(recorder), "--episodes", "2"]) == 0
    for command in warm:
        assert main([*arguments_of(command), *FEW_STEPS, *"-p synth -l 20".split()]) == 0


def run_programs(page: str, folder: Path) -> str:
    """Run the programs of a page one after the other in one process; returns what they print."""
    programs = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    command = [sys.executable, "-W", "error", "-c", "\n".join(programs)]
    ended = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_programs_about_demonstrations_run(tmp_path: Path) -> None:
    run_programs(DEMONSTRATIONS, tmp_path)
    assert (tmp_path / "returns.png").exists()


def test_the_programs_about_python_run_and_learn(tmp_path: Path) -> None:
    *_, last = run_programs(FROM_PYTHON, tmp_path).splitlines()
    accuracy, correlation = map(float, last.split())
    assert accuracy > 0.7
    assert correlation > 0.8
    assert (tmp_path / "runs" / "teacher-ShortReacher-v1" / "look" / "checkpoint.npz").exists()


def test_the_program_about_datasets_learns(tmp_path: Path) -> None:
    accuracy, loss, calibration_error = map(float, run_programs(DATASETS, tmp_path).split())
    assert accuracy > 0.8
    assert loss < 0.55
    assert calibration_error < 0.3


def test_nested_observations_of_minari_are_flattened_as_their_page_says(tmp_path: Path) -> None:
    """Of what its datasets are to the program: spaces, and episodes with a dict of arrays each."""
    (program,) = [
        one
        for one in re.findall(r"^```python\n(.*?)^```", DATASETS, re.DOTALL | re.MULTILINE)
        if "def flattened" in one
    ]
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
    assert np.array_equal(flat.states, [np.asarray(flatten(space, state)) for state in states])
    assert flat.terminated
    assert made["flat_spaces"](dataset)[0].shape == (7,)


def test_every_teacher_on_its_page_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^teach .*", TEACHERS, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert parse_arguments(shlex.split(command)[1:])[0].teacher.partition(":")[2]
    (own,) = [command for command in commands if "my_wishes" in command]
    (wishes,) = re.findall(r"^# my_wishes.py\n(.*?)^```", TEACHERS, re.DOTALL | re.MULTILINE)
    (tmp_path / "my_wishes.py").write_text(wishes)
    assert main([*shlex.split(own)[1:], *FEW_STEPS, "-l", "20"]) == 0


def test_what_a_run_learned_is_filmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main("-p rl -e ShortHopper-v1 -n flip -t 2048 -V".split()) == 0
    (command,) = re.findall(r"^python (scripts/film.py .*)", TEACHERS, re.MULTILINE)
    program, *options = shlex.split(command)
    line = [sys.executable, str(ROOT / program), *options, "--episodes", "2", "--steps", "30"]
    said = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    assert "teacher.behaviours:backflip" in said
    assert "flips backward an episode" in said
    with Image.open("flip.gif") as film:
        assert getattr(film, "n_frames", 1) == 10


def test_every_part_of_a_teacher_is_on_its_page() -> None:
    listed = {row.partition(":")[0] for row in re.findall(r"^\| `([^`]+)` \|", TEACHERS, re.MULTILINE)}
    assert listed == {"oracle", "module", *(field.name for field in fields(Manner))} - {"function"}


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make ")])
def test_every_make_target_in_the_readme_exists(command: str) -> None:
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


def test_the_python_program_runs(tmp_path: Path) -> None:
    (program,) = [block for language, block in BLOCKS if language == "python"]
    shorter = program.replace("num_timesteps=20_000", "num_timesteps=4096, pretrain_iters=100")
    assert shorter != program
    subprocess.run([sys.executable, "-c", shorter], cwd=tmp_path, check=True, capture_output=True)


def test_nothing_is_left_to_fill_in() -> None:
    assert "<!--" not in README


def test_the_pictures_exist() -> None:
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (ROOT / path).stat().st_size > 1000, path


@pytest.mark.slow
def test_the_demo_with_bots_reaches_joint_training_and_label_40_unaided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTS", "3")
    with (tmp_path / "demo.log").open("w") as log:
        demo = subprocess.Popen(
            [sys.executable, ROOT / "scripts" / "demo.py"], cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 280
        answered = 0
        while answered < 40:
            assert demo.poll() is None, (tmp_path / "demo.log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "demo.log").read_text()
            time.sleep(1)
            for path in tmp_path.glob("runs/*/*/ledger.sqlite3"):
                ledger = Ledger(path, read_only=True)
                answered = ledger.usable()
                assert ledger.asked("pretraining") <= 20
                ledger.close()
    finally:
        demo.terminate()
        status = demo.wait(60)
    said = (tmp_path / "demo.log").read_text()
    assert status == 130, said
    assert "steps/s" in said
    assert said.count("Label here: http://127.0.0.1:") == 1
    assert "--resume runs/ShortHopper-v1/demo-" in said
