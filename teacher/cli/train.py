"""Training from the command line, after ``teach`` has parsed the settings.

This module imports torch, so :mod:`teacher.teach` imports it last.
"""

import contextlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from agents.distributed import Ranks, joined_ranks
from agents.errors import AgentError
from teacher import interrupts
from teacher.errors import (
    ConfigError,
    ForgottenError,
    SiteRefusedError,
    SiteUnreachableError,
    StorageError,
    TeacherError,
    UndecidedError,
    pluralize,
)
from teacher.settings.arguments import INTERRUPTED
from teacher.settings.config import RunSettings, TeachConfig
from teacher.training.builder import build_run, prepared_directory
from teacher.training.loop import train
from teacher.training.multiprocess import Followers, follow
from teacher.training.parts import RunPlan
from teacher.training.run import Run
from teacher.training.start import check

Read = Callable[[Sequence[str] | None], tuple[RunSettings, ConfigError | None]]


def main(read: Read) -> int:
    """Train in a single process or as one rank under ``torchrun``, and return the exit status.

    Args:
        read: function that returns the run's settings, with valid values instead of invalid ones, and the
            error that names these; called on rank 0 only. Its argument is a command line to read instead of
            the user's; None for the user's.
    """
    try:
        with joined_ranks() as ranks:
            return follow(ranks) if ranks.rank else _lead(read, Followers(ranks))
    except AgentError as error:
        print(f"teach: {error}", file=sys.stderr)
        return 2


def _lead(read: Read, followers: Followers) -> int:
    """Train as rank 0, and at the end make the other ranks exit with the same status."""
    if followers.ranks.size > 1:
        signal.signal(signal.SIGINT, _interrupt_once)
        interrupts.handle(_interrupt_once)
    status = 1
    try:
        status = _run(read, followers)
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
        raise
    finally:
        followers.stop(status)
    return status


def _run(read: Read, followers: Followers) -> int:
    console = Console(soft_wrap=True)
    try:
        plan = _agreed_plan(read, console, followers.ranks)
        if plan is None:
            return ConfigError.exit_status
        with prepared_directory(plan.settings), build_run(plan, console, followers) as run:
            status = _teach(run, _resume_line(plan.config, followers.ranks))
            _mention_site(run)
            return status
    except (TeacherError, AgentError) as error:
        print(f"teach: {error}", file=sys.stderr)
        return error.exit_status if isinstance(error, TeacherError) else 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"teach: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("teach: interrupted", file=sys.stderr)
        return INTERRUPTED


def _agreed_plan(read: Read, console: Console, ranks: Ranks) -> RunPlan | None:
    """Check the settings; if they are refused, ask whether to run the corrected command. None means no."""
    settings, refused = read(None)
    try:
        return check(settings, console, refused)
    except TeacherError as error:
        may_ask = ranks.size == 1 and sys.stdin.isatty() and sys.stderr.isatty()
        if error.command is None or not (settings.yes or may_ask):
            raise
        said = str(error).removesuffix(error.command)
        print(f"teach: {said.rstrip()}\n\n    {error.command}\n", file=sys.stderr)
        if not settings.yes and not _accepts("Run this instead? [Y/n] "):
            return None
        command = error.command
    settings, refused = read(shlex.split(command)[1:])
    return check(settings, console, refused)


def _accepts(question: str) -> bool:
    """Ask on the terminal; return True for Enter, ``y`` and ``yes``, and False for anything else."""
    print(question, end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:  # end of input, such as Ctrl-D
        print(file=sys.stderr)
    return answer.endswith("\n") and answer.strip().lower() in {"", "y", "yes"}


def _teach(run: Run, resume: str) -> int:
    console = run.console
    _refuse_finished(run, resume)
    _greet(run)
    try:
        completed = _train_or_save(run, resume)
    except KeyboardInterrupt as interrupt:
        run.save()
        if signal.SIGTERM in interrupt.args:
            console.print("\nStopped by SIGTERM, which torchrun sends when another process of the run dies.")
        console.print(f"\nSaved at step {run.agent.total_steps:,}. To resume: [bold]{resume}[/]")
        return INTERRUPTED
    run.save()
    run.track_results()
    if not completed:
        console.print(
            "Stopped because the experiment was finished on the site; saved at step "
            f"{run.agent.total_steps:,}. Everything is in {run.config.run_dir}\n"
            f"To resume: [bold]{resume} --reopen[/]"
        )
        return 0
    labels = _labels_of(run)
    console.print(
        f"Done after {run.agent.total_steps:,} steps{labels}. Everything is in {run.config.run_dir}"
    )
    try:
        run.finish()
    except (SiteUnreachableError, SiteRefusedError) as error:
        console.print(
            f"Could not finish the experiment on the site: {error}. To try again: {resume}", style="yellow"
        )
    except ForgottenError as error:
        console.print(f"Could not finish the experiment on the site: {error}", style="yellow")
    steps = 2 * max(run.config.num_timesteps, run.agent.total_steps)
    more = "" if run.config.n_labels is None else f" -l {2 * run.config.n_labels}"
    console.print(f"To train longer: [bold]{resume} -t {steps}{more}[/]")
    return 0


def _refuse_finished(run: Run, resume: str) -> None:
    is_over = run.agent.total_steps >= run.config.num_timesteps
    if run.teaching is not None and run.teaching.collector.status.state == "finished" and not is_over:
        raise ConfigError(
            f"the experiment {run.config.experiment} was finished on the site at step "
            f"{run.agent.total_steps:,} of {run.config.num_timesteps:,}; to reopen it and resume: "
            f"{resume} --reopen"
        )


def _labels_of(run: Run) -> str:
    """Return text such as `` with 20 of 300 labels``; empty for a run that doesn't use labels."""
    if run.teaching is None:
        return ""
    given, wanted = run.teaching.ledger.usable(), run.config.n_labels
    return f" with {pluralize(given, 'label') if wanted is None else f'{given:,} of {wanted:,} labels'}"


def _train_or_save(run: Run, resume: str) -> bool:
    """Train; if an error occurs, save the run and print the command that resumes it.

    Return False if training stopped early because the experiment was marked as finished on the site.
    """
    try:
        return train(run)
    except UndecidedError as error:  # resuming would use the same scripted teacher
        raise UndecidedError(
            f"{error}; a run can't change its teacher, so start a new run with a different -n and --teacher"
        ) from error
    except Exception:  # save what was learned, whatever the error
        # torchrun sends SIGTERM when another process dies. Ignore it, because this exception says why.
        interrupts.handle(lambda *_: None)  # unlike SIG_IGN, not inherited by child processes
        with contextlib.suppress(StorageError):
            run.save()
        run.console.print(f"To resume once the error is fixed: {resume}", style="yellow")
        raise


def _mention_site(run: Run) -> None:
    """Print the command that opens this machine's site again, which stops soon after its last run."""
    if run.config.predictor == "human" and run.config.site_url is None:
        command = f"{_program()} site {shlex.quote(str(run.config.run_dir))}"
        run.console.print(f"To open the labeling site again: [bold]{command}[/]")


def _program() -> str:
    """Return how to run ``teach`` in a shell."""
    beside = Path(sys.executable).with_name("teach")
    if shutil.which("teach"):
        return "teach"
    return shlex.quote(str(beside)) if beside.exists() else f"{shlex.quote(sys.executable)} -m teacher.teach"


def _resume_line(config: TeachConfig, ranks: Ranks) -> str:
    python, module = shlex.quote(sys.executable), "-m teacher.teach"
    if ranks.size == 1:
        program = _program()
    else:
        torchrun = "torchrun" if shutil.which("torchrun") else f"{python} -m torch.distributed.run"
        on_each_host = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.size))
        hosts = ranks.size // on_each_host
        others = f"--nnodes {hosts} --node-rank ... --rdzv-endpoint ... " if hosts > 1 else ""
        program = f"{torchrun} {others}--nproc-per-node {on_each_host} {module}"
    return f"{program} --resume {shlex.quote(str(config.run_dir))}"


def _greet(run: Run) -> None:
    config, print_ = run.config, run.console.print
    verb = "Resuming" if run.agent.total_steps else "Training"
    segments = "" if run.teaching is None else f" in segments of {pluralize(run.segment_length, 'step')}"
    print_(
        f"{verb} [bold]{config.env_id}[/] for {config.num_timesteps:,} steps{segments}; run directory "
        f"{config.run_dir}"
    )
    print_(f"Curves: tensorboard --logdir {shlex.quote(config.runs_dir)}")
    if run.teaching is not None:
        for line in run.opened.welcome:
            print_(line)


def _interrupt_once(number: int, _: object) -> None:
    """Raise ``KeyboardInterrupt``, and ignore further signals.

    torchrun forwards Ctrl-C, so each of its processes receives the signal twice.
    """
    for each in (signal.SIGINT, *interrupts.ENDING):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(number)
