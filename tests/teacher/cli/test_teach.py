"""The command line: what it takes, what it refuses, and how it ends."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from agents.distributed import ALONE
from agents.errors import RankLostError
from teacher import interrupts
from teacher.cli.train import _resume_line
from teacher.data.checkpoint import load_state
from teacher.data.ledger import Ledger
from teacher.labeling import human
from teacher.queries.kinds import preferences_in
from teacher.settings.config import TeachConfig
from teacher.teach import main, parse_arguments
from teacher.training import loop
from teacher.training.run import Run
from tests.waiting import completed

TEACH = [sys.executable, "-m", "teacher.teach"]


def test_rl_teachers_flags_keep_their_meaning(here: Path) -> None:
    line = "-p synth -e ShortHopper-v1 -n x -s 3 -w 2 -l 1400 -L 100 -t 5e6 -a ppo -i 50 -V"
    settings = parse_arguments(line.split())
    assert not settings.resumed
    assert settings.config == TeachConfig(
        env_id="ShortHopper-v1",
        predictor="synth",
        name="x",
        seed=3,
        workers=2,
        n_labels=1400,
        pretrain_labels=100,
        num_timesteps=5_000_000,
        agent="ppo",
        pretrain_iters=50,
        no_videos=True,
    )


def test_settings_of_a_part_are_given_by_its_name(here: Path) -> None:
    line = "-p synth -e ShortHopper-v1 -n x -l 40 --reward.members 5 --preset paper --segment_seconds 2"
    config = parse_arguments(line.split()).config
    assert (config.reward.members, config.segment_seconds) == (5, 2.0)


@pytest.mark.parametrize("number", ["-1e6", "-2.5E-3", "-.5", "-3.", "-7"])
def test_negative_numbers(number: str, here: Path) -> None:
    line = f"-p synth -e ShortHopper-v1 -n x -l 40 --reward.uncertainty_bonus {number} -s 2"
    config = parse_arguments(line.split()).config
    assert (config.reward.uncertainty_bonus, config.seed) == (float(number), 2)


@pytest.mark.parametrize(
    "line",
    [
        "-p rl -e ShortHopper-v1",
        "-p rl -n x",
        "-e ShortHopper-v1 -n x",
        "-p oracle -e ShortHopper-v1 -n x",
        "-p rl -e ShortHopper-v1 -n a/b",
        "-p rl -e ShortHopper-v1 -n x -t many",
        "-p rl -e ShortHopper-v1 -n x -t 1.5",
        "-p rl -e ShortHopper-v1 -n x -t nan",
        "-p rl -e ShortHopper-v1 -n x -t inf",
        "-p rl -e ShortHopper-v1 -n x --unknown 1",
        "-p synth -e ShortHopper-v1 -n x -l 40 --reward.members many",
        "-p synth -e ShortHopper-v1 -n x -l 40 --reward 3",
        "-p synth -e ShortHopper-v1 -n x -l 40 --preset best",
        "-p rl -e ShortHoper-v1 -n x",
        "-p synth -e ShortHopper-v1 -n x -l 40 --segment_steps 400",
        "-p synth -e CartPole-v1 -n x -l 40",
        "-p rl -e ShortHopper-v1 -n x --device cuda:99",
        "-p rl -e ShortHopper-v1 -n x --device mps",
        "-p rl -e no_such_module:Env-v0 -n x",
        "-p synth -e ShortHopper-v1 -n x -l 40 --teacher no_such_module:flip",
        "-p synth -e ShortHopper-v1 -n x -l 40 --teacher teacher.behaviors:sideflip",
        "-p human -e ShortHopper-v1 -n x --site_url http://127.0.0.1:9 --storage s3://clips",
        "-p human -e ShortHopper-v1 -n x --site_url http://127.0.0.1:9",
        "--resume no/such/run",
        "--resume run -s 3",
    ],
)
def test_a_bad_line_is_refused_in_one_line_before_anything_starts(
    line: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TEACHER_TOKEN", raising=False)
    try:
        status = main(line.split())
    except SystemExit as exit_:
        status = int(exit_.code or 0)
    said = capsys.readouterr().err
    assert status == 2
    assert said.startswith("teach: ")
    assert said.count("\n") == 1
    assert len(said) < 700
    assert not list(here.iterdir())


def test_an_existing_run_is_neither_overwritten_nor_guessed_to_be_resumed(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = here / "runs" / "ShortHopper-v1" / "x"
    run_dir.mkdir(parents=True)
    (run_dir / "config.json").write_text("{}")
    assert main("-p rl -e ShortHopper-v1 -n x".split()) == 2
    said = capsys.readouterr().err
    assert (
        "runs/ShortHopper-v1/x already exists; continue it with teach --resume runs/ShortHopper-v1/x, or"
        in said
    )
    assert said.endswith("corrected: teach -p rl -e ShortHopper-v1 -n x-2\n")
    assert (run_dir / "config.json").read_text() == "{}"


def test_a_run_that_cannot_begin_leaves_the_folder_as_it_was(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEACHER_TOKEN", "tt_wrong")
    monkeypatch.setattr(human, "_START_DELAYS", (0.01,))
    (here / "a-file").touch()
    notes = here / "runs" / "ShortHopper-v1" / "x" / "notes.txt"
    unreachable = "--site_url http://127.0.0.1:9 --storage s3://clips", "no response from the labeling site"
    no_folder = "--state_dir a-file", "--state_dir"
    for line, said in (unreachable, no_folder):
        assert main(["-p", "human", "-e", "ShortHopper-v1", "-n", "x", *line.split()]) != 0
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
        assert not (here / "runs").exists()
    notes.parent.mkdir(parents=True)
    notes.write_text("somebody's own")
    assert main(["-p", "human", "-e", "ShortHopper-v1", "-n", "x", *no_folder[0].split()]) != 0
    assert notes.read_text() == "somebody's own"


STANDING = "-e standing_for_tests:Standing-v0 -n x -V -t 3000 --segment_steps 10 -i 5 --reward.hidden 8"


ENVIRONMENT = """
import time
from pathlib import Path

import gymnasium as gym
import numpy as np

class {name}(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = {action_space}
    never_terminates = True  # so that it is not tried for long before training
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {{}}

    def step(self, action):
        self.steps += 1
{step}

gym.register("{name}-v0", {name}, max_episode_steps=50)
"""


@contextlib.contextmanager
def importable(folder: Path, name: str, action_space: str, step: str) -> Iterator[str]:
    """An environment in a module of a folder, by its id."""
    module = f"{name.lower()}_for_tests"
    code = ENVIRONMENT.format(name=name, action_space=action_space, step=step.strip("\n"))
    (folder / f"{module}.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield f"{module}:{name}-v0"
    sys.modules.pop(module, None)
    gym.registry.pop(f"{name}-v0", None)


@pytest.fixture
def standing_environment(here: Path) -> Iterator[str]:
    """An environment that stands still in the agent's second rollout, until there is a file named ``go``."""
    step = """
        while self.steps > 400 and not Path("go").exists():
            Path("stands").touch()
            time.sleep(0.01)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), float(action[0]), False, False, {}
"""
    with importable(here, "Standing", "gym.spaces.Box(-1, 1, (1,), np.float32)", step) as env_id:
        yield env_id


def wait_for_standstill(trainer: "subprocess.Popen[Any]") -> None:
    """Wait until training has made its first iteration, and cannot make its second."""
    deadline = time.monotonic() + 240
    while not Path("stands").exists():
        assert trainer.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def finish(run_dir: Path) -> Ledger:
    """Go on with a run to its end; its labels."""
    Path("go").touch()
    assert main(["--resume", str(run_dir)]) == 0
    assert load_state(run_dir / "checkpoint.npz")["agent"]["total_steps"] >= 3000
    return Ledger(run_dir / "ledger.sqlite3", read_only=True)


def test_printed_command_finds_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "teach").touch(mode=0o755)
    config = TeachConfig(env_id="Pendulum-v1", predictor="rl", name="x", runs_dir="runs")
    for path, beside, program in (
        (str(tmp_path), "/elsewhere/python3", "teach"),
        ("", str(tmp_path / "python3"), str(tmp_path / "teach")),
        ("", "/elsewhere/python3", "/elsewhere/python3 -m teacher.teach"),
    ):
        monkeypatch.setenv("PATH", path)
        monkeypatch.setattr("sys.executable", beside)
        assert _resume_line(config, ALONE) == f"{program} --resume runs/Pendulum-v1/x"


@pytest.mark.usefixtures("standing_environment")
def test_ctrl_c_saves_a_held_run_and_prints_how_to_resume(capsys: pytest.CaptureFixture[str]) -> None:
    line = [*TEACH, *f"{STANDING} -p synth -l 20 -L 10".split()]
    trainer = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_for_standstill(trainer)
        (run_dir,) = Path("runs").glob("*/x")
        assert main(["--resume", str(run_dir)]) == 2
        assert "in use by another teach" in capsys.readouterr().err
        os.killpg(trainer.pid, signal.SIGINT)
        said, _ = trainer.communicate(timeout=240)
    finally:
        trainer.kill()
    assert trainer.returncode == 130
    assert f"--resume {run_dir}" in said
    assert 0 < load_state(run_dir / "checkpoint.npz")["agent"]["total_steps"] < 3000
    with contextlib.closing(finish(run_dir)) as ledger:
        assert ledger.asked() == 20


@pytest.mark.usefixtures("standing_environment")
def test_a_killed_run_goes_on_and_asks_no_label_twice() -> None:
    line = [*TEACH, *f"{STANDING} -p synth -l 30 -L 10".split()]
    trainer = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    try:
        wait_for_standstill(trainer)
    finally:
        trainer.kill()
        trainer.wait()
    (run_dir,) = Path("runs").glob("*/x")
    with contextlib.closing(Ledger(run_dir / "ledger.sqlite3", read_only=True)) as ledger:
        before = {preference.uuid: preference.value for preference in preferences_in(ledger)}
    assert 10 < len(before) < 30
    with contextlib.closing(finish(run_dir)) as ledger:
        after = {preference.uuid: preference.value for preference in preferences_in(ledger)}
        assert ledger.asked() == ledger.usable() == 30
    assert before.items() <= after.items()


@pytest.mark.usefixtures("short_rollouts")
def test_its_end_says_of_how_many_labels_wanted_there_was_something_to_ask_about(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "-p synth -e ShortReacher-v1 -n x -l 400 -L 5 -t 300 --segment_steps 20 -i 5 -V --reward.hidden 8"
    assert main(line.split()) == 0
    with contextlib.closing(
        Ledger(here / "runs" / "ShortReacher-v1" / "x" / "ledger.sqlite3", read_only=True)
    ) as ledger:
        assert 5 < ledger.usable() < 400
        assert f" steps with {ledger.usable()} of 400 labels." in capsys.readouterr().out


@pytest.mark.usefixtures("short_rollouts")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, *interrupts.ENDING])
def test_an_interrupt_that_python_drops_ends_training_with_the_round(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(number)

    def iterate(run: Run, **options: Any) -> Any:
        rounds.append(run.agent.total_steps)
        Finalized()
        return made(run, **options)

    rounds, made = list[int](), loop.iterate
    monkeypatch.setattr(loop, "iterate", iterate)
    assert main("-p rl -e ShortReacher-v1 -n x -t 3000 -V".split()) == 130
    assert len(rounds) == 1
    assert "Saved at step" in capsys.readouterr().out
    interrupts.check()  # what begins later in this process is not interrupted


@pytest.mark.usefixtures("short_rollouts")
@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_during_the_save_that_another_asked_for_does_not_spoil_it(
    first: signal.Signals, monkeypatch: pytest.MonkeyPatch, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shells and the kernel send several when a terminal is closed, and SLURM when the time is up."""

    def save_under_fire(run: Run, **options: Any) -> None:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
        save(run, **options)

    def iterate(run: Run, **options: Any) -> Any:
        monkeypatch.setattr(Run, "save", save_under_fire)
        signal.raise_signal(first)

    save = Run.save
    monkeypatch.setattr(loop, "iterate", iterate)
    assert main("-p rl -e ShortReacher-v1 -n x -t 3000 -V".split()) == 130
    assert "Saved at step" in capsys.readouterr().out
    assert (here / "runs" / "ShortReacher-v1" / "x" / "checkpoint.npz").exists()


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """Under nohup, for example, SIGHUP is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.listening():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sigterm_while_a_failure_is_saved_does_not_hide_the_failure(
    monkeypatch: pytest.MonkeyPatch, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torchrun sends it as soon as one process has died; the others may know why by then."""

    def fail(_: Run) -> bool:
        raise RankLostError("Another process of this run has ended (closed); restart the run.")

    def save_and_be_ended(run: Run) -> None:
        save(run)
        os.kill(os.getpid(), signal.SIGTERM)

    save = Run.save
    monkeypatch.setattr("teacher.cli.train.train", fail)
    monkeypatch.setattr(Run, "save", save_and_be_ended)

    status = main("-p rl -e ShortHopper-v1 -n x".split())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    assert status == 1
    said = capsys.readouterr()
    assert "process of this run has ended (closed)" in said.err
    assert "interrupted" not in said.err
    assert "To resume once the error is fixed" in said.out


@pytest.fixture
def breaking_environment(tmp_path: Path) -> Iterator[str]:
    """The id of an environment that breaks in the agent's second rollout."""
    step = """
        if self.steps > 400:
            raise RuntimeError("the robot fell over")
        return np.zeros(2, np.float32), 1.0, False, False, {}
"""
    with importable(tmp_path, "Breaking", "gym.spaces.Discrete(2)", step) as env_id:
        yield env_id


@pytest.mark.parametrize("teacher", ["rl", "synth -l 8 -i 5 --segment_steps 10"])
def test_a_run_whose_environment_breaks_is_saved_and_says_how_to_go_on(
    teacher: str, breaking_environment: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"-p {teacher} -e {breaking_environment} -n x -t 1e5 -V".split()) == 2
    said = capsys.readouterr()
    assert (
        said.err
        == "teach: Breaking-v0 failed in step: RuntimeError: the robot fell over; fix the environment\n"
    )
    (run_dir,) = (here / "runs").glob("*/x")
    assert re.search(rf"once the error is fixed: .* --resume {run_dir.relative_to(here)}\n", said.out)
    assert load_state(run_dir / "checkpoint.npz")["agent"]["total_steps"] > 0


def test_a_run_that_ends_by_a_defect_is_saved_too(
    monkeypatch: pytest.MonkeyPatch, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Run) -> bool:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr("teacher.cli.train.train", fail)
    with pytest.raises(RuntimeError, match="nobody thought of this"):
        main("-p rl -e Pendulum-v1 -n x -V".split())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert "To resume once the error is fixed" in capsys.readouterr().out
    assert (here / "runs" / "Pendulum-v1" / "x" / "checkpoint.npz").exists()


def test_undecided_start_cannot_be_resumed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("-p synth -e ShortReacher-v1 -n x -l 2000 --segment_steps 2 --teacher skip:1000".split()) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert "skip:1000 gave no label for 1000 questions in a row; lower X in the teacher's skip:X" in line
    assert "nothing is learned from them; lower X in the teacher's skip:X; X must be negative if" in said.out
    assert "a run can't change its teacher, so start a new run with a different -n and --teacher" in line
    assert "resume" not in said.out


def test_ctrl_c_while_libraries_are_being_loaded_is_one_line(tmp_path: Path) -> None:
    loading = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
    (tmp_path / "torch.py").write_text(loading)
    line = [sys.executable, "-m", "teacher", "-p", "rl", "-e", "Pendulum-v1", "-n", "x"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = completed(line, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, timeout=60)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "teach: interrupted before training started\n"


def test_printing_to_a_closed_terminal_raises_nothing() -> None:
    code = (
        "import os, time\nfrom teacher import interrupts\n"
        "try:\n    with interrupts.listening():\n        print('ready', flush=True)\n        time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('saved', flush=True)\n    os._exit(7)"
    )
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-c", code])  # noqa: S606 (no shell needed)
    assert os.read(terminal, 5) == b"ready"
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
