"""The benchmarks that teach make what is missing, measure what they say, and tell how to repeat it."""

import json
import shlex
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import first_command, first_tasks, moving_dot
from benchmarks.first_command import (
    GAMES,
    RESULTS,
    environments,
    missing,
    newest,
)
from benchmarks.first_tasks import SEEDS, Job, jobs
from benchmarks.results import append, load
from benchmarks.short_hopper import Outcomes, Play, config_of, load_outcomes
from benchmarks.teaching import build_parser, main, select
from benchmarks.teaching_plots import LABELS_NAME, RETURNS_NAME, draw, spread
from benchmarks.teaching_points import SIDES, TASKS, Point, Selection, Task, line_of, parse_variant
from benchmarks.teaching_report import as_markdown, rows
from benchmarks.teaching_run import accuracy_by_margin, held_out, make
from docs.result_pages import result_pages
from teacher.data.segment_pool import SegmentPool
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import describe_task
from teacher.queries.selection import AT_RANDOM
from teacher.teach import parse_arguments

STEPS = TASKS["Pendulum"].steps


def result(side: str, seed: int, reached: float, labels: int = 0, options: str = "") -> dict[str, Any]:
    point = Point("Pendulum", side, labels, STEPS, seed, options)
    curve = {} if side == "random" else {"curve": [None, *[reached / 2] * 19]}
    return line_of(point, {"return": reached, **curve})


def test_a_variant_that_reads_the_state_after_a_step_is_judged() -> None:
    point = Point("Reacher", "after", 8, 2000, 1, "reward.inputs=state,next_state")
    after = line_of(point, make(point))
    assert (after["side"], len(after["accuracy"])) == ("after", 4)


def test_options_that_teach_refuses_are_refused_before_any_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--variant", "none: reward.members=0"])
    assert "--reward.members: expected 1 or more; got 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--side", "imitation"])
    assert "--imitation PYTHON" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["no options", "name:", ": a=1", "oracle: reward.members=5"])
def test_a_variant_has_a_name_of_its_own_and_options(text: str) -> None:
    with pytest.raises(ValueError, match="a new name"):
        parse_variant(text)


@pytest.mark.parametrize(
    "point",
    [
        Point("Hopper", "random", 0, 1_000_000, 3),
        Point("Cheetah", "oracle", 1400, 1_000_000, 1),
        Point("Reacher", "paper", 350, 7, 2),
        Point("Pendulum", "imitation", 50, 100_000, 8),
        Point("Pendulum", "two words", 50, 100, 12, "reward.members=5 reward.hidden=32"),
    ],
)
def test_the_command_of_a_point_repeats_it(point: Point) -> None:
    python, *words = shlex.split(point.command())
    assert [python, *words[:2]] == ["python", "-m", "benchmarks.teaching"]
    assert select(build_parser().parse_args(words[2:])) == [point]


@pytest.mark.parametrize("task", TASKS.values())
def test_episodes_of_a_task_hold_a_segment_and_its_runs_many_episodes(task: Task) -> None:
    described = describe_task(task.env_id)
    assert described.env_id == task.env_id
    assert 3 * described.fps <= 2 * described.horizon
    assert task.steps >= 400 * described.horizon
    assert task.standard in task.budgets


def test_by_default_the_oracle_has_every_budget_and_the_others_the_standard_one() -> None:
    points = list(Selection(tasks=["Cheetah", "Pendulum"], sides=SIDES).points())
    assert {point.labels for point in points if point.side == "oracle" and point.task == "Cheetah"} == {
        *(50, 100, 350, 700)
    }
    assert {point.labels for point in points if point.side == "coin"} == {700, 200}
    assert {point.task for point in points if point.side == "imitation"} == {"Pendulum"}
    assert {point.seed for point in points if point.task == "Pendulum"} == set(range(1, 9))
    assert len(points) == len(set(points))


def test_sides_are_settings_of_teach(tmp_path: Path) -> None:
    configs = {
        side: Point("Pendulum", side, 200, 100, 1).config(str(tmp_path))
        for side in SIDES
        if side not in ("random", "imitation")
    }
    assert configs["rl"].predictor == "rl"
    assert configs["oracle"].teacher == "oracle"
    assert configs["coin"].teacher == "mistake:0.5"
    assert configs["uniform"].queries == AT_RANDOM
    assert configs["pretraining"].n_labels == configs["pretraining"].num_pretrain_labels == 50
    variant = Point("Pendulum", "narrow", 200, 100, 1, "reward.hidden=8 allow_variable_horizon")
    assert variant.config(str(tmp_path)).reward.hidden == 8
    assert variant.config(str(tmp_path)).allow_variable_horizon


def test_f_is_the_share_of_the_way_from_random_actions_to_the_true_reward() -> None:
    results = [result("random", seed, -1000.0 - seed) for seed in (0, 1, -1)]
    results += [result("rl", seed, -200.0 - seed) for seed in (0, 1, -1)]
    results += [result("oracle", seed, -400.0 - 40 * seed, labels=50) for seed in (0, 1, -1)]
    results += [result("five", 1, -300.0, labels=50, options="reward.members=5")]
    random, rl, oracle, five = rows(results)
    assert (random.f, rl.f) == (None, None)
    assert oracle.f is not None
    assert oracle.f.value == pytest.approx(600 / 800)
    low, high = oracle.f.bounds
    assert 0.69 < low < 0.75 < high < 0.81
    assert oracle.worst == pytest.approx(560 / 800)
    assert oracle.area is not None
    assert oracle.area.value == pytest.approx((-200 + 1000) / (-100 + 1000))
    assert five.f is not None
    assert five.f.value == pytest.approx(700 / 800)
    assert as_markdown(five).startswith("| five | 50 | 1 | -300 (-300 to -300) | 0.88 (0.87 to 0.88)")


def test_only_requested_tasks_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    for task in ("Pendulum", "Reacher", "Ant"):
        append(path, line_of(Point(task, "random", 0, STEPS, 1), {"return": -1.0}))
    command = ["--show", "--results", str(path)]
    told = [
        main([*command, *words]) or capsys.readouterr().out for words in ([], ["--task", "Ant", "Reacher"])
    ]
    shown = [[task for task in TASKS if f"{task}: " in text] for text in map(str, told)]
    assert shown == [["Pendulum", "Reacher", "Ant"], ["Reacher", "Ant"]]


def test_runs_of_another_length_are_not_compared() -> None:
    short = Point("Pendulum", "oracle", 50, 10, 1)
    results = [result("random", 1, -1000.0), result("rl", 1, -200.0), line_of(short, {"return": -500.0})]
    assert next(row for row in rows(results) if row.steps == 10).f is None


def test_accuracy_is_told_by_quartile_of_the_margin() -> None:
    true = np.arange(100.0)
    rng = np.random.default_rng
    assert accuracy_by_margin(true, 2 * true - 5, rng(0)) == [1.0] * 4
    assert accuracy_by_margin(true, -true, rng(0)) == [0.0] * 4
    blurred = accuracy_by_margin(true, np.floor(true / 10), rng(0))  # ties count as "the second is better"
    assert 0.6 < blurred[0] < 1
    assert blurred[1:] == [1.0] * 3


def test_pairs_of_equal_true_returns_do_not_count() -> None:
    true = np.repeat([0.0, 1.0], 50)
    assert accuracy_by_margin(true, true, np.random.default_rng(0)) == [1.0] * 4


def test_segments_that_share_a_step_with_one_asked_about_are_not_held_out() -> None:
    episodes = list(islice(random_trajectories(describe_task("Pendulum-v1"), seed=1), 2))
    pools = [SegmentPool(20, capacity=1000, seed=seed) for seed in (1, 2)]
    for pool in pools:
        pool.extend(episodes)
    asked = pools[0].segments[3]
    held = held_out(pools[1].segments, [asked])
    steps = set(range(asked.start, asked.start + 20))

    def shares(segment: Any) -> bool:
        return segment.recipe.seed == asked.recipe.seed and bool(
            steps & set(range(segment.start, segment.start + 20))
        )

    assert held == [segment for segment in pools[1].segments if not shares(segment)]
    assert len(pools[1]) - 2 <= len(held) < len(pools[1])


def test_labels_in_a_picture_keep_apart_and_stay_near() -> None:
    assert spread([0.1, 0.5, 0.9], 0.2) == pytest.approx([0.1, 0.5, 0.9])
    assert spread([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert spread([0.0, 0.5, 0.55, 0.9], 0.1) == pytest.approx([0.0, 0.475, 0.575, 0.9])


def test_both_pictures_are_drawn_from_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    for seed in (1, 2, 3):
        for side, reached, labels in [("random", -1200.0, 0), ("rl", -200.0, 0), ("oracle", -300.0, 50)]:
            append(path, result(side, seed, reached + seed, labels))
    folder = tmp_path / "made" / "anew"
    assert draw(list(rows(load(path))), folder) == [folder / RETURNS_NAME, folder / LABELS_NAME]
    assert all((folder / name).stat().st_size > 5000 for name in (RETURNS_NAME, LABELS_NAME))
    others = [each | {"side": "action"} if each["side"] == "oracle" else each for each in load(path)]
    assert draw(list(rows(others)), tmp_path) == [], "none of these sides is marked"
    assert draw([], tmp_path) == []
    assert draw(list(rows(load(path)[:3])), tmp_path) == [], "one run of each side says too little"


def test_outcomes_are_kept_and_half_a_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    assert load_outcomes(path) == []
    kept = [Outcomes("synth", seed, Play(900.0 + seed, 1.5, 1.2), 300, 0.9) for seed in (1, 2)]
    for outcome in kept:
        append(path, asdict(outcome))
    assert load_outcomes(path) == kept
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SystemExit, match=r"outcomes\.jsonl line 2: not a JSON object; remove the line"):
        load_outcomes(path)


def test_the_settings_of_each_side_are_accepted() -> None:
    configs = [config_of(side, 1, 300_000, Path("runs")) for side in ("rl", "synth", "coin")]
    assert [config.n_labels for config in configs] == [None, 300, 300]


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
    assert first_tasks.main(line) == first_tasks.main(line) == 0
    assert len(made) == 5
    row = next(row for row in capsys.readouterr().out.splitlines() if "absorb *" in row)
    assert "70 (70 to 70), 2" in row
    assert "0.50" in row
    assert "25%" in row


def test_the_settings_of_the_moving_dots_sides_are_accepted() -> None:
    configs = [moving_dot.config_of(side, 1, 8_000, Path("runs")) for side in moving_dot.SIDES]
    assert [(config.predictor, config.n_labels) for config in configs] == [("rl", None), ("synth", 100)]


def test_newest_versions_of_all_packages_are_tried() -> None:
    assert newest(["A-v1", "A-v10", "B-v0", "A-v2", "none"]) == ["A-v10", "B-v0"]
    found = environments()
    assert {"Hopper-v5", "Taxi-v4", "Blackjack-v1"} <= set(found)
    assert "Hopper-v4" not in found
    assert len([env_id for env_id in found if env_id.startswith("ale_py:ALE/")]) == GAMES
    assert len([env_id for env_id in found if env_id.startswith("minigrid:MiniGrid-")]) > 50
    assert not any(env_id.startswith("teacher/") for env_id in found)


def tried(env_id: str, side: str, *statuses: int, said: str = "") -> dict[str, Any]:
    commands = [f"teach -e {env_id}", f"teach -e {env_id} --max_episode_steps 9"]
    tries = [
        {"command": command, "status": status, "segment": 4, "said": said}
        for command, status in zip(commands, statuses, strict=False)
    ]
    outcome = "trains" if statuses == (0,) else "corrected" if statuses[-1] == 0 else "refused"
    return {"env_id": env_id, "side": side, "tries": tries, "outcome": outcome, "seconds": 1.0}


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    for env_id in environments()[:-1]:
        for side in first_command.SIDES:
            append(path, tried(env_id, side, 0))
    last = environments()[-1]
    assert list(missing(load(path))) == [(last, "teach"), (last, "wrapper")]


def test_the_page_says_what_came_of_it(tmp_path: Path) -> None:
    results, docs = tmp_path / "results.jsonl", tmp_path / "page.md"
    for one in (
        tried("A-v0", "teach", 0),
        tried("minigrid:B-v0", "teach", 2, 0),
        tried("minigrid:C-v0", "teach", 2, 0),
        tried("D-v0", "teach", 2, said="no | actions"),
    ):
        append(results, one)
    assert first_command.main(["--show", "--results", str(results), "--docs", str(docs)]) == 0
    said = docs.read_text()
    assert "- **teach**: of 4 environments 1 train, 2 train after Enter, 1 are" in said
    assert "| `A-v0` | trains, segments of 4 |  |" in said
    assert "| `B-v0` `C-v0` | trains with `--max_episode_steps 9`, segments of 4 |  |" in said
    assert "| `D-v0` | refused: no / actions |  |" in said


def test_the_published_page_is_that_of_the_published_results() -> None:
    assert result_pages()["first-command"] == first_command.page(load(RESULTS))
    assert all(set(json.loads(line)) >= {"env_id", "side"} for line in RESULTS.read_text().splitlines())
