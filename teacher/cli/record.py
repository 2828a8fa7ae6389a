"""``teach record RUN FILE``: record episodes of a run's policy as demonstrations."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from agents.errors import AgentError
from teacher.files import require_new
from teacher.settings.arguments import OneLineParser, as_whole_number, report_errors
from teacher.settings.checks import COUNT, SEED, whole_number
from teacher.settings.config_files import load_config


def main(arguments: Sequence[str]) -> int:
    """Run ``teach record`` and return the exit status."""
    parser = OneLineParser(
        prog="teach record",
        description="Play episodes with a run's policy and save them as demonstrations.",
        epilog="example: teach record runs/Hopper-v5/expert expert.npz",
    )
    parser.add_argument("run_dir", type=Path, help="run directory, such as runs/Hopper-v5/expert")
    parser.add_argument("file", type=Path, help="demonstration file to write (.npz)")
    parser.add_argument(
        "--episodes", type=as_whole_number, default=10, help="number of episodes (default: 10)"
    )
    parser.add_argument("--seed", type=as_whole_number, default=0, help="random seed (default: 0)")
    given = parser.parse_args(arguments)

    def work() -> None:
        seed = whole_number(given.seed, "--seed", SEED)
        episodes = whole_number(given.episodes, "--episodes", COUNT)
        require_new(given.file)
        load_config(given.run_dir)
        from teacher.data.demonstrations import record_demonstrations, save_demonstrations  # noqa: PLC0415 - torch
        from teacher.envs.make import make_env  # noqa: PLC0415
        from teacher.reporting.console import progress  # noqa: PLC0415
        from teacher.runs.saved_run import SavedRun  # noqa: PLC0415

        run = SavedRun(given.run_dir)
        agent, task, console = run.load_agent(), run.task, Console(soft_wrap=True)
        with (
            contextlib.closing(make_env(task.env_id, task.kwargs)) as env,
            progress(console, "episodes recorded", episodes) as show,
        ):
            show(0)
            recorded = record_demonstrations(agent, env, episodes, seed, show)
        save_demonstrations(given.file, recorded, new=True)
        console.print(f"{given.file}: {recorded.summary()}", highlight=False)

    return report_errors(parser, work, (AgentError,))
