"""A run trains with the defaults of its task."""

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agents.defaults import BY_NAME
from agents.on_policy import OnPolicyConfig
from agents.ppo import PPOConfig
from teacher.assembly import build_run, check, prepared_directory
from teacher.config import TeachConfig

QUIET = Console(quiet=True)
CARTPOLE = replace(BY_NAME["CartPole"].ppo, normalize_rewards=True, anneal_timesteps=9000)
HALF_CHEETAH = BY_NAME["HalfCheetah"].trpo


@pytest.mark.parametrize(
    ("settings", "num_envs", "expected"),
    [
        ({"env_id": "ShortHopper-v1"}, 8, PPOConfig(normalize_rewards=True)),
        ({"env_id": "ShortHopper-v1", "predictor": "synth", "n_labels": 60}, 8, PPOConfig()),
        ({"env_id": "CartPole-v1"}, 8, CARTPOLE),
        ({"env_id": "Pendulum-v1", "predictor": "synth", "n_labels": 60}, 4, BY_NAME["Pendulum"].ppo),
        (
            {"env_id": "HalfCheetah-v5", "predictor": "synth", "n_labels": 60, "agent": "trpo"},
            8,
            replace(HALF_CHEETAH, target_kl=6 * 0.04, cg_damping=6 * 0.1),
        ),
    ],
)
def test_a_run_trains_with_the_defaults_of_its_task(
    settings: dict[str, Any], num_envs: int, expected: OnPolicyConfig, tmp_path: Path
) -> None:
    common: dict[str, Any] = {"predictor": "rl", "name": "x", "num_timesteps": 9000, "no_videos": True}
    config = TeachConfig(**{**common, "runs_dir": str(tmp_path), **settings})
    task, run_id = check(config, QUIET), uuid.uuid4()
    with (
        prepared_directory(config, run_id, resumed=False),
        build_run(config, run_id, task, QUIET) as run,
    ):
        assert run.envs.num_envs == num_envs
        assert run.agent.config == expected
