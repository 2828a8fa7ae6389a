"""Play episodes of a run's policy, and film them with the rewards its predictor gives."""

from functools import partial
from itertools import islice
from pathlib import Path

from teacher.clips.encode import encode
from teacher.clips.render import CLIP_SIZE, ClipSpec, frames_of
from teacher.data.segments import Segment, slice_of
from teacher.envs.random_episodes import policy_trajectories
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError
from teacher.training.reward_plots import RewardTrace, draw_rewards, film_rewards
from teacher.training.saved_run import SavedRun


def play_episodes(run: SavedRun, count: int, seed: int, *, sampled: bool = False) -> list[Trajectory]:
    """Episodes of a run's policy in its environment, from the lowest true return to the highest.

    Args:
        run: whose.
        count: how many.
        seed: of the episodes.
        sampled: draw the actions as in training, instead of the most likely ones.

    Raises:
        ConfigError: the folder is no run's.
        DataError: it has no checkpoint yet.
        AgentError: the checkpoint is of another environment.
    """
    act = partial(run.load_agent().act, deterministic=not sampled)
    episodes = policy_trajectories(run.task, seed, act, num_envs=min(count, 8))
    return sorted(islice(episodes, count), key=lambda episode: episode.true_return)


def cut(episode: Trajectory, start: int, steps: int | None) -> Segment:
    """A part of an episode, all of it where ``steps`` is None.

    Raises:
        DataError: it has no such part.
    """
    stop = len(episode) if steps is None else min(start + steps, len(episode))
    if not 0 <= start < stop:
        raise DataError(
            f"expected a --start of 0 to {len(episode) - 1}, the steps of the episode, got {start}"
        )
    return slice_of(episode, start, stop)


def show(run: SavedRun, clip: Segment, path: Path, *, rewards: bool) -> str:
    """Write a clip as a film (``.mp4``), or as a picture with its rewards (``.png``); what they are, if any.

    Raises:
        ConfigError: matplotlib is not installed.
        DataError: the run has no predictor to ask for rewards.
        RenderError, StorageError: it cannot be drawn or written.
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
