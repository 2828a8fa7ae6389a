"""The command line: ``teach -p human -e ShortHopper-v1 -n backflip``."""

import argparse
import contextlib
import dataclasses
import difflib
import itertools
import os
import shlex
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, get_args

from rich.console import Console

from agents.distributed import Ranks, joined_ranks
from agents.errors import AgentError
from teacher import doctor, export, listing, offline_commands, play, record
from teacher.arguments import INTERRUPTED, OneLineParser, add_options
from teacher.assembly import build_run, check, prepared_directory, refuse_existing
from teacher.config import PARTS, TeachConfig, from_options, load_config
from teacher.crew import Crew
from teacher.errors import (
    ConfigError,
    SiteRefusedError,
    SiteUnreachableError,
    StorageError,
    TeacherError,
    UndecidedError,
    counted,
)
from teacher.follower import follow
from teacher.help_text import ENVIRONMENTS, HELP, SECTIONS
from teacher.loop import train
from teacher.options import Preset
from teacher.run import Run

COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "ls": listing.main,
    "doctor": doctor.main,
    "play": play.main,
    "export": export.main,
    "fit": offline_commands.fit,
    "evaluate": offline_commands.evaluate_,
    "relabel": offline_commands.relabel_,
    "import": offline_commands.import_,
    "record": record.main,
}
"""What ``teach`` does beside training, by its first word."""


def build_parser() -> OneLineParser:
    """One option per field of :class:`TeachConfig` and its parts, ``--preset`` and ``--resume``."""
    parser = OneLineParser(
        prog="teach",
        usage="teach -p {human,synth,rl} -e ENV -n NAME [options]",
        description="All options, by section; teach --help says how to begin.",
        epilog=ENVIRONMENTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
        all_settings="--help-all",
    )
    parser.add_argument("-h", "--help", action=_ShortHelp, nargs=0, help="how to begin")
    parser.add_argument("--help-all", action="help", help="print this")
    parser.add_argument("--resume", metavar="RUN", help="go on with the run in this directory")
    parser.add_argument(
        "--preset",
        choices=get_args(Preset),
        help="paper, paper_atari = as the 2017 paper has it on MuJoCo or Atari, but for what is given",
    )
    fields = {field.name for field in dataclasses.fields(TeachConfig)}
    for title, names in SECTIONS.items():
        add_options(parser.add_argument_group(title), TeachConfig, leave_out=fields.difference(names))
    add_options(parser, TeachConfig, leave_out={*PARTS, *itertools.chain(*SECTIONS.values())})
    for name, kind in PARTS.items():
        add_options(parser.add_argument_group(name, kind.__doc__), kind, prefix=f"{name}.")
    return parser


class _ShortHelp(argparse.Action):
    """Print how to begin, and end."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(HELP, end="")
        parser.exit()


def parse_arguments(arguments: Sequence[str]) -> tuple[TeachConfig, uuid.UUID, bool]:
    """The run's settings, its id, and whether it goes on from an earlier one.

    Raises:
        ConfigError: a setting is missing or does not fit.
    """
    given = vars(build_parser().parse_args(arguments))
    if "resume" in given:
        others = [f"--{name}" for name in given if name != "resume"]
        if others:
            raise ConfigError(f"--resume takes its settings from the run; leave out {' '.join(others)}")
        return *load_config(Path(given["resume"])), True
    required = {"env_id": "-e/--env_id", "predictor": "-p/--predictor", "name": "-n/--name"}
    missing = [flags for name, flags in required.items() if name not in given]
    if missing:
        raise ConfigError(f"expected {', '.join(missing)}, or --resume RUN_DIR")
    config = from_options(given)
    refuse_existing(config)
    return config, uuid.uuid4(), False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, or one of the processes that ``torchrun`` starts; returns the exit status."""
    signal.signal(signal.SIGTERM, _interrupt)
    first, *others = [*(sys.argv[1:] if arguments is None else arguments), ""]
    if first in COMMANDS:
        return COMMANDS[first](others[:-1])
    if first and not first.startswith("-"):
        close = difflib.get_close_matches(first, COMMANDS, n=1)
        hint = f"did you mean teach {close[0]}?" if close else "teach --help lists all"
        print(f"teach: expected an option or a command, got {first!r}; {hint}", file=sys.stderr)
        return ConfigError.exit_status
    try:
        with joined_ranks() as ranks:
            return follow(ranks) if ranks.rank else _lead(arguments, Crew(ranks))
    except AgentError as error:
        print(f"teach: {error}", file=sys.stderr)
        return 2


def _lead(arguments: Sequence[str] | None, crew: Crew) -> int:
    """Run the command line, and have the others end as it does."""
    if crew.ranks.size > 1:
        signal.signal(signal.SIGTERM, _interrupt_once)
        signal.signal(signal.SIGINT, _interrupt_once)
    status = 1
    try:
        status = _run(arguments, crew)
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
        raise
    finally:
        crew.dismiss(status)
    return status


def _run(arguments: Sequence[str] | None, crew: Crew) -> int:
    console = Console(soft_wrap=True)
    try:
        config, run_id, resumed = parse_arguments(sys.argv[1:] if arguments is None else arguments)
        task = check(config, console)
        with (
            prepared_directory(config, run_id, resumed=resumed),
            build_run(config, run_id, task, console, crew) as run,
        ):
            return _teach(run, _resume_line(config, crew.ranks))
    except (TeacherError, AgentError) as error:
        print(f"teach: {error}", file=sys.stderr)
        return error.exit_status if isinstance(error, TeacherError) else 1
    except OSError as error:
        print(f"teach: {error.filename or 'the system'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("teach: interrupted", file=sys.stderr)
        return INTERRUPTED


def _teach(run: Run, resume: str) -> int:
    console = run.console
    _greet(run)
    try:
        completed = _train_or_save(run, resume)
    except KeyboardInterrupt as interrupt:
        run.save()
        if signal.SIGTERM in interrupt.args:
            console.print("\nEnded by SIGTERM, as torchrun sends it when another process of a run has died.")
        console.print(f"\nSaved at step {run.agent.total_steps:,}. To go on: [bold]{resume}[/]")
        return INTERRUPTED
    run.save()
    if not completed:
        page = run.teaching.page if run.teaching else ""
        console.print(
            f"Finished on the site; saved at step {run.agent.total_steps:,}. Everything is in "
            f"{run.config.run_dir}\nTo go on: reopen it at {page} and then [bold]{resume}[/]"
        )
        return 0
    labels = _labels_of(run)
    console.print(
        f"Done after {run.agent.total_steps:,} steps{labels}. Everything is in {run.config.run_dir}"
    )
    try:
        run.finish()
    except (SiteUnreachableError, SiteRefusedError) as error:
        console.print(f"The site was not told: {error}. To tell it: {resume}", style="yellow")
    return 0


def _labels_of(run: Run) -> str:
    """With how many labels it was made, of how many wanted, where that was a number."""
    if run.teaching is None:
        return ""
    given, wanted = run.teaching.ledger.usable(), run.config.n_labels
    return f" with {counted(given, 'label') if wanted is None else f'{given:,} of {wanted:,} labels'}"


def _train_or_save(run: Run, resume: str) -> bool:
    """Train; where that fails, save what there is and say how to go on."""
    try:
        return train(run)
    except UndecidedError as error:  # going on would be with the same teacher
        raise UndecidedError(
            f"{error}; a run keeps its teacher, so begin another: another -n, with another --teacher"
        ) from error
    except Exception:  # whatever it is, what was learned is not to be lost
        # torchrun sends SIGTERM when another process has died: no reason to lose the error that says so.
        signal.signal(signal.SIGTERM, _disregard)
        with contextlib.suppress(StorageError):
            run.save()
        run.console.print(f"To go on when that is mended: {resume}", style="yellow")
        raise


def _resume_line(config: TeachConfig, ranks: Ranks) -> str:
    """The command that goes on with a run, on as many processes."""
    python, module = shlex.quote(sys.executable), "-m teacher.teach"
    if ranks.size == 1:
        program = "teach" if shutil.which("teach") else f"{python} {module}"
    else:
        torchrun = "torchrun" if shutil.which("torchrun") else f"{python} -m torch.distributed.run"
        on_each_host = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.size))
        hosts = ranks.size // on_each_host
        others = f"--nnodes {hosts} --node-rank ... --rdzv-endpoint ... " if hosts > 1 else ""
        program = f"{torchrun} {others}--nproc-per-node {on_each_host} {module}"
    return f"{program} --resume {shlex.quote(str(config.run_dir))}"


def _greet(run: Run) -> None:
    """Say once what runs, where people label, and where to look."""
    config, print_ = run.config, run.console.print
    verb = "Going on with" if run.agent.total_steps else "Training"
    print_(
        f"{verb} [bold]{config.env_id}[/] for {config.num_timesteps:,} steps; run directory {config.run_dir}"
    )
    print_(f"Curves: tensorboard --logdir {shlex.quote(config.runs_dir)}")
    if run.teaching is not None:
        for line in run.teaching.welcome:
            print_(line)


def _interrupt(*_: object) -> None:
    """A polite kill is a Ctrl-C."""
    raise KeyboardInterrupt


def _disregard(*_: object) -> None:
    """Unlike SIG_IGN, not passed on to programs that are started later."""


def _interrupt_once(number: int, _: object) -> None:
    """The same where torchrun may send what the terminal has sent, perhaps in the midst of saving."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
