"""When the policy starts over, that it does, and that a resumed run remembers what it compares to."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console

from teacher import ConfigError, TeachConfig, open_run, train
from teacher.data.checkpoint import CHECKPOINT_NAME, load_state
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig
from teacher.teach import main
from teacher.training.loop import Round
from teacher.training.resets import PolicyResets

SPACES = spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-1, 1, (2,), np.float32)


def make_predictor() -> RewardPredictor:
    return RewardPredictor(*SPACES, RewardConfig(inputs="state", model="linear"), seed=1)


@pytest.fixture
def segments(make_segment: Callable[..., Segment]) -> list[Segment]:
    return [make_segment(number) for number in range(120)]


def fitted(segments: list[Segment], component: int, sign: int = 1) -> RewardPredictor:
    """A predictor that likes large or small values of one component of the observations."""
    labels = PreferenceDataset()
    for number, (first, second) in enumerate(zip(segments[::2], segments[1::2], strict=True)):
        sums = [sign * each.observations[:, component].sum() for each in (first, second)]
        labels.upsert(
            [Preference(UUID(int=(number << 64) + number), first, second, float(sums[0] > sums[1]))]
        )
    predictor = make_predictor()
    predictor.fit(labels)
    return predictor


def pool_of(segments: list[Segment]) -> SegmentPool:
    pool = SegmentPool(len(segments[0]))
    pool.add(segments)
    return pool


def test_a_reset_is_due_once_for_each_change_of_the_reward(segments: list[Segment]) -> None:
    resets, pool = PolicyResets(0.5, make_predictor), pool_of(segments)
    up, down, other = (fitted(segments, *of) for of in ((0, 1), (0, -1), (1, 1)))
    due = [resets.due(each, pool) for each in (up, up, down, down, other, other, down)]
    assert due == [False, False, True, False, True, False, True]
    assert resets.count == 3


def test_too_few_segments_to_compare_or_a_threshold_of_0_reset_nothing(segments: list[Segment]) -> None:
    up, down = fitted(segments, 0), fitted(segments, 0, -1)
    for threshold, some in ((0.5, segments[:49]), (0.0, segments)):
        resets, pool = PolicyResets(threshold, make_predictor), pool_of(some)
        assert not any(resets.due(each, pool) for each in (up, down))
    resets = PolicyResets(0.5, make_predictor)
    resets.due(up, pool_of(segments))
    assert not resets.due(make_predictor(), pool_of(segments)), "all its rewards are equal"


def test_a_restored_state_has_the_same_reference(segments: list[Segment]) -> None:
    resets, restored, pool = *(PolicyResets(0.5, make_predictor) for _ in range(2)), pool_of(segments)
    restored.load_state_dict(resets.state_dict())
    assert restored.state_dict() == {}
    up, down = fitted(segments, 0), fitted(segments, 0, -1)
    resets.due(up, pool)
    resets.due(down, pool)
    restored.load_state_dict(resets.state_dict())
    assert restored.count == 1
    assert not restored.due(down, pool)
    assert restored.due(up, pool)


def make_config(tmp_path: Path, **changes: Any) -> TeachConfig:
    given = {
        "env_id": "Pendulum-v1", "predictor": "synth", "name": "x", "n_labels": 40, "segment_steps": 20,
        "num_timesteps": 12_000, "no_videos": True, "runs_dir": str(tmp_path), "policy_reset": 1.0,
        "reward": RewardConfig(model="linear"),
    }  # fmt: skip
    return TeachConfig(**{**given, **changes})


def test_a_run_starts_over_after_the_update_and_says_so(tmp_path: Path) -> None:
    said, counts, actors = io.StringIO(), list[float](), list[bytes]()

    def see(iteration: Round) -> None:
        counts.append(iteration.values["agent/resets"])
        actors.append(next(iteration.run.agent.policy.parameters()).detach().numpy().tobytes())

    with open_run(make_config(tmp_path), Console(file=said, width=200)) as run:
        start = next(run.agent.policy.parameters()).detach().numpy().tobytes()
        assert train(run, see)
    assert counts[-1] >= 1
    assert said.getvalue().count("The labels have changed the reward a lot") == counts[-1]
    resets = np.diff([0.0, *counts])
    assert [actor == start for actor in actors] == [bool(reset) for reset in resets]

    assert main(["--resume", str(run.config.run_dir), "-t", "16000", "-l", "60"]) == 0
    state = load_state(run.config.run_dir / CHECKPOINT_NAME)
    assert state["resets"]["count"] > counts[-1]


@pytest.mark.parametrize(("name", "value"), [("policy", "runs/other"), ("demonstrations", "a.npz")])
def test_a_warm_start_that_a_reset_would_discard_is_refused(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(
        ConfigError, match=r"policy_reset: can't be combined with --policy or --demonstrations"
    ):
        make_config(tmp_path, **{name: value})
