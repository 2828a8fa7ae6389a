"""``teach play RUN``: see what the policy of a run does, and what its predictor thinks of that."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from agents.errors import AgentError
from teacher.arguments import OneLineParser, as_whole_number, report_errors
from teacher.checks import COUNT, SEED, whole_number
from teacher.clips.encode import Frame, encode
from teacher.clips.render import CLIP_SIZE, Shot, Stage, captured
from teacher.envs.episodes import Trajectory
from teacher.envs.random_episodes import policy_trajectories
from teacher.errors import ConfigError, DataError, counted
from teacher.reward_plots import RewardTrace, draw_rewards, film_rewards
from teacher.saved_run import SavedRun
from teacher.segments import Segment, slice_of

FILE_NAME = "play.mp4"


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


def frames_of(shot: Shot, size: int = CLIP_SIZE) -> Iterator[Frame]:
    """A picture after each step of a shot.

    Raises:
        ReplayMismatchError: it does not come out as it was recorded.
        RenderError: the environment cannot be drawn.
    """
    if shot.frames is not None:
        yield from captured(shot.frames)
        return
    with contextlib.closing(Stage(shot.recipe.env_id, shot.recipe.kwargs, size)) as stage:
        yield from stage.frames(shot)


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
    frames = frames_of(Shot.of(clip))
    if not rewards:
        encode(frames, path, run.task.fps, CLIP_SIZE)
        return ""
    trace = RewardTrace.of(run.load_predictor(), clip, run.task.fps)
    if path.suffix == ".png":
        draw_rewards(path, trace, list(frames), f"{run.config.env_id}, {run.config.name}")
    else:
        film_rewards(path, trace, frames)
    return trace.summary()


def main(arguments: Sequence[str]) -> int:
    """Run ``teach play``; returns the exit status."""
    parser = OneLineParser(
        prog="teach play",
        description="Film what the policy of a run does now, and show what its predictor thinks of it.",
        epilog="example: teach play runs/ShortHopper-v1/backflip flip.mp4 --rewards",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, help="such as runs/ShortHopper-v1/backflip")
    parser.add_argument(
        "file", type=Path, nargs="?", help=f"an .mp4, or a .png with the rewards (RUN/{FILE_NAME} without it)"
    )
    parser.add_argument(
        "--rewards", action="store_true", help="show the predicted and the true reward below each frame"
    )
    parser.add_argument(
        "--episodes",
        type=as_whole_number,
        default=5,
        help="to play; that in the middle by return is shown (default: 5)",
    )
    parser.add_argument("--seed", type=as_whole_number, default=0, help="of the episodes (default: 0)")
    parser.add_argument(
        "--sampled", action="store_true", help="draw actions as in training, not the likeliest"
    )
    parser.add_argument("--start", type=int, default=0, help="step to begin with (default: 0)")
    parser.add_argument("--steps", type=int, help="how many to show (all without it)")
    given = parser.parse_args(arguments)

    def work() -> None:
        seed = whole_number(given.seed, "--seed", SEED)
        path: Path = given.file or given.run / FILE_NAME
        if path.suffix not in (".mp4", ".png"):
            raise ConfigError(f"expected a file named *.mp4 or *.png, got {path}")
        count = whole_number(given.episodes, "--episodes", COUNT)
        steps = None if given.steps is None else whole_number(given.steps, "--steps", COUNT)
        run = SavedRun(given.run)
        episodes = play_episodes(run, count, seed, sampled=given.sampled)
        chosen = episodes[len(episodes) // 2]
        clip = cut(chosen, given.start, steps)
        said = show(run, clip, path, rewards=given.rewards or path.suffix == ".png")
        returns = [episode.true_return for episode in episodes]
        print(
            f"{path}: {counted(len(clip), 'step')} of an episode with return {chosen.true_return:.1f}; of "
            f"{len(returns)} played {returns[0]:.1f} to {returns[-1]:.1f}"
        )
        if said:
            print(f"  {said}")

    return report_errors(parser, work, (AgentError,))
