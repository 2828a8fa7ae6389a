"""The hyperparameters of the agent: from the command line or Python, saved, and what is refused."""

import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from agents import PPO, PPOConfig, TRPOConfig
from teacher.cli.agent_options import agent_fields
from teacher.errors import ConfigError
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import load_config, save_config
from teacher.settings.corrections import command_of
from teacher.teach import main, parse_arguments
from teacher.training.builder import open_run
from teacher.training.loop import train

QUIET = Console(quiet=True)
RUN = "-p rl -e Pendulum-v1 -n x -t 600 -V"
NETWORKS = """
from torch import nn

def wide(shape, outputs):
    return nn.Sequential(nn.Linear(*shape, 16), nn.ELU(), nn.Linear(16, outputs))

def narrow(shape, outputs):
    return nn.Linear(*shape, outputs + 1)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config_of(line: str) -> TeachConfig:
    return parse_arguments(shlex.split(f"{RUN} {line}")).config


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--agent.learning_rate 1e-4", {"learning_rate": 1e-4}),
        (
            "--agent.hidden_sizes 128,64 --agent.activation relu",
            {"hidden_sizes": (128, 64), "activation": "relu"},
        ),
        ("--agent.num_steps 1e3 --num_envs 2", {"num_steps": 1000}),
        ("--agent.normalize_observations true", {"normalize_observations": True}),
        ("--agent.target_kl 0.02", {"target_kl": 0.02}),
        ("-a trpo --agent.cg_damping 0.3", {"cg_damping": 0.3}),
    ],
)
def test_a_run_trains_with_what_is_given_and_the_tasks_own_else(line: str, expected: dict[str, Any]) -> None:
    config = config_of(line)
    assert dict(config.agent_settings) == expected
    with open_run(config, QUIET) as run:
        assert {name: getattr(run.agent.config, name) for name in expected} == expected
        assert run.agent.config.gamma == 0.9, "the row of Pendulum"
        assert run.envs.num_envs == (config.num_envs or 4)
    assert load_config(config.run_dir)[0] != TeachConfig(env_id="Pendulum-v1", predictor="rl", name="x")


def test_a_configuration_in_python_is_kept_whole_and_saved(tmp_path: Path) -> None:
    agent = TRPOConfig(gamma=0.97, hidden_sizes=(32,))
    config = TeachConfig(env_id="Pendulum-v1", predictor="rl", name="x", agent=agent)
    assert config.agent == "trpo"
    with open_run(config, QUIET) as run:
        assert run.agent.config == agent
    with open_run(config.run_dir, QUIET) as again:
        assert again.agent.config == agent
        assert [layer.out_features for layer in again.agent.policy.actor if isinstance(layer, nn.Linear)] == [
            32,
            1,
        ]


def test_a_changed_network_trains_by_the_fast_backend_where_it_can() -> None:
    for line, fast in (("--agent.hidden_sizes 32,32,32", True), ("--agent.activation relu", False)):
        said = Console(file=io.StringIO(), width=200)
        with open_run(config_of(f"{line} -n {fast}"), said) as run:
            assert isinstance(run.agent, PPO)
            assert run.agent.uses_numpy == fast
            train(run)
        told = "trains in PyTorch" in said.file.getvalue()  # type: ignore[attr-defined]
        assert told != fast


def test_own_network_is_trained_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_policies.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    config = config_of("--agent.network own_policies:wide")
    with open_run(config, QUIET) as run:
        before = [each.clone() for each in run.agent.policy.parameters()]
        train(run)
        after = list(run.agent.policy.parameters())
        assert isinstance(next(run.agent.policy.actor.children()), nn.Sequential)
        assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    with open_run(config.run_dir, QUIET) as again:
        assert all(map(torch.equal, again.agent.policy.parameters(), after))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--agent.cg_damping 1", r"--agent\.cg_damping: ppo has no such hyperparameter"),
        ("--agent.gamma 3", "--agent: gamma must be between 0 and 1, not 3"),
        (
            "--agent.hidden_sizes 0",
            "--agent: hidden_sizes must list one or more layer sizes, each from 1 to 4096",
        ),
        ("--ent_coef 0.1 --agent.ent_coef 0.2", "--ent_coef: can't be combined with --agent.ent_coef"),
        ("--agent.network own_policies:narrow", "policy network must return outputs of shape"),
        ("--agent.network own_policies:wide --agent.hidden_sizes 8", "have no effect with a custom network"),
        ("-e teacher/MovingDot-v1 --agent.hidden_sizes 8", "have no effect with image observations"),
    ],
)
def test_invalid_settings_are_refused_before_a_run(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_policies.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(shlex.split(f"{RUN} {line}")) != 0
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(says, error), error
    assert not Path("runs").exists()


def test_a_network_that_cannot_be_imported_again_is_refused() -> None:
    agent = PPOConfig(network=lambda shape, outputs: nn.Linear(shape[0], outputs))
    with pytest.raises(ConfigError, match="can't be saved by name; use a function at"):
        TeachConfig(env_id="Pendulum-v1", predictor="rl", name="x", agent=agent)


def test_the_command_of_a_run_has_its_hyperparameters(tmp_path: Path) -> None:
    config = config_of(
        "--agent.hidden_sizes 128,64 --agent.normalize_observations false --agent.num_steps 2e3"
    )
    words = shlex.split(command_of(config, {}))[1:]
    assert parse_arguments(words).config == config
    config.run_dir.mkdir(parents=True)
    save_config(config, parse_arguments(words).run_id)
    assert load_config(config.run_dir)[0].agent_settings["hidden_sizes"] == [128, 64]


def test_every_hyperparameter_of_the_table_has_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    fields = agent_fields()
    assert {"learning_rate", "gamma", "num_steps", "hidden_sizes", "clip_coef", "cg_damping"} <= set(fields)
    assert all(text for _, text in fields.values())
    assert main(["defaults", "Pendulum-v1"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in fields)
    assert "--num_envs 4" in said
