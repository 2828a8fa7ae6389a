"""The claims about what labels teach, in short; reward learning's speed, episode ends, changing rewards."""

import json
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
from benchmarks import agent_variants, bpref_run, changing_reward, episode_ends, reward_claims
from benchmarks.agent_variants import CriticRefitSAC, ExtraStepsSAC, LayerNormSAC, MixedReplaySAC, ResetSAC
from benchmarks.bpref_run import PredictorFiles
from benchmarks.changing_reward_run import Job, opened, repeats, tanh_network
from benchmarks.episode_ends import make, table
from benchmarks.response_times import decide, targets
from benchmarks.results import load
from benchmarks.reward_claims import (
    Figures,
    Fit,
    choice,
    controls,
    distance,
    later,
    main,
    regularization,
)
from benchmarks.reward_speed import Bench, report
from teacher.datasets.predictor_files import load_predictor
from teacher.envs.tasks import describe_task, make_vector_env
from teacher.settings.options import RewardConfig

SHORT = Fit(RewardConfig(features="even", hidden=16, patience=20), max_updates=100)
SEEDS = (1, 2)


def by_variant(results: list[Figures]) -> dict[str, list[float]]:
    return {variant: [figures[variant] for figures in results] for variant in results[0]}


def test_oracle_labels_teach_and_coin_flips_do_not() -> None:
    values = by_variant([controls(seed, SHORT) for seed in SEEDS])
    taught, coin = values["oracle"], values["coin flips"]
    assert min(taught) > 0.8
    assert abs(np.mean(coin)) < 0.4
    assert max(coin) < min(taught) - 0.3


def test_labels_before_training_teach_little_about_a_policy_that_came_later() -> None:
    values = later(1, SHORT)
    assert values["labels before, random"] > 0.7
    assert values["labels before, policy"] < values["labels of both, policy"] - 0.5


def test_a_distance_is_learned_from_fewer_answers_by_squares_and_logarithms() -> None:
    values = by_variant([distance(seed, SHORT) for seed in SEEDS])
    assert np.mean(values["even"]) > 0.85
    assert np.mean(values["plain"]) < np.mean(values["even"]) - 0.08


def test_the_choice_and_every_regularization_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_claims, "CHOICE_LABELS", (80,))
    assert choice(1, SHORT) == {"distance, 80 labels": 1.0, "sum, 80 labels": 0.0}
    figures = regularization(1, SHORT)
    assert len(figures) == 6
    assert min(figures.values()) > 0.8


def test_finished_runs_are_kept_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reward_claims, "FULL", SHORT)
    path = tmp_path / "results.jsonl"
    kept = {"part": "distance", "seed": 1, "figures": {"plain": 0.125, "even": 0.5}}
    path.write_text(json.dumps(kept) + "\n")
    line = ["--part", "distance", "--results", str(path), "--seeds", "1", "2"]
    for _ in range(2):
        assert main(line) == 0
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == kept
    assert second == {"part": "distance", "seed": 2, "figures": second["figures"]}
    assert f"({kept['figures']['even']:.2f} to {second['figures']['even']:.2f})" in capsys.readouterr().out  # type: ignore[index]
    assert main(["--show", "--results", str(tmp_path / "none.jsonl")]) == 0
    assert not (tmp_path / "none.jsonl").exists()


def test_our_side_is_timed_without_imitation(tmp_path: Path) -> None:
    found = Bench(tmp_path, imitation=None).relabel(seed=1)
    assert list(found) == ["ours"]
    assert 0 < found["ours"] < 1e-3  # seconds for one step


def test_ratios_are_medians_over_rounds_with_their_range() -> None:
    rounds = [{"ours": ours, "imitation": theirs} for ours, theirs in [(1.0, 10.0), (2.0, 30.0), (1.0, 40.0)]]
    assert list(report("fit", rounds)) == [
        "| fit | ours | 1 (1 to 2) s |",
        "| fit | imitation | 30 (10 to 40) s |",
        "| fit | imitation / ours | **15 (10 to 40)** |",
    ]


def test_a_run_on_labels_is_set_against_one_on_the_true_reward() -> None:
    rounds = [{"ours, rl": 2.0, "ours, rl, CPU": 2.0, "ours, synth": 3.0, "ours, synth, CPU": 5.0}]
    assert list(report("steps", rounds))[-2:] == [
        "| steps | ours, synth / ours, rl | **1.5 (1.5 to 1.5)** |",
        "| steps | ours, synth, CPU / ours, rl, CPU | **2.5 (2.5 to 2.5)** |",
    ]


def test_frozen_segments_are_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_ends, "_EPISODES", 15)
    monkeypatch.setattr(episode_ends, "_TESTED", 5)
    monkeypatch.setattr(episode_ends, "LABELS", 30)
    found = {side: make("CartPole-v1", side, "random", 1) for side in ("frozen", "absorb")}
    frozen, absorb = found["frozen"]["ties"], found["absorb"]["ties"]
    assert frozen is not None
    assert absorb is not None
    assert frozen > 0.6
    assert absorb < 0.3
    results = [{"task": "CartPole-v1", "side": side, "labeled": "random", **found[side]} for side in found]
    assert table(results).row_count == len(episode_ends.TASKS) * len(episode_ends.SIDES)


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
        changing_reward.main(["--run", str(copied)])
    assert "has no predictors; make it with benchmarks.bpref --keep_predictors" in capsys.readouterr().err


def test_missing_runs_are_made(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    command = ["--run", str(stored), "--agent", "ppo", "--runs", str(tmp_path), "--results", str(path)]
    command += ["--reward", "true", "last", "linear", "sequence"]
    assert changing_reward.main(command) == 0
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
    assert changing_reward.main([*command, "--show"]) == 0
    assert changing_reward.main(command) == 0
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


@pytest.mark.parametrize("drift", [0.3, 1.5])
def test_simulated_decisions_follow_the_drift_diffusion_model(drift: float) -> None:
    """Closed forms for thresholds of 1 and -1 and unit diffusion (Bogacz et al., 2006, appendix)."""
    first, times = decide(np.full(4000, drift), np.random.default_rng(1))
    assert first.mean() == pytest.approx(1 / (1 + np.exp(-2 * drift)), abs=0.03)
    assert times.mean() == pytest.approx(np.tanh(drift) / drift, rel=0.12)  # steps are not infinitely short


def test_only_targets_of_slow_answers_are_softer() -> None:
    first, times = np.array([True, False, True]), np.array([3.0, 1.0, 2.0])
    values, weights = targets("softer", first, times, np.ones(3))
    assert values == pytest.approx([0.7, 0.02, 0.9])
    assert weights.tolist() == [1, 1, 1]
    values, weights = targets("weights", first, times, np.ones(3))
    assert values.tolist() == [1, 0, 1]
    assert weights == pytest.approx([0.01, 2, 1])
