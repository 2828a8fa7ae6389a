"""Episodes in transfer between programs."""

from collections.abc import Sequence
from dataclasses import dataclass

from teacher.data.demonstrations import Demonstrations
from teacher.data.steps import readable_part, require_finite
from teacher.datasets.trajectories.copies import about_episode
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError


@dataclass(frozen=True, eq=False)
class Recording:
    """Episodes and their origin.

    Attributes:
        episodes: in the order of the file; missing rewards are 0.
        env_id: Gymnasium id; None if the file has none.
        source: the file or folder, for error messages.
    """

    episodes: Sequence[Trajectory]
    env_id: str | None = None
    source: str = "the recording"


def as_demonstrations(recording: Recording) -> Demonstrations:
    """Return the episodes for behavior cloning, without final steps that led to NaN or infinity.

    Raises:
        DataError: there are no episodes, their observations or actions differ in shape, or other steps hold
            NaN or infinity.
    """
    episodes: list[Trajectory] = []
    for number, episode in enumerate(recording.episodes):
        with about_episode(number, recording.source):
            require_finite(episode)
            readable = readable_part(_in_rows(episode))
            if len(readable):
                _require_alike(readable, (episodes or [readable])[0])
                episodes.append(readable)
    if not episodes:
        raise DataError("expected at least one episode of one step, got none")
    return Demonstrations.of(episodes)


def _in_rows(episode: Trajectory) -> Trajectory:
    """Return the episode with scalar observations or actions as arrays of one number."""
    observations, actions = (
        array[:, None] if array.ndim == 1 else array for array in (episode.all_observations, episode.actions)
    )
    return Trajectory.from_arrays(observations, actions, episode.true_rewards, episode.terminated)


def _require_alike(episode: Trajectory, first: Trajectory) -> None:
    """Raise :class:`DataError` unless both episodes have observations and actions of the same shapes."""
    for name in ("observations", "actions"):
        found, expected = getattr(episode, name).shape[1:], getattr(first, name).shape[1:]
        if found != expected:
            raise DataError(f"expected {name} of shape {expected} as in the first episode, got {found}")
