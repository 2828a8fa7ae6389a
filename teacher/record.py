"""Record what a trained run does, as demonstrations for others to begin from.

``teach record runs/Hopper-v5/expert expert.npz --episodes 10``
"""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from agents.errors import AgentError
from teacher.arguments import OneLineParser, as_whole_number, report_errors
from teacher.checks import COUNT, SEED, whole_number
from teacher.demonstrations import Demonstrations, record_demonstrations, save_demonstrations
from teacher.envs.make import make_env
from teacher.files import require_folder, require_new
from teacher.metrics import progress
from teacher.saved_run import SavedRun


def record_run(run_dir: str | Path, n_episodes: int, seed: int, console: Console) -> Demonstrations:
    """Let the policy of a run play whole episodes, by its most likely actions, in the run's environment.

    Raises:
        ConfigError: the folder is no run's.
        DataError: the run has no checkpoint yet.
        EnvironmentUnsuitableError: its environment is not registered here.
        AgentError: the checkpoint is of another environment.
    """
    run = SavedRun(Path(run_dir))
    agent, task = run.load_agent(), run.task
    with contextlib.ExitStack() as parts:
        env = parts.enter_context(contextlib.closing(make_env(task.env_id, task.kwargs)))
        show = parts.enter_context(progress(console, "recording episodes", n_episodes))
        return record_demonstrations(agent, env, n_episodes, seed, show)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``teach record``; returns the exit status."""
    parser = OneLineParser(
        prog="teach record", description="Record what a trained run does, as demonstrations to begin from."
    )
    parser.add_argument("run_dir", type=Path, help="such as runs/Hopper-v5/expert")
    parser.add_argument("file", type=Path, help="the .npz file to write")
    parser.add_argument("--episodes", type=as_whole_number, default=10, help="how many (default: 10)")
    parser.add_argument("--seed", type=as_whole_number, default=0, help="of the episodes (default: 0)")
    given, console = parser.parse_args(arguments), Console(soft_wrap=True)

    def work() -> None:
        seed = whole_number(given.seed, "--seed", SEED)
        episodes = whole_number(given.episodes, "--episodes", COUNT)
        # Before anything is played that could not be written afterwards.
        require_new(given.file)
        require_folder(given.file)
        recorded = record_run(given.run_dir, episodes, seed, console)
        save_demonstrations(given.file, recorded)
        console.print(f"{given.file}: {recorded.summary()}", highlight=False)

    return report_errors(parser, work, (AgentError,))


if __name__ == "__main__":
    sys.exit(main())
