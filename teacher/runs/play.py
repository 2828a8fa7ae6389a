"""Functions that play episodes with a run's policy and make videos with predicted rewards."""

from functools import partial
from itertools import islice
from pathlib import Path

from teacher.clips.encode import encode
from teacher.clips.render import CLIP_SIZE, ClipSpec, frames_of
from teacher.data.segments import Segment, slice_of
from teacher.envs.random_episodes import policy_trajectories
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError
from teacher.runs.reward_plots import RewardTrace, draw_rewards, film_rewards
from teacher.runs.saved_run import SavedRun


def play_episodes(run: SavedRun, count: int, seed: int, *, sampled: bool = False) -> list[Trajectory]:
    """Play episodes with a run's policy and return them in ascending order of true return.

    Args:
        sampled: True to sample actions, as in training; False to take the most likely actions.

    Raises:
        ConfigError: the run's folder does not contain a run.
        DataError: the run has no checkpoint yet.
        AgentError: the checkpoint is from a different environment.
    """
    act = partial(run.load_agent().act, deterministic=not sampled)
    episodes = policy_trajectories(run.task, seed, act, num_envs=min(count, 8))
    return sorted(islice(episodes, count), key=lambda episode: episode.true_return)


def cut(episode: Trajectory, start: int, steps: int | None) -> Segment:
    """Return a slice of at most ``steps`` steps from an episode, starting at step ``start``.

    If ``steps`` is None, the slice runs to the end of the episode.

    Raises:
        DataError: ``start`` is out of range, or ``steps`` is less than 1.
    """
    stop = len(episode) if steps is None else min(start + steps, len(episode))
    if not 0 <= start < stop:
        raise DataError(f"--start must be from 0 to {len(episode) - 1}, the episode's last step, not {start}")
    return slice_of(episode, start, stop)


def show(run: SavedRun, clip: Segment, path: Path, *, rewards: bool) -> str:
    """Write a video of a segment, with a reward plot if ``rewards`` is True.

    If ``rewards`` is True and ``path`` ends in ``.png``, write an image instead: a strip of frames above the
    reward plot.

    Returns:
        One-line summary of the rewards; empty if ``rewards`` is False.

    Raises:
        ConfigError: matplotlib is not installed.
        DataError: the run has no predictor.
        RenderError, StorageError: the file cannot be rendered or written.
    """
    frames = frames_of(ClipSpec.of(clip))
    if not rewards:
        encode(frames, path, run.task.fps, CLIP_SIZE)
        return ""
    trace = RewardTrace.of(run.load_predictor(), clip, run.task.fps)
    if path.suffix == ".png":
        draw_rewards(path, trace, list(frames), f"{run.config.env_id}, {run.config.name}")
    else:
        film_rewards(path, trace, frames)
    return trace.summary()
