"""Benchmarks in their shortest form, from the first step to the published table.

They train and measure for real, which takes a minute: ``make test-benchmarks`` runs them. What the scripts
refuse, keep, compute and show is tested in tests/benchmarks.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from django.contrib.auth.models import User
from PIL import Image
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from benchmarks import agents_return, bpref, crowd, first_command, reward_claims, teaching
from benchmarks.results import append, load
from benchmarks.teaching_points import Point, line_of, point_of
from human_feedback_site.feedback.services.accounts import create_token
from teacher.settings.options import RewardConfig

ROOT = Path(__file__).parents[2]


def test_our_side_is_measured_from_recipe_to_store(tmp_path: Path) -> None:
    results, picture = tmp_path / "results.json", tmp_path / "clips.png"
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.clips", "--quick", "--sides", "teacher"),
            *("--json", str(results), "--picture", str(picture)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "2 workers / 1 worker" in ended.stdout
    measured = json.loads(results.read_text())
    first, (pair,) = measured["first"]["teacher"], measured["pair"]["teacher"]
    # This process alone, which only asks and uploads, uses a third of that.
    assert 0.06 < pair["cpu"] < first["cpu"]
    assert measured["quality"]["teacher"]["luma"] > 38
    assert {workers: len(costs) for workers, costs in measured["throughput"].items()} == {"1": 1, "2": 1}
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("side", first_command.SIDES)
def test_refusals_of_the_first_command_work(side: str) -> None:
    result = first_command.try_side("FrozenLake-v1", side)
    assert [one["status"] for one in result["tries"]] == [2, 0]
    assert result["outcome"] == "corrected"
    assert result["tries"][1]["segment"] == 6
    assert "absorb" in result["tries"][1]["command"]


def test_bpref_makes_missing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plot = tmp_path / "results.jsonl", tmp_path / "plot.png"
    command = ["--env", "Pendulum-v1", "--side", "ppo", "ppo-ours", "--labels", "8", "--steps", "8192"]
    command += ["--seeds", "1", "--runs", str(tmp_path), "--results", str(path), "--plot", str(plot)]
    assert bpref.main(command) == 0
    assert [(job.side, job.teacher, job.labels) for job in map(bpref.job_of, load(path))] == [
        ("ppo", "", 0),
        ("ppo-ours", "oracle", 8),
    ]
    assert [line["asked"] for line in load(path)] == [0, 8]
    assert all(-2000 < line["return"] < 0 and line["curve"][-1] < 0 for line in load(path))
    shown = capsys.readouterr().out
    assert "| PPO, our default | oracle | 8 | 1 | -" in shown
    with Image.open(plot) as picture:
        assert picture.width > 800
    assert bpref.main([*command, "--show"]) == 0
    assert len(load(path)) == 2


@pytest.mark.parametrize("side", agents_return.SIDES)
def test_both_sides_of_agents_return_train_sac(side: str) -> None:
    outcome = agents_return.run(agents_return.Job("Pendulum-v1", "sac", side, seed=1, steps=1200))
    assert -2000 < outcome["return"] < 0
    assert any(point is not None and -2000 < point < -500 for point in outcome["curve"])


def test_teaching_makes_missing_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    kept = line_of(Point("Reacher", "random", 0, 2000, 1), {"return": -9.5})
    append(path, kept)
    command = ["--task", "Reacher", "--side", "random", "oracle", "--variant", "long: segment_steps=99"]
    command += ["--labels", "8", "--steps", "2000", "--seeds", "1", "--results", str(path)]
    assert teaching.main(command) == 1
    told = capfd.readouterr().out
    assert "Reacher long 8, seed 1: failed: " in told
    assert "pass --segment_steps 50 or less" in told
    assert "| oracle | 8 | 1 |" in told
    first, oracle = load(path)
    assert first == kept
    assert point_of(oracle) == Point("Reacher", "oracle", 8, 2000, 1)
    assert oracle["command"] == Point("Reacher", "oracle", 8, 2000, 1).command()
    assert oracle["asked"] == 8
    assert len(oracle["accuracy"]) == 4
    assert min(oracle["accuracy"]) > 0.3
    assert all(-1 <= oracle[name] <= 1 for name in ("spearman", "late_spearman", "pearson"))
    assert -50 < oracle["return"] < 0
    assert oracle["curve"][-1] is not None


def test_frames_are_read_averaged_and_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_claims, "MEMORY", {"Breakout": 72})
    monkeypatch.setattr(reward_claims, "FRAME_LABELS", 8)
    monkeypatch.setitem(reward_claims.SEGMENT_STEPS, "frames", 3)
    figures = reward_claims.frames(1, reward_claims.Fit(RewardConfig(members=1, batch_size=2), max_updates=1))
    assert list(figures) == [
        f"Breakout, {name}"
        for name in ("averaged, minutes", "averaged", "as they are, minutes", "as they are")
    ]
    assert np.isfinite(list(figures.values())).all()


@pytest.mark.django_db(transaction=True)
def test_a_crew_of_bots_is_weighed_and_its_adversary_stopped(
    live_server: LiveServer, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(crowd.RULES, "stop_failures", 3)  # there are not pairs enough for more
    settings.TEACHER_STORAGE = str(tmp_path)
    token = create_token(User.objects.create(username="ada", is_staff=True))
    measured = crowd.measure(crowd.site_at(live_server.url, token, tmp_path), seed=3, comparisons=40, gold=20)
    assert measured.adversary_stopped
    assert crowd.ADVERSARY in measured.stopped
    assert measured.adversary_answers <= 30
    assert measured.weighed >= measured.single
    assert "points more often than single labels" in crowd.report([measured])
