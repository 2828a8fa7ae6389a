"""The benchmark of changing rewards replays a stored run, and compares agents on its predictors."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from agents.base import to_arrays
from agents.sac_step import SACConfig
from benchmarks import agent_variants, bpref_run
from benchmarks.agent_variants import CriticRefitSAC, ExtraStepsSAC, LayerNormSAC, MixedReplaySAC, ResetSAC
from benchmarks.bpref_run import PredictorFiles
from benchmarks.changing_reward import main
from benchmarks.changing_reward_run import Job, opened, repeats, tanh_network
from benchmarks.results import load
from teacher.datasets.predictor_files import load_predictor
from teacher.envs.tasks import describe_task, make_vector_env

STEPS = 2048 * 4


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a stored run of PPO on labels."""
    runs = tmp_path_factory.mktemp("stored")
    job = bpref_run.Job("Pendulum-v1", "ppo-ours", "oracle", 24, STEPS, 3)
    bpref_run.make(job, runs, "cpu", keeps_predictors=True)
    return job.folder(runs)


def test_every_predictor_of_a_run_is_kept_from_its_first_use(stored: Path) -> None:
    files = PredictorFiles.read(stored / bpref_run.PREDICTORS_NAME)
    steps = [step for step, _ in files]
    assert len(files) >= 2
    assert 4000 < steps[0] <= 4096, "the first rollout of four environments"
    assert steps == sorted(steps)
    assert load_predictor(files[-1][1]).env_id == "Pendulum-v1"


def test_predictors_newer_than_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    for step in (32, 64, 96):
        (tmp_path / f"{step:09}.npz").touch()
    PredictorFiles(SimpleNamespace(step=64), tmp_path)  # type: ignore[arg-type]
    assert [step for step, _ in PredictorFiles.read(tmp_path)] == [32, 64]


def test_the_agent_of_a_stored_run_repeats_it_on_its_predictors(stored: Path, tmp_path: Path) -> None:
    job = Job("Pendulum-v1", stored.name, "sequence", "ppo", STEPS, 3)
    with opened(job, stored, tmp_path) as training:
        training.train(STEPS)
        episodes = [episode[:2] for episode in training.episodes]
        policy = to_arrays(training.agent.policy.state_dict())
    with opened(job, stored, tmp_path / "copy") as training:
        assert repeats(job, stored)
        training.repeat(stored)
        copied = to_arrays(training.agent.policy.state_dict())
    assert np.allclose([episode[:2] for episode in training.episodes], episodes, rtol=0, atol=1e-3)
    assert all(np.array_equal(values, copied[name]) for name, values in policy.items())


def test_unfinished_runs_refused(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied = tmp_path / "Pendulum-v1" / stored.name
    shutil.copytree(stored, copied)
    shutil.rmtree(copied / bpref_run.PREDICTORS_NAME)
    with pytest.raises(SystemExit):
        main(["--run", str(copied)])
    assert "has no predictors; make it with benchmarks.bpref --keep_predictors" in capsys.readouterr().err


def test_missing_runs_are_made(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    command = ["--run", str(stored), "--agent", "ppo", "--runs", str(tmp_path), "--results", str(path)]
    command += ["--reward", "true", "last", "linear", "sequence"]
    assert main(command) == 0
    lines = {line["reward"]: line for line in load(path)}
    assert list(lines) == ["random", "true", "last", "linear", "sequence"]
    assert [lines[reward]["source"] for reward in lines] == ["", "", *[stored.name] * 3]
    assert all(-2000 < line["return"] < 0 for line in lines.values())
    assert len(lines["last"]["predicted"]) == len(lines["last"]["curve"])
    assert -1 <= lines["last"]["correlation"] <= 1
    gained = {reward: line["return"] - lines["random"]["return"] for reward, line in lines.items()}
    assert f"| {gained['sequence'] / gained['last']:.2f} |" in capsys.readouterr().out
    assert lines["last"]["predicted_return_of_true"] == lines["sequence"]["predicted_return_of_true"]
    assert lines["last"]["predicted_return"] != lines["sequence"]["predicted_return"]
    assert main([*command, "--show"]) == 0
    assert main(command) == 0
    assert len(load(path)) == 5, "finished runs are not made again"


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    job = Job("Pendulum-v1", "", "true", "default", 600, 1)
    with opened(job, None, tmp_path) as training:
        training.train(300)
    before = training.episodes
    with opened(job, None, tmp_path) as training:
        assert 300 <= training.agent.total_steps < 332
        training.train(job.steps)
    assert training.episodes[: len(before)] == before
    assert len(training.episodes) > len(before)


def sac(kind: Any, **settings: Any) -> Any:
    envs = make_vector_env(describe_task("Pendulum-v1"), 1, 1)
    config = SACConfig(batch_size=16, train_freq=8, gradient_steps=-1, hidden_sizes=(16, 16), **settings)
    return kind(envs, config, 1)


def trained(agent: Any, steps: int) -> Any:
    while agent.total_steps < steps:
        rollout = agent.collect()
        agent.update(rollout, rollout.rewards)
    return agent


def test_layer_norm_makes_critics_independent_of_the_scale_of_the_first_layer() -> None:
    agent = trained(sac(LayerNormSAC, learning_starts=8), 24)
    critic, inputs = agent.policy.critic, (torch.ones(5, 3), torch.ones(5, 1))
    before = critic(*inputs)
    with torch.no_grad():
        critic.weights[0] *= 3
        critic.biases[0] *= 3
    assert torch.allclose(before, critic(*inputs), atol=1e-3)
    assert not any(parameter.requires_grad for parameter in agent.policy.target.parameters())


def test_resets_draw_new_networks_and_keep_transitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_variants, "RESET_EVERY", 64)
    agent = trained(sac(ResetSAC, learning_starts=1000), 56)
    before = parameters_to_vector(agent.policy.actor.parameters()).clone()
    trained(agent, 64)
    after = parameters_to_vector(agent.policy.actor.parameters())
    assert not torch.allclose(before, after)
    assert len(agent.buffer) == 64


def test_half_of_each_minibatch_is_new_in_mixed_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_variants, "NEWEST", 10)
    agent = trained(sac(MixedReplaySAC, learning_starts=1000), 200)
    agent.buffer.relabel(lambda *columns: np.arange(len(columns[0])))
    drawn = agent.buffer.sample(4000, np.random.default_rng(0)).rewards
    newest = len(agent.buffer) - 10
    assert (drawn[::2] >= newest).all()
    assert (drawn[1::2] < newest).mean() == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("kind", [ExtraStepsSAC, CriticRefitSAC])
def test_changed_reward_adds_extra_steps(kind: type[ExtraStepsSAC], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_variants, "EXTRA_STEPS", 16)
    both = [trained(sac(kind, learning_starts=8), 16) for _ in range(2)]
    both[1].relabel(lambda *columns: np.ones(len(columns[0])))
    rollouts = [agent.collect() for agent in both]
    for agent, rollout in zip(both, rollouts, strict=True):
        agent.update(rollout, rollout.rewards)
    after = [agent.state_dict() for agent in both]
    assert [state["optimizer"]["steps"] for state in after] == [24, 40]
    assert after[1]["optimizer"]["critic"]["steps"] == 40
    moved = [state["optimizer"]["actor"]["steps"] for state in after]
    assert moved == ([24, 24] if kind is CriticRefitSAC else [24, 40])


def test_the_tanh_network_is_bounded() -> None:
    rewards = tanh_network((4,))(100 * torch.randn(50, 4))
    assert rewards.shape == (50, 1)
    assert rewards.abs().max() <= 1
