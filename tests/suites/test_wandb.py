"""Tracking with Weights & Biases in offline mode; ``make test-tracking`` runs this file."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.suites.tracked import (
    RUN,
    Points,
    assert_trains_untracked,
    stopped_and_resumed,
    tensorboard_points,
    videos,
)
from tests.waiting import free_port

_BLOCK = 32 * 1024
_LAST_PARTS = (1, 4)


def records(path: Path) -> Iterator[Any]:
    """Read the records of a .wandb file, which is a log in LevelDB's format after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in _LAST_PARTS:
            yield Record.FromString(parts)
            parts = b""


def value_of(items: Any) -> dict[str, Any]:
    """Items of a configuration or of one step, by key."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_a_run_is_tracked_offline_across_ctrl_c_and_resume(tmp_path: Path) -> None:
    said = stopped_and_resumed(tmp_path, "wandb", {"WANDB_MODE": "offline"})
    assert "Weave" not in said
    files = sorted((tmp_path / RUN / "wandb").glob("offline-run-*/*.wandb"))
    run_id = json.loads((tmp_path / RUN / "config.json").read_text())["run_id"].replace("-", "")
    assert [file.name for file in files] == [f"run-{run_id}.wandb"] * 2
    points: Points = {}
    captions, artifacts, settings = [], [], dict[str, Any]()
    for record in (record for file in files for record in records(file)):
        settings |= value_of(record.run.config.update)
        artifacts += [record.artifact.name] * record.HasField("artifact")
        row = value_of(record.history.item)
        captions += [value for key, value in row.items() if key == "videos/episode/caption"]
        logged = {tag: value for tag, value in row.items() if not tag.startswith(("_", "videos/"))}
        points |= {(tag, row["_step"]): value for tag, value in logged.items()}
    assert points == pytest.approx(tensorboard_points(tmp_path), rel=1e-6)
    assert settings["reward.hidden"] == 8
    assert captions == [f"step {int(name[5:14]):,}" for name in videos(tmp_path)]
    assert artifacts == ["ShortReacher-v1-tracked-checkpoint", "ShortReacher-v1-tracked-predictor"]
    # Neither the command line nor the console, which may show invitations.
    names = {path.name for path in (tmp_path / RUN / "wandb").rglob("*")}
    assert names.isdisjoint({"wandb-metadata.json", "output.log", "diff.patch"})


def test_without_an_account_a_run_trains_untracked(tmp_path: Path) -> None:
    assert_trains_untracked(tmp_path, "wandb", "run wandb login, or set WANDB_MODE=offline", {})


def test_without_its_server_a_run_trains_untracked(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    variables = {"WANDB_BASE_URL": url, "WANDB_API_KEY": "0" * 40}
    assert_trains_untracked(tmp_path, "wandb", url, variables)
