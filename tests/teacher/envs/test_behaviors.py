"""The behaviors that ship: on made-up motion, and on what the simulated bodies do."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from teacher.behaviors import backflip, counter_clockwise, headstand, windmill
from teacher.envs.episodes import replay
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import describe_task


def steps_of(observations: NDArray[Any]) -> Any:
    """Something that passes through these observations."""
    return SimpleNamespace(observations=observations[:-1], next_observations=observations[1:])


def hop(pitch: NDArray[Any], height: NDArray[Any] | float) -> Any:
    """A hopper with this pitch, forward positive, and height."""
    observations = np.zeros((len(pitch), 11))
    observations[:, 0], observations[:, 1] = height, pitch
    return steps_of(observations)


def reach(angle: NDArray[Any], radius: NDArray[Any] | float, target: tuple[float, float]) -> Any:
    """A reacher whose fingertip goes through these places."""
    observations = np.zeros((len(angle), 10))
    observations[:, 4:6] = target
    tip = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    observations[:, 8:10] = tip - target
    return steps_of(observations)


def test_a_flip_counts_more_the_higher_it_is() -> None:
    once_round = np.linspace(0.3, 0.3 - 2 * np.pi, 61)
    assert backflip(hop(once_round, 1.0)) == pytest.approx(2 * np.pi)
    assert backflip(hop(once_round, 0.25)) == pytest.approx(np.pi / 2)
    assert backflip(hop(once_round[::-1], 1.0)) == pytest.approx(-2 * np.pi)
    # The integral of 1 + sin(t) from 0 to 2 pi, to what sixty steps allow.
    assert backflip(hop(once_round, 1 + np.sin(0.3 - once_round))) == pytest.approx(2 * np.pi, rel=1e-3)


def test_the_fingertip_may_go_round_several_times() -> None:
    rounds = np.linspace(2.0, 2.0 + 6 * np.pi, 50)
    radius = np.linspace(0.05, 0.2, 50)
    assert counter_clockwise(reach(rounds, radius, (0.1, -0.1))) == pytest.approx(6 * np.pi)
    assert counter_clockwise(reach(rounds[::-1], radius, (0.0, 0.2))) == pytest.approx(-6 * np.pi)
    assert counter_clockwise(reach(np.full(5, 1.0), 0.1, (0.1, 0.1))) == 0.0


@pytest.mark.parametrize(
    ("env_id", "behavior"),
    [
        ("teacher/ShortHopper-v1", backflip),
        ("teacher/ShortReacher-v1", counter_clockwise),
        ("teacher/ShortCheetah-v1", headstand),
        ("Pendulum-v1", windmill),
    ],
)
def test_the_segments_of_an_episode_add_up_to_it(env_id: str, behavior: Callable[[Any], float]) -> None:
    (episode,) = itertools.islice(random_trajectories(describe_task(env_id), seed=1, num_envs=1), 1)
    half = len(episode) // 2
    observations = episode.all_observations
    halves = steps_of(observations[: half + 1]), steps_of(observations[half:])
    assert sum(map(behavior, halves)) == pytest.approx(behavior(episode), abs=1e-9)


def test_a_flip_is_what_the_simulated_torso_does() -> None:
    """The torso's own axes say which way it turned: backward takes its top from +z towards -x."""
    (episode,) = itertools.islice(random_trajectories(describe_task("teacher/ShortHopper-v1"), 1, 1), 1)
    places = [
        (step.env.unwrapped.data.body("torso").xpos[2], *step.env.unwrapped.data.body("torso").xmat[[2, 8]])  # type: ignore[attr-defined]
        for step in replay(episode.recipe())
    ]
    height, top_x, top_z = np.array(places).T
    backward = np.unwrap(np.arctan2(-top_x, top_z))
    expected = ((height[1:] + height[:-1]) / 2) @ np.diff(backward)
    first = hop(episode.observations[:2, 1], episode.observations[:2, 0])  # which the replay does not show
    assert abs(expected) > 1
    # After a step MuJoCo's frames are those of a moment before.
    assert backflip(episode) == pytest.approx(expected + backflip(first), abs=1e-3)


def test_counter_clockwise_is_what_the_simulated_fingertip_does() -> None:
    (episode,) = itertools.islice(random_trajectories(describe_task("teacher/Reacher-v1"), 3, 1), 1)
    tips = np.array(
        [step.env.unwrapped.get_body_com("fingertip")[:2].copy() for step in replay(episode.recipe())]  # type: ignore[attr-defined]
    )
    (x, y), (next_x, next_y) = tips[:-1].T, tips[1:].T
    expected = np.arctan2(x * next_y - y * next_x, x * next_x + y * next_y).sum()
    first = steps_of(episode.observations[:2])
    assert counter_clockwise(episode) == pytest.approx(expected + counter_clockwise(first), abs=1e-3)


def test_a_cheetah_on_its_head_has_its_nose_down() -> None:
    """Its own axes say so: +x of the torso, where the head is, points to the ground."""
    (episode,) = itertools.islice(random_trajectories(describe_task("teacher/ShortCheetah-v1"), 1, 1), 1)
    noses = [step.env.unwrapped.data.body("torso").xmat[6] for step in replay(episode.recipe())]  # type: ignore[attr-defined]
    assert np.ptp(noses) > 0.3
    # The behavior looks at the observation before each step, the replay shows what comes after.
    expected = np.sin(episode.observations[0, 1]) - np.sum(noses[:-1])
    assert headstand(episode) == pytest.approx(expected, abs=0.5)


def test_a_windmill_turns_by_the_angle_between_its_first_and_its_last_direction() -> None:
    (episode,) = itertools.islice(random_trajectories(describe_task("Pendulum-v1"), 1, 1), 1)
    observations = episode.all_observations
    angle = np.unwrap(np.arctan2(observations[:, 1], observations[:, 0]))
    assert windmill(episode) == pytest.approx(angle[-1] - angle[0], abs=1e-3)
