"""``teach play RUN``: make a video of a run's policy, optionally with predicted rewards."""

from collections.abc import Sequence
from pathlib import Path

from agents.errors import AgentError
from teacher.errors import ConfigError, pluralize
from teacher.files import require_folder
from teacher.settings.arguments import OneLineParser, as_whole_number, report_errors
from teacher.settings.checks import COUNT, SEED, whole_number
from teacher.settings.config_files import load_config

SUFFIXES = (".mp4", ".gif", ".png")


def main(arguments: Sequence[str]) -> int:
    """Run ``teach play`` and return the exit status."""
    parser = OneLineParser(
        prog="teach play",
        description="Make a video of a run's latest policy, optionally with predicted rewards.",
        epilog="example: teach play runs/ShortHopper-v1/backflip flip.mp4 --rewards",
    )
    parser.add_argument("run", type=Path, help="run directory, such as runs/ShortHopper-v1/backflip")
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        help="file to write: .mp4 or .gif for a video, or .png for a plot of rewards (default: the run's "
        "name with .mp4, in the current folder)",
    )
    parser.add_argument(
        "--rewards", action="store_true", help="plot predicted and true rewards below the frames"
    )
    parser.add_argument(
        "--episodes",
        type=as_whole_number,
        default=5,
        help="number of episodes to play; the video shows the one with the median return (default: 5)",
    )
    parser.add_argument("--seed", type=as_whole_number, default=0, help="random seed (default: 0)")
    parser.add_argument(
        "--sampled",
        action="store_true",
        help="sample actions as in training (default: take the most likely actions)",
    )
    parser.add_argument("--start", type=int, default=0, help="first step of the episode to show (default: 0)")
    parser.add_argument("--steps", type=int, help="number of steps to show (default: all)")
    given = parser.parse_args(arguments)

    def work() -> None:
        seed = whole_number(given.seed, "--seed", SEED)
        if given.file is not None and given.file.suffix not in SUFFIXES:
            raise ConfigError(f"the file must be named *.mp4, *.gif or *.png, not {given.file}")
        count = whole_number(given.episodes, "--episodes", COUNT)
        steps = None if given.steps is None else whole_number(given.steps, "--steps", COUNT)
        if given.file is not None:  # fail before playing any episode
            require_folder(given.file)
        config, _ = load_config(given.run)
        path = given.file or Path(f"{config.name}.mp4")
        from teacher.runs.play import cut, play_episodes, show  # noqa: PLC0415 - torch takes a second
        from teacher.runs.saved_run import SavedRun  # noqa: PLC0415

        run = SavedRun(given.run)
        episodes = play_episodes(run, count, seed, sampled=given.sampled)
        chosen = episodes[len(episodes) // 2]
        clip = cut(chosen, given.start, steps)
        said = show(run, clip, path, rewards=given.rewards or path.suffix == ".png")
        returns = [episode.true_return for episode in episodes]
        print(
            f"{path}: {pluralize(len(clip), 'step')} of an episode with return {chosen.true_return:.1f}; "
            f"{pluralize(len(returns), 'episode')} played, returns {returns[0]:.1f} to {returns[-1]:.1f}"
        )
        if said:
            print(f"  {said}")

    return report_errors(parser, work, (AgentError,))
