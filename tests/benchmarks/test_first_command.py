"""The sweep of first commands: one real try of each side, and the page that is made of the results."""

import json
from pathlib import Path
from typing import Any

from benchmarks.first_command import (
    GAMES,
    RESULTS,
    SIDES,
    environments,
    main,
    missing,
    newest,
    page,
)
from benchmarks.results import append, load
from docs.result_pages import result_pages


def test_newest_versions_of_all_packages_are_tried() -> None:
    assert newest(["A-v1", "A-v10", "B-v0", "A-v2", "none"]) == ["A-v10", "B-v0"]
    found = environments()
    assert {"Hopper-v5", "Taxi-v4", "Blackjack-v1"} <= set(found)
    assert "Hopper-v4" not in found
    assert len([env_id for env_id in found if env_id.startswith("ale_py:ALE/")]) == GAMES
    assert len([env_id for env_id in found if env_id.startswith("minigrid:MiniGrid-")]) > 50
    assert not any(env_id.startswith("teacher/") for env_id in found)


def result(env_id: str, side: str, *statuses: int, said: str = "") -> dict[str, Any]:
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
        for side in SIDES:
            append(path, result(env_id, side, 0))
    last = environments()[-1]
    assert list(missing(load(path))) == [(last, "teach"), (last, "wrapper")]


def test_the_page_says_what_came_of_it(tmp_path: Path) -> None:
    results, docs = tmp_path / "results.jsonl", tmp_path / "page.md"
    for one in (
        result("A-v0", "teach", 0),
        result("minigrid:B-v0", "teach", 2, 0),
        result("minigrid:C-v0", "teach", 2, 0),
        result("D-v0", "teach", 2, said="no | actions"),
    ):
        append(results, one)
    assert main(["--show", "--results", str(results), "--docs", str(docs)]) == 0
    said = docs.read_text()
    assert "- **teach**: of 4 environments 1 train, 2 train after the suggested correction, 1 are" in said
    assert "| `A-v0` | trains, segments of 4 |  |" in said
    assert "| `B-v0` `C-v0` | trains with `--max_episode_steps 9`, segments of 4 |  |" in said
    assert "| `D-v0` | refused: no / actions |  |" in said


def test_the_published_page_is_that_of_the_published_results() -> None:
    assert result_pages()["first-command"] == page(load(RESULTS))
    assert all(set(json.loads(line)) >= {"env_id", "side"} for line in RESULTS.read_text().splitlines())
