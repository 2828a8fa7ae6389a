"""The benchmark of episode ends fits what each side names."""

import pytest

from benchmarks import episode_ends
from benchmarks.episode_ends import make, table


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
