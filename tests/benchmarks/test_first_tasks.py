"""The benchmark of Gymnasium's own tasks makes the runs that its sides name, and none twice."""

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import first_tasks
from benchmarks.first_tasks import SEEDS, Job, jobs, main
from benchmarks.results import append
from teacher.teach import parse_arguments


def test_each_side_is_a_command() -> None:
    made = list(jobs(["Hopper-v5"], list(first_tasks.SIDES), SEEDS))
    assert len(set(made)) == len(made) == len(SEEDS) * len(first_tasks.SIDES)
    configs = {job.side: parse_arguments(job.options("runs")).config for job in made if job.side != "random"}
    assert {side: config.fixed_horizon for side, config in configs.items()} == {
        "rl": None,
        "variable": None,
        "absorb": "absorb",
        "restart": "restart",
        "unhealthy": None,
    }
    assert {job.labels for job in made if job.side in ("random", "rl")} == {0}


def test_a_run_is_made_once_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    returns = {"random": 20.0, "rl": 120.0, "absorb": 70.0}
    made: list[Job] = []

    def make(job: Job) -> dict[str, float]:
        made.append(job)
        return {"return": returns[job.side], "ties": 0.25}

    monkeypatch.setattr(first_tasks, "make", make)
    results = tmp_path / "results.jsonl"
    line = ["--task", "CartPole-v1", "--side", *returns, "--seeds", "1", "2", "--results", str(results)]
    job = Job("CartPole-v1", "rl", seed=1, steps=first_tasks.TASKS["CartPole-v1"], labels=0)
    append(results, {**asdict(job), "return": 120.0})
    assert main(line) == main(line) == 0
    assert len(made) == 5
    row = next(row for row in capsys.readouterr().out.splitlines() if "absorb *" in row)
    assert "70 (70 to 70), 2" in row
    assert "0.50" in row
    assert "25%" in row
