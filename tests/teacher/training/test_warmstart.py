"""A run begins from a policy and from demonstrations, or refuses them before it leaves a trace."""

import contextlib
import io
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

from agents.ppo import PPO
from agents.trpo import TRPO
from teacher.data.checkpoint import load_state, save_state
from teacher.data.demonstrations import KEYS, load_demonstrations, record_demonstrations, save_demonstrations
from teacher.settings.config import RunSettings, TeachConfig
from teacher.settings.config_files import load_config
from teacher.teach import main
from teacher.training.builder import build_run, prepared_directory
from teacher.training.parts import RunPlan
from teacher.training.run import Run
from teacher.training.start import check
from tests.environments import balance

EXPERT = Path("runs/CartPole-v1/expert")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two rollouts and with demonstrations, of CartPole-v1."""
    folder = tmp_path_factory.mktemp("prepared")
    with contextlib.chdir(folder):
        assert main("-p rl -e CartPole-v1 -n expert -t 1000 -V".split()) == 0
        env = gym.make("CartPole-v1", max_episode_steps=100)
        recorded = record_demonstrations(balance, env, n_episodes=5)
        save_demonstrations(Path("expert.npz"), recorded)
        save_demonstrations(Path("few.npz"), recorded.limited(2))  # soon cloned
    return folder


@pytest.fixture
def folder(prepared: Path, here: Path) -> Path:
    """A copy of the prepared folder, which is the present one."""
    shutil.copytree(prepared, here, dirs_exist_ok=True)
    return here


@pytest.fixture
def build(folder: Path) -> Iterator[Callable[..., tuple[Run, str]]]:
    """Makes a run that has not trained yet, and what was printed."""
    with contextlib.ExitStack() as parts:

        def make(**settings: Any) -> tuple[Run, str]:
            defaults = {"env_id": "CartPole-v1", "predictor": "rl", "name": "warm", "no_videos": True}
            config, run_id, said = TeachConfig(**{**defaults, **settings}), uuid.uuid4(), io.StringIO()
            console = Console(file=said, soft_wrap=True)
            plan = check(RunSettings(config, run_id), console)
            parts.enter_context(prepared_directory(plan.settings))
            return parts.enter_context(build_run(plan, console)), said.getvalue()

        yield make


def test_it_begins_from_a_policy_but_not_from_its_training(build: Callable[..., tuple[Run, str]]) -> None:
    saved = load_state(EXPERT / "checkpoint.npz")["agent"]
    by_algorithm = (
        build(policy=str(EXPERT), agent="trpo")[0],
        build(policy=str(EXPERT / "checkpoint.npz"), name="other", seed=7)[0],
    )
    assert [type(run.agent) for run in by_algorithm] == [TRPO, PPO]
    for run in by_algorithm:
        state = run.agent.state_dict()
        np.testing.assert_equal(state["policy"], saved["policy"])
        np.testing.assert_equal(state["normalizer"], saved["normalizer"])
        assert state["normalizer"]["count"] > 1000
        assert state["total_steps"] == 0
        assert state["random"] != saved["random"]
        assert not any(np.any(moments["exp_avg"]) for moments in state["optimizer"].values())


def test_it_begins_from_a_clone_and_tells_how_good_it_is(build: Callable[..., tuple[Run, str]]) -> None:
    run, said = build(demonstrations="expert.npz")
    assert "Cloned 5 episodes, 500 steps, return 100.0 +- 0.0" in said
    assert "loss: train 0." in said
    assert ", validation 0." in said
    played = record_demonstrations(run.agent, gym.make("CartPole-v1", max_episode_steps=100), 3, seed=9)
    assert played.episode_returns.mean() > 90
    assert run.agent.normalizer.statistics.count == 400, "four of five episodes"
    assert (run.config.run_dir / "demonstrations.png").read_bytes().startswith(b"\x89PNG")


def test_sac_starts_from_demonstrations(folder: Path, build: Callable[..., tuple[Run, str]]) -> None:
    env = gym.make("Pendulum-v1", max_episode_steps=50)
    full = record_demonstrations(lambda observation: np.array([2 * observation[1]]), env, n_episodes=4)
    save_demonstrations(folder / "swing.npz", full)
    run, said = build(env_id="Pendulum-v1", agent="sac", demonstrations="swing.npz")
    assert "Cloned 4 episodes" in said
    rollout = run.collect()
    meant = run.agent.act(rollout.observations[:, 0], deterministic=True)
    assert np.abs(rollout.executed_actions[:, 0] - meant).mean() < 0.5
    assert np.abs(meant[:, 0] - 2 * rollout.observations[:, 0, 1]).mean() < 0.6, "their mean size is 1.3"


def test_a_policy_comes_before_the_demonstrations(build: Callable[..., tuple[Run, str]]) -> None:
    before = load_state(EXPERT / "checkpoint.npz")["agent"]
    run, said = build(policy=str(EXPERT), demonstrations="few.npz")
    assert said.index("Starting from the policy in") < said.index("Cloned")
    state = run.agent.state_dict()
    np.testing.assert_equal(state["normalizer"], before["normalizer"])
    for name, value in before["policy"].items():
        assert np.array_equal(state["policy"][name], value) == name.startswith("critic.")


def test_a_single_episode_is_cloned_whole(build: Callable[..., tuple[Run, str]]) -> None:
    save_demonstrations(Path("one.npz"), load_demonstrations(Path("expert.npz"), traj_limitation=1))
    run, said = build(demonstrations="one.npz")
    assert "epoch 300" in said
    assert "validation" not in said
    assert run.agent.normalizer.statistics.count == 100


@pytest.mark.parametrize(
    "line", ["-p rl -a trpo", "-p synth -l 20 -i 20 --allow_variable_horizon --segment_steps 8"]
)
def test_resume_does_not_clone_again(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = "-e CartPole-v1 -n x -t 500 -V --policy runs/CartPole-v1/expert --demonstrations few.npz"
    assert main([*settings.split(), *line.split()]) == 0
    assert "Cloned 2 episodes" in capsys.readouterr().out
    run_dir = folder / "runs/CartPole-v1/x"
    config, _ = load_config(run_dir)
    assert (config.demonstrations, config.policy) == (str(folder / "few.npz"), str(folder / EXPERT))
    (folder / "few.npz").unlink()
    shutil.rmtree(EXPERT)
    before = load_state(run_dir / "checkpoint.npz")["agent"]
    assert main(["--resume", str(run_dir)]) == 0
    assert "Cloned" not in capsys.readouterr().out
    np.testing.assert_equal(load_state(run_dir / "checkpoint.npz")["agent"]["policy"], before["policy"])


def test_killed_early_run_resumes_warm(build: Callable[..., tuple[Run, str]], folder: Path) -> None:
    run, _ = build(demonstrations="few.npz")
    (folder / "few.npz").unlink()
    config, run_id = load_config(run.config.run_dir)
    with build_run(RunPlan(RunSettings(config, run_id), run.task), Console(quiet=True)) as resumed:
        np.testing.assert_equal(resumed.agent.state_dict()["policy"], run.agent.state_dict()["policy"])


def changed(**arrays: Any) -> None:
    with np.load("expert.npz") as archive:
        np.savez("expert.npz", **{**{key: archive[key] for key in KEYS}, **arrays})


def of_another_environment() -> None:
    env = gym.make("Pendulum-v1", max_episode_steps=20)
    recorded = record_demonstrations(lambda _: np.zeros(1), env, n_episodes=2)
    Path("expert.npz").unlink()
    save_demonstrations(Path("expert.npz"), recorded)


def truncate(path: str) -> None:
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: len(content) // 2])


def poison(path: str) -> None:
    state = load_state(Path(path))
    state["agent"]["policy"]["actor.0.bias"][3] = np.nan
    save_state(Path(path), state)


CHECKPOINT = f"{EXPERT}/checkpoint.npz"
CASES: list[tuple[str, Callable[[], Any], str]] = [
    ("--demonstrations expert.npz", lambda: Path("expert.npz").unlink(), "No such file"),
    ("--demonstrations runs", lambda: None, "Is a directory"),
    ("--demonstrations expert.npz", lambda: truncate("expert.npz"), "not a readable demonstrations file"),
    ("--demonstrations expert.npz", lambda: changed(obs=np.array([{}] * 500)), "allow_pickle"),
    ("--demonstrations expert.npz", lambda: changed(obs=np.full((500, 4), np.nan)), "contains NaN"),
    ("--demonstrations expert.npz", of_another_environment, r"observations of shape \(4,\), got \(3,\)"),
    ("--demonstrations expert.npz", lambda: changed(actions=np.full((500, 1), 2)), r"Discrete\(2\), got 2"),
    (
        "--demonstrations expert.npz",
        lambda: changed(actions=np.full((500, 1), 0.5)),
        r"Discrete\(2\), got 0.5",
    ),
    (
        "--demonstrations expert.npz",
        lambda: changed(actions=np.zeros((500, 2))),
        r"shape \(1,\), got \(2,\)",
    ),
    ("--demonstrations expert.npz", lambda: changed(obs=np.array(["../0.png"] * 500)), "leads outside"),
    ("--demonstrations expert.npz", lambda: changed(obs=np.array(["0.png"] * 500)), "'0.png' is missing"),
    (
        "--demonstrations expert.npz -e InvertedPendulum-v1",
        lambda: None,
        "actions of a float dtype, got int64",
    ),
    ("--policy nowhere", lambda: None, "nowhere does not exist"),
    ("--policy runs", lambda: None, "runs/checkpoint.npz does not exist"),
    (f"--policy {EXPERT}", lambda: truncate(CHECKPOINT), "not a readable checkpoint"),
    (f"--policy {EXPERT}", lambda: poison(CHECKPOINT), "actor.0.bias has values that are NaN"),
    ("--policy expert.npz", lambda: None, "an .npz file but not a checkpoint"),
    ("--policy text", lambda: Path("text").write_text("hello"), "truncated, or not an .npz file"),
    (
        f"--policy {EXPERT} -e Pendulum-v1",
        lambda: None,
        r"but this agent needs \{.*'actor.0.weight': \(64, 3\)",
    ),
    (f"--policy {EXPERT} -e InvertedPendulum-v1", lambda: None, "saved policy's parameter shapes are"),
    (
        f"--policy {EXPERT}",
        lambda: save_state(Path(CHECKPOINT), {"agent": 3}),
        "no policy or no observation statistics",
    ),
    (f"--policy {EXPERT}", lambda: save_state(Path(CHECKPOINT), {}), "it contains no agent"),
    (
        f"--policy {EXPERT}",
        lambda: np.savez(CHECKPOINT, structure=json.dumps({"version": 2, "state": {}})),
        "has format version 2, .* only reads format 1; use the version that wrote the file",
    ),
]


@pytest.mark.parametrize(("line", "damage", "message"), CASES)
def test_bad_starts_are_refused_and_leave_nothing(
    line: str, damage: Callable[[], Any], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage()
    assert main(["-p", "rl", "-e", "CartPole-v1", "-n", "refused", "-V", *line.split()]) != 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    with pytest.raises(AssertionError, match=rf"^teach: .*({message})"):
        raise AssertionError(said)
    assert [path.name for path in folder.glob("runs/*/*")] == ["expert"]


def test_a_run_is_recorded_by_one_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = json.loads((EXPERT / "config.json").read_text())
    (EXPERT / "config.json").write_text(json.dumps({**settings, "device": "cuda:7"}))  # of another machine
    assert main(["record", *f"{EXPERT} clone.npz --episodes 3 --seed 5".split()]) == 0
    recorded = load_demonstrations(Path("clone.npz"))
    assert capsys.readouterr().out.splitlines()[-1] == f"clone.npz: {recorded.summary()}"
    assert len(recorded.episode_returns) == 3
    for line, message in (
        (f"{EXPERT} clone.npz", "clone.npz already exists"),
        ("runs other.npz", "does not exist; pass a run's folder"),
        (f"{EXPERT} other.npz --episodes 0", "--episodes: expected a whole number, 1 or more; got 0"),
        (f"{EXPERT} nowhere/other.npz --episodes 1", "there is no folder nowhere; create it first"),
        (f"{EXPERT} {'x' * 300}.npz", "File name too long"),
    ):
        assert main(["record", *line.split()]) != 0
        said = capsys.readouterr().err
        assert said.startswith("teach record: ")
        assert message in said
        assert said.count("\n") == 1
    for line, message in (("", "required: run_dir, file"), (f"{EXPERT} other.npz --episodes x", "'x'")):
        with pytest.raises(SystemExit, match="2"):
            main(["record", *line.split()])
        said = capsys.readouterr().err
        assert said.startswith("teach record: ")
        assert message in said
        assert said.count("\n") == 1
    (EXPERT / "checkpoint.npz").unlink()
    assert main(["record", *f"{EXPERT} other.npz".split()]) != 0
    assert "checkpoint.npz does not exist" in capsys.readouterr().err
