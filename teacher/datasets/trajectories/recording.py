"""Episodes read from a trajectory file, and their conversion to demonstrations."""

from collections.abc import Sequence
from dataclasses import dataclass

from teacher.data.demonstrations import Demonstrations
from teacher.data.steps import readable_part, require_finite
from teacher.datasets.trajectories.copies import about_episode
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError


@dataclass(frozen=True, eq=False)
class Recording:
    """Recorded episodes and where they come from.

    Attributes:
        episodes: episodes in file order; rewards are 0 if the file has none.
        source: file or folder that the episodes were read from, for error messages.
    """

    episodes: Sequence[Trajectory]
    env_id: str | None = None
    source: str = "the recording"


def as_demonstrations(recording: Recording) -> Demonstrations:
    """Convert recorded episodes to demonstrations for behavior cloning.

    An episode's last step is dropped if it led to a NaN or infinite observation.

    Raises:
        DataError: there are no episodes, the episodes' observations or actions have different shapes, or any
            other step contains NaN or infinite values.
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
        raise DataError(f"{recording.source} has no episode with at least one step")
    return Demonstrations.of(episodes)


def _in_rows(episode: Trajectory) -> Trajectory:
    """Add a trailing axis of length 1 to scalar observations and actions; leave others unchanged."""
    observations, actions = (
        array[:, None] if array.ndim == 1 else array for array in (episode.all_observations, episode.actions)
    )
    return Trajectory.from_arrays(observations, actions, episode.true_rewards, episode.terminated)


def _require_alike(episode: Trajectory, first: Trajectory) -> None:
    """Raise DataError if the episode's observation or action shape differs from the first episode's."""
    for name in ("observations", "actions"):
        found, expected = getattr(episode, name).shape[1:], getattr(first, name).shape[1:]
        if found != expected:
            raise DataError(f"the {name} have shape {found}, but the first episode's have shape {expected}")
