"""Command line of ``python -m stack``, which runs the full stack on this machine without containers.

``python -m stack`` runs until Ctrl-C. ``python -m stack --bots 10`` also runs a whole experiment with
scripted labelers and audits all labels. It then exits with status 0 only if every label reached the trainer
exactly once and unchanged.

``python -m stack --backup FOLDER`` and ``--restore FOLDER`` run ``manage.py backup`` and ``restore`` on the
data of a stopped stack.
"""

import argparse
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, get_args

from rich.console import Console
from rich.markup import escape

from stack.experiment import Experiment, ExperimentOptions
from stack.folder import Folder
from stack.process import StackError, State
from stack.site import Site
from stack.supervisor import ASKED_TO_END, Display, Supervisor
from teacher.errors import TeacherError
from teacher.settings.arguments import INTERRUPTED, OneLineParser
from teacher.settings.options import KindName


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(prog="python -m stack", description="Run the full stack on this machine.")
    parser.add_argument(
        "--dir",
        type=_folder,
        default=Path("state/stack"),
        help="the stack's data folder (default: %(default)s)",
    )
    parser.add_argument(
        "--workers", type=_at_least(1), default=2, help="number of render workers (default: %(default)s)"
    )
    backup = parser.add_argument_group("backup and restore, instead of running the stack")
    which = backup.add_mutually_exclusive_group()
    which.add_argument("--backup", type=_folder, metavar="FOLDER", help="back up all data into a new folder")
    which.add_argument("--restore", type=_folder, metavar="FOLDER", help="restore a backup into a new stack")
    whole = parser.add_argument_group("whole experiment with scripted labelers")
    whole.add_argument(
        "--bots",
        type=_at_least(0),
        default=0,
        help="number of scripted labelers; 0 runs no experiment (default: %(default)s)",
    )
    whole.add_argument("--env", default="ShortHopper-v1", help="environment ID (default: %(default)s)")
    whole.add_argument(
        "--labels",
        type=_at_least(1),
        default=200,
        help="total number of labels to collect (default: %(default)s)",
    )
    whole.add_argument(
        "--pretrain-labels",
        type=_at_least(1),
        help="number of labels to collect before training (default: a quarter of --labels)",
    )
    whole.add_argument(
        "--feedback",
        choices=get_args(KindName),
        default="pair",
        help="kind of question (default: %(default)s)",
    )
    whole.add_argument(
        "--steps",
        type=_at_least(1),
        default=200_000,
        help="number of environment steps to train for (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected a folder path, got ''")
    return Path(text)


def _at_least(least: int) -> Callable[[str], int]:
    """Return an argparse type for integers not smaller than ``least``.

    It also accepts scientific notation, such as ``2e5``.
    """

    def convert(text: str) -> int:
        try:
            value = float(text)
            if value == int(value) >= least:
                return int(value)
        except (ValueError, OverflowError):
            pass
        raise argparse.ArgumentTypeError(f"expected a whole number of {least} or more, got {text!r}")

    return convert


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stack until Ctrl-C or the end of the experiment, and return the exit status."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    os.umask(0o077)  # only the owner can access new files
    ASKED_TO_END.clear()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    console = Console(highlight=False)
    try:
        return _run(options, console)
    except (StackError, TeacherError) as error:
        print(f"stack: {error}", file=sys.stderr)
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        print(f"stack: {path}{error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        return INTERRUPTED if options.bots else 0
    return 1


def _interrupt(*_: object) -> NoReturn:
    ASKED_TO_END.set()
    raise KeyboardInterrupt


def _run(options: argparse.Namespace, console: Console) -> int:
    folder = Folder(options.dir)
    if options.backup:
        folder.require_stack()
    with folder.held() as held, Display(console) as display:
        if options.restore:
            folder.take_secrets(options.restore)
        ports, moves = folder.ports()
        for line in moves:
            display.say(line)
        site = Site.of(folder, ports)
        experiment = Experiment(site, _experiment_options(options)) if options.bots else None
        with Supervisor(folder.logs, held, display) as supervisor:
            if options.backup or options.restore:
                console.print(_back_up_or_restore(site, supervisor, options), soft_wrap=True)
                return 0
            _start(site, supervisor, options.workers)
            folder.announce(site.url)
            console.print(welcome(site), soft_wrap=True)
            display.last_words = farewell(site)
            if experiment is None:
                while True:
                    supervisor.look()
            audit = experiment.run(supervisor, display)
            display.progress = ""
    console.print(audit.table())
    return 0 if audit.holds else 1


def _back_up_or_restore(site: Site, supervisor: Supervisor, options: argparse.Namespace) -> str:
    """Run ``manage.py backup`` or ``restore`` with only PostgreSQL and S3, and return its last line."""
    supervisor.start(site.postgres.service())
    supervisor.start(site.s3.service())
    command = "backup" if options.backup else "restore"
    (process,) = supervisor.start(
        site.manage(command, options.backup or options.restore, Path.cwd() / "runs")
    )
    while process.state is not State.DONE:
        supervisor.look()
    return process.last_words()


def _experiment_options(options: argparse.Namespace) -> ExperimentOptions:
    return ExperimentOptions(
        env_id=options.env,
        labels=options.labels,
        pretrain_labels=options.pretrain_labels,
        steps=options.steps,
        bots=options.bots,
        feedback=options.feedback,
    )


def _start(site: Site, supervisor: Supervisor, workers: int) -> None:
    supervisor.start(site.postgres.service())
    supervisor.start(site.redis.service())
    supervisor.start(site.s3.service())
    supervisor.start(site.set_up())
    site.folder.write_env(site.trainer_variables())
    supervisor.start(site.web(), site.chores(), *site.render_workers(workers))


def welcome(site: Site) -> str:
    """Return the start message, with Rich markup: how to open the site, run ``teach`` and stop the stack."""
    folder = site.folder
    return (
        f"\nOpen   [bold]{site.url}/j/{folder.secrets().sign_in_code}[/]\n"
        f"Teach  [bold]. {escape(_shell_path(folder.env))}[/]\n"
        f"       [bold]{escape(_teach_command())} -p human -e ShortHopper-v1 -n NAME "
        "--site_url $TEACHER_SITE_URL --storage $TEACHER_STORAGE[/]\n"
        f"Logs   {escape(_display_path(folder.logs))}\n"
        "Stop   Ctrl-C"
    )


def farewell(site: Site) -> str:
    """Return the final message: how to restart the stack or remove its data."""
    root, data = site.folder.path, site.postgres.data
    folders = [root] if data.is_relative_to(root) else [root, data]
    logs = _display_path(site.folder.logs)
    return (
        f"The same command restarts the stack with all its data; logs are in {logs}\n"
        f"To remove its data: rm -r {' '.join(map(_shell_path, folders))}"
    )


def _display_path(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if here in path.parents else path)


def _shell_path(path: Path) -> str:
    """Return a shell-quoted path, prefixed with ``./`` if it could be mistaken for a command or option."""
    word = _display_path(path)
    return shlex.quote(word if "/" in word and not word.startswith("-") else f"./{word}")


def _teach_command() -> str:
    """Return a shell command that runs this installation's ``teach``, even if it isn't on PATH."""
    beside = Path(sys.executable).with_name("teach")
    on_path = shutil.which("teach")
    if on_path is not None and beside.exists() and Path(on_path).samefile(beside):
        return "teach"
    return _shell_path(beside) if beside.exists() else f"{shlex.quote(sys.executable)} -m teacher.teach"


if __name__ == "__main__":
    sys.exit(main())
