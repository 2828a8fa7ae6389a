"""The command line: ``teach -p human -e ShortHopper-v1 -n backflip``."""

import argparse
import contextlib
import dataclasses
import shlex
import shutil
import signal
import sys
import types
import typing
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from rich.console import Console

from agents.errors import AgentError
from teacher.assembly import build_run, check, prepared_directory
from teacher.config import CONFIG_NAME, TeachConfig, load_config
from teacher.envs.tasks import TaskInfo
from teacher.errors import ConfigError, SiteRefusedError, SiteUnreachableError, StorageError, TeacherError
from teacher.loop import train
from teacher.run import Run

INTERRUPTED = 130

_EPILOG = """\
rl-teacher's tasks are registered as teacher/<Name>-v1 and teacher/Short<Name>-v1. Their bare names work
wherever Gymnasium has no environment of that id: Reacher Hopper Walker (Walker2d) Cheetah (HalfCheetah)
Swimmer Ant Humanoid Pendulum (InvertedPendulum) DoublePendulum (InvertedDoublePendulum). So Pendulum-v1 is
Gymnasium's classic one; rl-teacher's is InvertedPendulum-v1 or teacher/Pendulum-v1.

examples:
  teach -p rl    -e ShortHopper-v1 -n sanity -t 3e5            the true reward: does the agent learn at all?
  teach -p synth -e ShortHopper-v1 -n synth -t 3e5 -l 300      labels made from the true reward
  teach -p human -e ShortHopper-v1 -n backflip -l 600          labels from people; prints the address to open
  teach --resume runs/ShortHopper-v1/backflip                  go on where a run stopped
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"teach: {message} (teach --help lists all settings)\n")


def build_parser() -> argparse.ArgumentParser:
    """One option per field of :class:`TeachConfig`, and ``--resume``."""
    parser = _Parser(
        prog="teach",
        description="Teach a reinforcement-learning agent a behaviour by choosing the better of two clips.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--resume", metavar="RUN_DIR", help="go on with the run in this directory")
    hints = typing.get_type_hints(TeachConfig, include_extras=True)
    for field in dataclasses.fields(TeachConfig):
        _add_option(parser, field, *get_args(hints[field.name]))
    return parser


def _add_option(
    parser: argparse.ArgumentParser, field: dataclasses.Field[Any], kind: Any, help_text: str, *flags: str
) -> None:
    names = (*flags, f"--{field.name}")
    if field.default is not dataclasses.MISSING and field.default not in (None, False):
        help_text += f" (default: {field.default})"
    help_text = help_text.replace("%", "%%")
    if kind is bool:
        parser.add_argument(*names, action="store_true", help=help_text)
        return
    if get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(option for option in get_args(kind) if option is not types.NoneType)
    if get_origin(kind) is Literal:
        parser.add_argument(*names, choices=get_args(kind), help=help_text)
    else:
        convert = _whole_number if kind is int else kind
        parser.add_argument(*names, type=convert, metavar=kind.__name__.upper(), help=help_text)


def _whole_number(text: str) -> int:
    """``5e6`` is 5,000,000; ``1.5`` is refused."""
    try:
        value = float(text)
        if value == int(value):
            return int(text) if text.lstrip("+-").isdigit() else int(value)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"expected a whole number such as 1400 or 5e6, got {text!r}")


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
    config = TeachConfig(**given)
    if (config.run_dir / CONFIG_NAME).exists():
        raise ConfigError(
            f"{config.run_dir} exists; go on with teach --resume {config.run_dir}, or choose another -n"
        )
    return config, uuid.uuid4(), False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    console = Console(soft_wrap=True)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        config, run_id, resumed = parse_arguments(sys.argv[1:] if arguments is None else arguments)
        task = check(config, console)
        with prepared_directory(config, run_id, resumed=resumed):
            return _teach(config, run_id, task, console)
    except (TeacherError, AgentError) as error:
        print(f"teach: {error}", file=sys.stderr)
        return error.exit_status if isinstance(error, TeacherError) else 1
    except OSError as error:
        print(f"teach: {error.filename or 'the system'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("teach: interrupted", file=sys.stderr)
        return INTERRUPTED


def _teach(config: TeachConfig, run_id: uuid.UUID, task: TaskInfo, console: Console) -> int:
    program = "teach" if shutil.which("teach") else f"{shlex.quote(sys.executable)} -m teacher.teach"
    resume = f"{program} --resume {shlex.quote(str(config.run_dir))}"
    with build_run(config, run_id, task, console) as run:
        _greet(run)
        try:
            completed = train(run)
        except KeyboardInterrupt:
            run.save()
            console.print(f"\nSaved at step {run.agent.total_steps:,}. To go on: [bold]{resume}[/]")
            return INTERRUPTED
        except (TeacherError, AgentError, OSError):
            with contextlib.suppress(StorageError):
                run.save()
            console.print(f"To go on when that is mended: {resume}", style="yellow")
            raise
        run.save()
        if not completed:
            console.print(f"The site finished this experiment; saved at step {run.agent.total_steps:,}.")
            return 0
        console.print(f"Done after {run.agent.total_steps:,} steps. Everything is in {config.run_dir}")
        try:
            run.finish()
        except (SiteUnreachableError, SiteRefusedError) as error:
            console.print(f"The site was not told: {error}. To tell it: {resume}", style="yellow")
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
