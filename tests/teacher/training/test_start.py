"""The first command on an environment: what is fitted to it, and what is refused, all at once."""

import io
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

from teacher.envs.tasks import describe_task
from teacher.errors import EnvironmentUnsuitableError, TeacherError, join_errors
from teacher.settings.checks import named_values
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import load_config
from teacher.settings.corrections import command_of
from teacher.settings.options import RewardConfig
from teacher.teach import main, parse_arguments, read_arguments
from teacher.training.parts import RunPlan
from teacher.training.start import check
from tests.environments import Stub, registered


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def checked(line: str) -> tuple[RunPlan, str]:
    """Return what a command line comes to, and what is printed before it begins."""
    said = io.StringIO()
    settings, refused = read_arguments(shlex.split(line))
    plan = check(settings, Console(file=said, width=300), refused)
    return plan, said.getvalue()


def refused(line: str) -> TeacherError:
    with pytest.raises(TeacherError) as error:
        checked(line)
    assert "\n" not in str(error.value)
    return error.value


FIRST = "-p synth -n x -l 20 -L 10 -t 4e3"


@pytest.mark.parametrize(
    ("env_id", "settings", "steps"),
    [
        ("CartPole-v1", "--allow_variable_horizon", None),
        ("Hopper-v5", "--allow_variable_horizon", None),
        ("Reacher-v5", "", 25),
        ("Reacher-v5", "--max_episode_steps 400", 75),
        ("teacher/Pendulum-v1", "", 15),
        ("CartPole-v1", "--fixed_horizon restart", 75),
    ],
)
def test_default_segment_fits_into_episodes(env_id: str, settings: str, steps: int | None) -> None:
    plan, said = checked(f"{FIRST} -e {env_id} {settings}")
    config, task, length = plan.config, plan.task, plan.segment_length
    assert length == (steps or length)
    shortened = length < int(1.5 * task.fps)
    assert (f"Segments of {length} steps, half the median length of random" in said) == shortened
    assert shortened == (config.segment_steps is not None)
    if steps is None:
        assert 3 <= length <= 15


def test_a_fitted_length_is_kept_with_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    line = "-p synth -e CartPole-v1 -n x -l 8 -t 300 -i 5 -V --reward.hidden 8 --allow_variable_horizon"
    assert main(shlex.split(line)) == 0
    said = capsys.readouterr().out
    steps = load_config(Path("runs/CartPole-v1/x"))[0].segment_steps
    assert steps is not None
    assert f"Segments of {steps} steps, half the median" in said
    assert f"Training CartPole-v1 for 300 steps in segments of {steps} steps;" in said
    assert main(["--resume", "runs/CartPole-v1/x"]) == 0


@pytest.mark.parametrize("given", ["--segment_steps 75", "--segment_seconds 1.5"])
def test_a_given_segment_that_cannot_work_is_refused_with_a_command_that_works(given: str) -> None:
    line = f"{FIRST} -e CartPole-v1 {given} --allow_variable_horizon"
    error = refused(line)
    steps = error.remedy["segment_steps"]
    rest = f"random episodes (median length: {steps} steps): pass --segment_steps {steps} or less"
    assert rest in str(error)
    assert "--segment_seconds" not in corrected(error)
    assert checked(corrected(error))[0].config.segment_steps == steps


def test_a_segment_longer_than_the_horizon_is_refused() -> None:
    error = refused(f"{FIRST} -e teacher/Pendulum-v1 --segment_steps 26")
    assert "pass --segment_steps 25 or less" in str(error)


def corrected(error: TeacherError) -> str:
    """The command at the end of a refusal, without its first word."""
    command = re.split(r"; corrected(?:, with [^:]* left out)?: ", str(error))[-1]
    assert command.startswith("teach ")
    return command.removeprefix("teach ")


@pytest.mark.parametrize(
    ("env_id", "found", "settings"),
    [
        ("CartPole-v1", [], ["--fixed_horizon absorb"]),
        (
            "Walker2d-v5",
            ["teacher/Walker-v1 never ends early", "--env_kwargs terminate_when_unhealthy=false prevents it"],
            ["--fixed_horizon absorb"],
        ),
        ("InvertedPendulum-v5", ["teacher/Pendulum-v1 never ends early"], ["--fixed_horizon absorb"]),
        ("FrozenLake-v1", [], ["--fixed_horizon absorb"]),
        (
            "Blackjack-v1",
            ["no step limit per episode"],
            ["--max_episode_steps 100", "--fixed_horizon restart"],
        ),
        (
            "minigrid:MiniGrid-Empty-5x5-v0",
            [],
            [
                "--max_episode_steps 100",
                "--obs_transform teacher.envs.minigrid:cells",
                "--fixed_horizon absorb",
            ],
        ),
    ],
)
def test_all_problems_come_with_a_working_command(env_id: str, found: list[str], settings: list[str]) -> None:
    error = refused(f"{FIRST} -e {env_id}")
    for reason in [*found, "random episodes", "the length of an episode leaks the reward"]:
        assert reason in str(error)
    assert "--allow_variable_horizon accepts it" in str(error)
    command = corrected(error)
    assert error.command == f"teach {command}"
    assert command.startswith(f"-p synth -e {env_id} -n x -l 20 -L 10 -t 4e3")
    for setting in settings:
        assert setting in command
    plan, _ = checked(command)
    assert plan.segment_length <= plan.task.horizon


def test_settings_that_follow_from_the_environment_are_not_refused() -> None:
    grid = "-p rl -n x -e minigrid:MiniGrid-MultiRoom-N6-v0"
    cells = "teacher.envs.minigrid:cells"
    plan, said = checked(grid)
    assert (plan.config.max_episode_steps, plan.config.obs_transform, plan.task.horizon) == (120, cells, 120)
    assert "Using --max_episode_steps 120, the environment's own step limit.\n" in said
    assert f"Using --obs_transform {cells}, one-hot observations without the mission's text.\n" in said
    again, said = checked(f"{grid} --max_episode_steps 9 --obs_transform {cells}")
    assert (again.config.max_episode_steps, said) == (9, "")
    assert plan.config == replace(again.config, max_episode_steps=120)
    assert plan.task == describe_task("minigrid:MiniGrid-MultiRoom-N6-v0")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ["\n", "Yes\n", "--yes", "n\n", ""])
def test_a_refused_command_is_corrected_on_the_spot(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "-p synth -e CartPole-v1 -l 8 -t 300 -i 5 -V --reward.hidden 8".split()
    if answer == "--yes":
        line.append(answer)
    else:
        monkeypatch.setattr("sys.stdin", _Terminal(answer))
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    takes = answer in {"\n", "Yes\n", "--yes"}
    assert main(line) == (0 if takes else 2)
    said = capsys.readouterr()
    command = (
        "teach -p synth -e CartPole-v1 -n run -l 8 -t 300 -i 5 -V --fixed_horizon absorb --reward.hidden 8"
    )
    assert f"{EARLY}: --fixed_horizon absorb (or restart)" in said.err
    assert f"; corrected:\n\n    {command}\n\n" in said.err
    assert ("Run this instead? [Y/n] " in said.err) == (answer != "--yes")
    run_dir = Path("runs/CartPole-v1/run")
    assert run_dir.exists() == takes
    if takes:
        assert f"--resume {run_dir} -t" in said.out
        saved = replace(load_config(run_dir)[0], runs_dir="runs")
        shutil.rmtree(run_dir)
        assert saved == checked(command.removeprefix("teach "))[0].config


def test_a_setting_and_the_environment_are_refused_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "nowhere")
    line = f"{FIRST} -e CartPole-v1 --device cuda:77 --teacher no_such_module:function --policy nothing"
    said = str(refused(line))
    for reason in ("--device", "REDIS_URL", "no_such_module", "nothing", "leaks the reward"):
        assert reason in said


EARLY = "the length of an episode leaks the reward"


@pytest.mark.parametrize(
    ("given", "reasons", "command"),
    [
        ("-n x", ["--n_labels: synth needs a number"], "-n x -l 1400"),
        ("-l 20", ["-n/--name is required"], "-n run -l 20"),
        ("-n Jose\u0301-2 -l 20", ["--name: expected ASCII letters"], "-n Jose-2 -l 20"),
        ("-n \u092e\u0940\u0930\u093e -l 20", ["--name: expected ASCII letters"], "-n run -l 20"),
        (
            "-n a/b -l 20 --teacher mistke:0.1",
            ["--name: expected ASCII letters", "--teacher: expected one or more of oracle"],
            "with --teacher left out: teach -p synth -e CartPole-v1 -n a-b -l 20",
        ),
        (
            "-n x -l 20 --reward.members 1 --queries.diversity 99",
            ["--queries.selection: active", "--queries.diversity: expected no more"],
            "--queries.selection random",
        ),
        (
            "-n x -l 0 --reward.hidden 0 --gold 3",
            ["--n_labels: expected", "--reward.hidden: expected", "--gold: expected a share"],
            "with --reward.hidden, --gold left out: teach -p synth -e CartPole-v1 -n x -l 1400",
        ),
    ],
)
def test_bad_settings_and_environment_together(given: str, reasons: list[str], command: str) -> None:
    error = refused(f"-p synth -e CartPole-v1 {given}")
    for reason in [*reasons, EARLY]:
        assert str(error).count(reason) == 1
    assert command in str(error)
    assert checked(corrected(error))[0].config.fixed_horizon == "absorb"


def test_corrected_commands_keep_preset_defaults() -> None:
    error = refused("-p human -e CartPole-v1 -n x --preset paper --ent_coef -1 --reward.patience -2")
    assert "--schedule: needs a total number of labels" in str(error)
    assert ", with --reward.patience, --ent_coef left out: " in str(error)
    assert corrected(error) == ("-p human -e CartPole-v1 -n x -l 1400 --fixed_horizon absorb --preset paper")


def test_implied_settings_are_accepted() -> None:
    error = refused("-p human -e Pendulum-v1 -n x --public_url nope --bind 0.0.0.0")
    assert "--public_url: expected" in str(error)
    assert "--bind" not in str(error).partition("; corrected")[0]
    assert corrected(error).endswith("--bind 0.0.0.0 --public_url http://this-machine:8000")
    assert error.command is None  # it has a placeholder


def test_site_settings_are_corrected() -> None:
    error = refused("-p human -e Pendulum-v1 -n x --bind 0.0.0.0 --seed -1")
    for reason in ("--bind: needs public_url", "--seed: expected"):
        assert reason in str(error)
    assert corrected(error) == (
        "-p human -e Pendulum-v1 -n x --bind 0.0.0.0 --public_url http://this-machine:8000"
    )


@pytest.mark.parametrize(
    ("line", "reasons"),
    [
        ("-e CartPole-v1 --env_kwargs ab", ["--env_kwargs: expected name=value"]),
        ("-e CartPole-v1 --max_episode_steps 0", ["--max_episode_steps: expected"]),
        ("-e Nothing-v1", ["no environment is registered as Nothing-v1"]),
    ],
)
def test_unknown_environment(line: str, reasons: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"-p synth -n x --seed -1 {line}")) == 2
    said = capsys.readouterr().err
    for reason in ["--seed: expected 0 to 2**32 - 1; got -1", *reasons]:
        assert said.count(reason) == 1
    assert EARLY not in said
    assert said.count("\n") == 1


def test_arguments_of_the_environment_reach_it_and_its_replay() -> None:
    plan, _ = checked(f"{FIRST} -e Hopper-v5 --env_kwargs terminate_when_unhealthy=false,frame_skip=8")
    assert plan.task.kwargs == {"terminate_when_unhealthy": False, "frame_skip": 8}
    assert plan.config.env_kwargs is not None
    lake, _ = checked(
        '-p rl -n x -e FrozenLake-v1 --env_kwargs \'{"desc": ["SFF", "FFG"], "is_slippery": false}\''
    )
    assert lake.task.observation_space.shape == (6,)
    larger, _ = checked("-p rl -n x -e FrozenLake-v1 --env_kwargs map_name=8x8")
    assert larger.task.observation_space.shape == (64,)


@pytest.mark.parametrize("value", ["frame_skip", "=3", "{", "render_mode=human", "max_episode_steps=3"])
def test_invalid_environment_arguments_are_refused(value: str) -> None:
    with pytest.raises(TeacherError, match=r"--env_kwargs: (expected|can't contain)"):
        parse_arguments(["-p", "rl", "-e", "Hopper-v5", "-n", "x", "--env_kwargs", value])


def test_a_command_gives_the_settings_that_it_was_made_of() -> None:
    config = TeachConfig(
        env_id="Hopper-v5",
        predictor="human",
        name="x",
        n_labels=40,
        num_timesteps=1_000_000,
        prompt="Who's best?",
        no_videos=True,
        reward=RewardConfig(members=7),
    )
    command = command_of(config, {"segment_steps": 9})
    assert command.startswith("teach -p human -e Hopper-v5 -n x -l 40 -t 1e6")
    again = parse_arguments(shlex.split(command)[1:]).config
    assert again == TeachConfig(**{**vars(config), "segment_steps": 9})


class _Grid(Stub):
    observation_space = gym.spaces.Text(5)
    action_space = gym.spaces.MultiBinary(2)
    length, terminates = 7, True

    def observe(self) -> Any:
        return "abc"


class _Pictures(Stub):
    observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    length, terminates = 7, True


@pytest.mark.parametrize(("limit", "filling"), [(30, "restart"), (14, "absorb")])
def test_short_image_episodes_start_again(monkeypatch: pytest.MonkeyPatch, limit: int, filling: str) -> None:
    env_id = registered(monkeypatch, "Pictures-v0", _Pictures, limit)
    assert f"--fixed_horizon {filling}" in corrected(refused(f"{FIRST} -e {env_id}"))


def test_problems_without_a_fix_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(f"{FIRST} -e {registered(monkeypatch, 'Words-v0', _Grid, 30)}")
    assert isinstance(error, EnvironmentUnsuitableError)
    assert "has the observation space Text(1, 5" in str(error)
    assert "has the action space MultiBinary(2)" in str(error)
    assert "50 of 50 random episodes of Words-v0 end before step 30" in str(error)
    rest = str(error).partition("; partly corrected: ")[2]
    assert "--obs_transform module:function --fixed_horizon absorb" in rest
    assert error.command is None


def test_a_corrected_command_keeps_its_preset() -> None:
    said = str(refused("-p synth -e CartPole-v1 -n pp -l 20 -L 10 -t 4e3 --preset paper"))
    command = said.partition("corrected: teach ")[2]
    assert "--preset paper" in command
    again = parse_arguments(shlex.split(command)).config
    assert (again.reward.inputs, again.agent, again.fixed_horizon) == (None, "trpo", "absorb")


@pytest.mark.parametrize(
    ("options", "inputs", "after_end"),
    [
        ("--fixed_horizon absorb", "next_state,absorbing", (75, True)),
        ("--fixed_horizon absorb --segment_steps 9", "next_state,absorbing", (9, True)),
        ("--fixed_horizon absorb --reward.inputs state", "state,absorbing", (75, True)),
        ("--fixed_horizon absorb --preset paper", "state,action,absorbing", (75, True)),
        (
            "--fixed_horizon absorb --reward.inputs state,terminated",
            "state,terminated,absorbing",
            (75, False),
        ),
        ("--fixed_horizon absorb -p rl", "", (75, True)),
        ("--fixed_horizon restart", "next_state", (None, False)),
        ("--allow_variable_horizon", "next_state", (None, False)),
    ],
)
def test_absorbing_states_end_the_agents_episode(options: str, inputs: str, after_end: Any) -> None:
    first = "-n x -t 4e3" if "-p rl" in options else FIRST
    plan, _ = checked(f"{first} -e CartPole-v1 {options}")
    assert plan.config.predictor == "rl" or plan.config.reward.inputs == inputs
    assert (plan.task.frozen_steps, plan.task.terminates) == after_end


def test_arguments_of_the_environment_are_joined_as_they_were_written() -> None:
    line = "-p human -n x -l 20 -L 10 -t 4e3 -e Hopper-v5 --env_kwargs"
    said = str(refused(f"""{line} '{{"frame_skip": 2}}'"""))
    command = said.partition("corrected: teach ")[2]
    kwargs = parse_arguments(shlex.split(command)).config.env_kwargs
    assert named_values(kwargs) == {"frame_skip": 2, "terminate_when_unhealthy": False}


def test_a_command_that_needs_more_than_is_corrected_says_so() -> None:
    error = refused("-p synth -e CartPole-v1 -n x -l 20 -L 10 -t 4e3 --device cuda:7")
    assert "; partly corrected: teach -p synth" in str(error)
    assert error.command is None


@pytest.mark.parametrize(
    "address", ["nonsense", "256.1.1.1", "192.0.2.1", "2001:db8::1", "a" * 70, "b\u00fccher..de", ""]
)
def test_an_address_where_no_site_can_listen_is_refused_with_the_rest(address: str) -> None:
    line = f"-p human -e CartPole-v1 -n x --bind {shlex.quote(address)} --public_url http://here"
    said = str(refused(line))
    assert "use an address of this machine, such as 127.0.0.1 or 0.0.0.0" in said
    assert f"can't listen on '{address}' (" in said
    assert "--fixed_horizon" in said


def test_a_bad_policy_and_bad_demonstrations_are_refused_together(tmp_path: Path) -> None:
    said = str(
        refused(f"{FIRST} -e teacher/Pendulum-v1 --policy {tmp_path / 'a'} --demonstrations {tmp_path / 'b'}")
    )
    assert f"{tmp_path / 'a'} does not exist" in said
    assert str(tmp_path / "b") in said


def test_duplicate_problems_are_said_once() -> None:
    found = [EnvironmentUnsuitableError(text) for text in ("it failed in reset", "it failed in reset", "-l")]
    assert str(join_errors(found)) == "it failed in reset; -l"
