"""The replay buffer: a ring of transitions, in memory and in files, that survives a killed process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from numpy.typing import NDArray

from agents import replay
from agents.errors import StateMismatchError
from agents.replay import ReplayBuffer, Transitions

OBSERVATIONS, ACTIONS = Box(-np.inf, np.inf, (3,), np.float64), Box(-2, 2, (2,), np.float32)


def numbered(start: int, count: int) -> Transitions:
    """Make transitions whose every number tells their index."""
    index = np.arange(start, start + count, dtype=np.float64)
    return Transitions(
        np.repeat(index[:, None], 3, 1),
        np.repeat(index[:, None], 2, 1).astype(np.float32),
        np.repeat(index[:, None] + 0.5, 3, 1),
        -index,
        index % 5 == 0,
    )


def indices(transitions: Transitions) -> list[int]:
    """Return the indices of numbered transitions, and check that no row is mixed."""
    index: NDArray[Any] = transitions.observations[:, 0]
    assert (transitions.observations == index[:, None]).all()
    assert (transitions.actions == index[:, None]).all()
    assert (transitions.next_observations == index[:, None] + 0.5).all()
    assert (transitions.rewards == -index).all()
    assert (transitions.terminated == (index % 5 == 0)).all()
    found: list[int] = index.astype(int).tolist()
    return found


def make_buffer(capacity: int, folder: Path | None) -> ReplayBuffer:
    return ReplayBuffer(OBSERVATIONS, ACTIONS, capacity, folder)


@pytest.fixture(params=["memory", "files"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "replay" if request.param == "files" else None


@pytest.mark.parametrize("sizes", [[3, 4, 2], [10], [7, 7, 7], [25, 1]])
def test_the_last_transitions_are_kept(folder: Path | None, sizes: list[int]) -> None:
    buffer, added = make_buffer(10, folder), 0
    for size in sizes:
        buffer.add(numbered(added, size))
        added += size
    assert sorted(indices(buffer.transitions)) == list(range(max(0, added - 10), added))
    assert len(buffer) == min(10, added)


def test_transitions_are_sampled_uniformly(folder: Path | None) -> None:
    buffer = make_buffer(20, folder)
    buffer.add(numbered(0, 10))
    counts = np.bincount(indices(buffer.sample(20_000, np.random.default_rng(1))), minlength=10)
    assert counts.min() > 1800
    assert counts.max() < 2200


def test_rewards_are_relabeled_in_bulk(folder: Path | None) -> None:
    buffer = make_buffer(10, folder)
    buffer.add(numbered(0, 9))
    buffer.relabel(
        lambda observations, actions, following, ends: observations[:, 0] * 2 + following[:, 1] + ends
    )
    index = np.arange(9)
    assert (buffer.transitions.rewards == 3 * index + 0.5 + (index % 5 == 0)).all()


def test_state_is_restored(folder: Path | None) -> None:
    buffer = make_buffer(10, folder)
    buffer.add(numbered(0, 14))
    restored = make_buffer(10, folder)
    restored.load_state_dict(buffer.state_dict())
    restored.add(numbered(14, 3))
    assert sorted(indices(restored.transitions)) == list(range(7, 17))


@pytest.mark.parametrize("on_macos", [False, True])
def test_files_grow_off_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_macos: bool) -> None:
    if on_macos:
        monkeypatch.delattr("os.posix_fallocate")
    monkeypatch.setattr(replay, "_FIRST_ROWS", 4)
    buffer = make_buffer(100, tmp_path / "replay")
    assert not (tmp_path / "replay").exists()
    path = tmp_path / "replay" / "rewards.bin"
    buffer.add(numbered(0, 3))
    assert path.stat().st_size == 4 * 4
    buffer.add(numbered(3, 6))
    assert path.stat().st_size == 16 * 4
    assert buffer.state_dict() == {"added": 9}
    restored = make_buffer(100, tmp_path / "replay")
    restored.load_state_dict({"added": 9})
    assert indices(restored.transitions) == list(range(9))


def test_transitions_added_after_the_checkpoint_are_kept_and_torn_ones_replaced(tmp_path: Path) -> None:
    buffer = make_buffer(10, tmp_path)
    buffer.add(numbered(0, 10))
    state = buffer.state_dict()
    buffer.add(numbered(10, 3))
    columns = buffer.transitions
    columns.rewards[3:5] = np.nan  # a process killed while it wrote transitions 13 and 14
    columns.observations[3] = 13
    restored = make_buffer(10, tmp_path)
    restored.load_state_dict(state)
    assert set(indices(restored.transitions)) == {5, 6, 7, 8, 9, 10, 11, 12}


@pytest.mark.parametrize("damage", ["missing", "short", "other"])
def test_missing_transitions_are_refused(tmp_path: Path, damage: str) -> None:
    buffer = make_buffer(10, tmp_path)
    buffer.add(numbered(0, 9))
    state, path = buffer.state_dict(), tmp_path / "actions.bin"
    match damage:
        case "missing":
            path.unlink()
        case "short":
            path.write_bytes(b"x")
    fresh = make_buffer(10, None if damage == "other" else tmp_path)
    with pytest.raises(StateMismatchError, match=r"transitions; restore|no observations of shape"):
        fresh.load_state_dict(state)
