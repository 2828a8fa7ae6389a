"""Episodes as one program gives them to another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.data.demonstrations import Demonstrations
from teacher.data.steps import readable_steps, require_finite
from teacher.datasets.trajectories.copies import about_episode
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError


@dataclass(frozen=True, eq=False)
class Recording:
    """Episodes, and where they come from.

    Attributes:
        episodes: in the order of the file; what rewards it does not hold are 0.
        env_id: of Gymnasium; None where the file does not say.
        source: the file or folder, to be named.
    """

    episodes: Sequence[Trajectory]
    env_id: str | None = None
    source: str = "the recording"


def as_demonstrations(recording: Recording) -> Demonstrations:
    """The same episodes for behaviour cloning, each without a last step that led to what is no number.

    Raises:
        DataError: there are none, or one has observations or actions of another shape than the others, or
            what is no number elsewhere.
    """
    episodes: list[Trajectory] = []
    for number, episode in enumerate(recording.episodes):
        with about_episode(number, recording.source):
            require_finite(episode)
            readable = _readable(episode)
            if len(readable):
                _require_alike(readable, (episodes or [readable])[0])
                episodes.append(readable)
    if not episodes:
        raise DataError("expected at least one episode of one step, got none")
    ended = [episode.terminated for episode in episodes]
    lengths = [len(episode) for episode in episodes]
    starts = np.zeros(sum(lengths), np.bool_)
    starts[np.cumsum([0, *lengths[:-1]])] = True
    return Demonstrations(
        _columns([episode.observations for episode in episodes]),
        _columns([episode.actions for episode in episodes]),
        np.concatenate([episode.true_rewards for episode in episodes]),
        np.array([episode.true_rewards.sum() for episode in episodes]),
        starts,
        _columns([episode.final_observation[None] for episode in episodes]),
        None if None in ended else np.array(ended, np.bool_),
    )


def _require_alike(episode: Trajectory, first: Trajectory) -> None:
    """Raise :class:`DataError` unless both are of the same spaces."""
    for name in ("observations", "actions"):
        found, expected = getattr(episode, name).shape[1:], getattr(first, name).shape[1:]
        if found != expected:
            raise DataError(f"expected {name} of shape {expected} as in the first, got {found}")


def _readable(episode: Trajectory) -> Trajectory:
    steps = readable_steps(episode)
    if steps == len(episode):
        return episode
    return Trajectory.from_arrays(
        episode.all_observations[: steps + 1], episode.actions[:steps], episode.true_rewards[:steps]
    )


def _columns(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One after another; single numbers become arrays of one, as demonstrations have them."""
    whole = np.concatenate(parts)
    return whole[:, None] if whole.ndim == 1 else whole
