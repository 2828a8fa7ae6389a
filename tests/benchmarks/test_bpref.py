"""The benchmark after B-Pref makes what is missing, goes on after an interruption, and reports shares."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.bpref import as_markdown, main, rows
from benchmarks.bpref_run import SIDES, TEACHERS, EpisodesFile, Job, make, record_episodes
from teacher.settings.teachers import ErrorModel
from teacher.training.builder import open_run
from teacher.training.loop import Round, train

STEPS = 8192


def result(side: str, seed: int, reached: float, labels: int = 0) -> dict[str, Any]:
    job = Job("dm_control/walker-walk", side, "oracle" if labels else "", labels, 1000, seed)
    curve = [None, *[reached / 2] * 19]
    return {**vars(job), "return": reached, "curve": curve, "cpu_seconds": 3600.0, "device": "cpu"}


def test_an_interrupted_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    job = Job("Pendulum-v1", "ppo", "", 0, 3 * STEPS, 1)
    config = job.config(tmp_path, "cpu")

    def interrupt(made: Round) -> None:
        if made.step >= 2 * STEPS:
            raise KeyboardInterrupt

    with open_run(config, Console(quiet=True)) as run:
        record_episodes(run, EpisodesFile(config.run_dir, 0))
        with pytest.raises(KeyboardInterrupt):
            train(run, interrupt)
    before = EpisodesFile.read(config.run_dir)
    assert 2 * STEPS <= before[-1][0] < 3 * STEPS
    whole = make(job, tmp_path, "cpu")
    after = EpisodesFile.read(config.run_dir)
    steps = [step for step, *_ in after]
    assert steps == sorted(steps)
    assert steps[-1] >= 3 * STEPS
    assert after[0] == before[0]
    assert whole["cpu_seconds"] > after[len(before) // 2][2] + (after[-1][2] - before[0][2]) / 4
    assert whole["curve"].count(None) < 15


def test_unsupported_environment_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "--env",
        "CartPole-v1",
        "--side",
        "sac",
        "--seeds",
        "1",
        "--steps",
        "2000",
        "--runs",
        str(tmp_path),
    ]
    with pytest.raises(SystemExit):
        main([*command, "--results", str(tmp_path / "r.jsonl")])
    assert "SAC needs a bounded Box of floats as the action space" in capsys.readouterr().err
    assert main(["--show", "--results", str(tmp_path / "r.jsonl")]) == 0
    assert "no results in" in capsys.readouterr().out


def test_shares_are_of_the_same_agent_on_the_true_reward() -> None:
    results = [result("sac", seed, 900.0 + 100 * seed) for seed in (1, 2)]
    results += [result("pebble", seed, 420.0, labels=500) for seed in (1, 2)]
    results += [result("ppo-ours", 1, 300.0, labels=500)]
    table = {row.job.side: row for row in rows(results)}
    assert [row.job.side for row in rows(results)] == ["sac", "pebble", "ppo-ours"]
    share = table["pebble"].normalized
    assert share is not None
    assert share[0] == pytest.approx(420 / 1050)
    assert share[1] == pytest.approx((420 / 1100, 420 / 1000))
    assert table["ppo-ours"].normalized is None, "PPO has no run on the true reward"
    assert "| PEBBLE | oracle | 500 | 2 | 420 (420 to 420) | 0.40 (0.38 to 0.42) | 420, 420 |" in as_markdown(
        table["pebble"]
    )


def test_processor_hours_are_those_of_runs_without_a_gpu() -> None:
    on_gpu = [{**result("sac", seed, 900.0), "cpu_seconds": 60.0, "device": "cuda"} for seed in (2, 3)]
    assert as_markdown(rows([result("sac", 1, 900.0), *on_gpu])[0]).endswith("| 1.00 |")
    assert as_markdown(rows(on_gpu)[0]).endswith("|  |")


def test_a_share_of_a_negative_return_is_left_out() -> None:
    table = rows([result("sac", 1, -100.0), result("pebble", 1, -200.0, labels=500)])
    assert table[1].normalized is None


@pytest.mark.parametrize("full", [False, True])
def test_all_sides_of_sac_have_the_same_agent(full: bool, tmp_path: Path) -> None:
    jobs = [Job("Hopper-v5", side, "oracle", 100, 20_000, 1, full) for side in SIDES]
    configs = {job.side: job.config(tmp_path, "cpu") for job in jobs}
    agents = [configs[side].agent_settings for side in ("sac", "pebble", "sac-ours")]
    assert agents[0] == agents[1] == agents[2]
    assert agents[0]["batch_size"] == (1024 if full else 256)
    assert configs["pebble"].num_pretrain_labels == 10
    assert configs["pebble"].pretrain_steps == 10_000
    assert configs["sac-ours"].pretrain_steps == 0


def test_teachers_have_the_parameters_of_bpref() -> None:
    models = {name: ErrorModel.parse(text) for name, text in TEACHERS.items()}
    assert models["noisy"].noisy == 1
    assert (models["mistake"].mistake, models["mistake-30"].mistake) == (0.1, 0.3)
    assert (models["skip"].skip, models["equal"].equal, models["myopic"].myopic) == (0.1, 0.1, 0.9)
