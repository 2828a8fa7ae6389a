"""``python -m stack``: the full stack on this machine without containers; Ctrl-C stops it.

``python -m stack --bots 10`` also runs a whole experiment with scripted labelers, audits all labels, and
exits with status 0 only if none was lost, doubled or inverted.

``python -m stack --backup FOLDER`` and ``--restore FOLDER`` run ``manage.py backup`` and ``restore`` for a
stopped stack.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from stack.display import Display
from stack.errors import StackError
from stack.experiment import Experiment, ExperimentOptions
from stack.folder import Folder
from stack.process import State
from stack.site import Site
from stack.supervisor import ASKED_TO_END, Supervisor
from stack.words import farewell, welcome
from teacher.errors import TeacherError
from teacher.settings.arguments import INTERRUPTED, OneLineParser


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(prog="python -m stack", description="The full stack on this machine.")
    parser.add_argument(
        "--dir", type=_folder, default=Path("state/stack"), help="its folder (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=_at_least(1), default=2, help="render workers (default: %(default)s)"
    )
    kept = parser.add_argument_group("backup and restore, instead of running the stack")
    which = kept.add_mutually_exclusive_group()
    which.add_argument("--backup", type=_folder, metavar="FOLDER", help="back up all data to a new folder")
    which.add_argument("--restore", type=_folder, metavar="FOLDER", help="create a stack from a backup")
    whole = parser.add_argument_group("a whole experiment with scripted labelers")
    whole.add_argument("--bots", type=_at_least(0), default=0, help="number of labelers; 0: no experiment")
    whole.add_argument("--env", default="ShortHopper-v1", help="environment (default: %(default)s)")
    whole.add_argument("--labels", type=_at_least(1), default=200, help="total labels (default: %(default)s)")
    whole.add_argument(
        "--pretrain-labels", type=_at_least(1), help="labels before training (default: a quarter of all)"
    )
    whole.add_argument(
        "--steps", type=_at_least(1), default=200_000, help="environment steps (default: %(default)s)"
    )
    return parser.parse_args(arguments)


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected a folder, got ''")
    return Path(text)


def _at_least(least: int) -> Callable[[str], int]:
    """Return a parser of integers of at least ``least``; ``2e5`` gives 200,000."""

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
    """Run the stack until Ctrl-C or the end of its experiment, and return the exit status."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    os.umask(0o077)  # files are for their owner only
    ASKED_TO_END.clear()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    console = Console(highlight=False)
    try:
        return _run(options, console)
    except (StackError, TeacherError) as error:
        print(f"stack: {error}", file=sys.stderr)
    except OSError as error:
        print(f"stack: {error.filename or 'the system'}: {error.strerror or error}", file=sys.stderr)
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
        experiment = Experiment(site, _wanted(options)) if options.bots else None
        with Supervisor(folder.logs, held, display) as supervisor:
            if options.backup or options.restore:
                console.print(_keep(site, supervisor, options), soft_wrap=True)
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


def _keep(site: Site, supervisor: Supervisor, options: argparse.Namespace) -> str:
    """Back up or restore the stack with only its data servers running, and return the last line of output."""
    supervisor.start(site.postgres.service())
    supervisor.start(site.s3.service())
    command = "backup" if options.backup else "restore"
    (process,) = supervisor.start(
        site.manage(command, options.backup or options.restore, Path.cwd() / "runs")
    )
    while process.state is not State.DONE:
        supervisor.look()
    return process.last_words()


def _wanted(options: argparse.Namespace) -> ExperimentOptions:
    return ExperimentOptions(
        env_id=options.env,
        labels=options.labels,
        pretrain_labels=options.pretrain_labels,
        steps=options.steps,
        bots=options.bots,
    )


def _start(site: Site, supervisor: Supervisor, workers: int) -> None:
    """Start all programs in order of dependency, independent ones together."""
    supervisor.start(site.postgres.service())
    supervisor.start(site.redis.service())
    supervisor.start(site.s3.service())
    supervisor.start(site.set_up())
    site.folder.write_env(site.trainer_variables())
    supervisor.start(site.web(), site.chores(), *site.render_workers(workers))


if __name__ == "__main__":
    sys.exit(main())
