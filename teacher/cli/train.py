"""Training by ``teach``, after its settings are parsed; this module imports torch, so it loads last."""

import contextlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable

from rich.console import Console

from agents.distributed import Ranks, joined_ranks
from agents.errors import AgentError
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
from teacher.training.run import Run
from teacher.training.start import check


def main(read: Callable[[], RunSettings]) -> int:
    """Train, alone or as one of ``torchrun``'s processes, and return the exit status.

    Args:
        read: returns the settings; called by rank 0 only.
    """
    try:
        with joined_ranks() as ranks:
            return follow(ranks) if ranks.rank else _lead(read, Followers(ranks))
    except AgentError as error:
        print(f"teach: {error}", file=sys.stderr)
        return 2


def _lead(read: Callable[[], RunSettings], followers: Followers) -> int:
    """Train as rank 0, and stop the other ranks with the same exit status."""
    if followers.ranks.size > 1:
        signal.signal(signal.SIGTERM, _interrupt_once)
        signal.signal(signal.SIGINT, _interrupt_once)
    status = 1
    try:
        status = _run(read, followers)
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
        raise
    finally:
        followers.stop(status)
    return status


def _run(read: Callable[[], RunSettings], followers: Followers) -> int:
    console = Console(soft_wrap=True)
    try:
        settings = read()
        plan = check(settings, console)
        with prepared_directory(plan.settings), build_run(plan, console, followers) as run:
            return _teach(run, _resume_line(plan.config, followers.ranks))
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
    _refuse_finished(run, resume)
    _greet(run)
    try:
        completed = _train_or_save(run, resume)
    except KeyboardInterrupt as interrupt:
        run.save()
        if signal.SIGTERM in interrupt.args:
            console.print("\nStopped by SIGTERM, as torchrun sends it when another process of a run died.")
        console.print(f"\nSaved at step {run.agent.total_steps:,}. To continue: [bold]{resume}[/]")
        return INTERRUPTED
    run.save()
    if not completed:
        console.print(
            f"Finished on the site; saved at step {run.agent.total_steps:,}. Everything is in "
            f"{run.config.run_dir}\nTo continue: [bold]{resume} --reopen[/]"
        )
        return 0
    labels = _labels_of(run)
    console.print(
        f"Done after {run.agent.total_steps:,} steps{labels}. Everything is in {run.config.run_dir}"
    )
    try:
        run.finish()
    except (SiteUnreachableError, SiteRefusedError) as error:
        console.print(f"Could not tell the site: {error}. To try again: {resume}", style="yellow")
    except ForgottenError as error:
        console.print(f"Could not tell the site: {error}", style="yellow")
    console.print(f"To train it further: [bold]{resume} {_more(run.config, run.agent.total_steps)}[/]")
    return 0


def _refuse_finished(run: Run, resume: str) -> None:
    """Raise :class:`ConfigError` if the experiment was finished on the site before training was done."""
    is_over = run.agent.total_steps >= run.config.num_timesteps
    if run.teaching is not None and run.teaching.collector.status.state == "finished" and not is_over:
        raise ConfigError(
            f"{run.config.experiment} was finished on the site at step {run.agent.total_steps:,} of "
            f"{run.config.num_timesteps:,}; to continue: {resume} --reopen"
        )


def _more(config: TeachConfig, made: int) -> str:
    """Return the options that double the length of a run that has made ``made`` steps."""
    labels = "" if config.n_labels is None else f" -l {2 * config.n_labels}"
    return f"-t {2 * max(config.num_timesteps, made)}{labels}"


def _labels_of(run: Run) -> str:
    """Return the number of a run's labels as text, of the total if there is one; empty without labels."""
    if run.teaching is None:
        return ""
    given, wanted = run.teaching.ledger.usable(), run.config.n_labels
    return f" with {pluralize(given, 'label') if wanted is None else f'{given:,} of {wanted:,} labels'}"


def _train_or_save(run: Run, resume: str) -> bool:
    """Train; if that fails, save the run and print how to continue it."""
    try:
        return train(run)
    except UndecidedError as error:  # a resumed run would have the same teacher
        raise UndecidedError(
            f"{error}; a run keeps its teacher, so start a new one: another -n, with another --teacher"
        ) from error
    except Exception:  # whatever it is, save what was learned
        # torchrun sends SIGTERM when another process has died: keep the error that says so.
        signal.signal(signal.SIGTERM, _disregard)
        with contextlib.suppress(StorageError):
            run.save()
        run.console.print(f"To continue once that is fixed: {resume}", style="yellow")
        raise


def _resume_line(config: TeachConfig, ranks: Ranks) -> str:
    """Return the command that resumes a run, with the same number of processes."""
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
    """Print the run's task, its directory, the labeling address, and the TensorBoard command."""
    config, print_ = run.config, run.console.print
    verb = "Resuming" if run.agent.total_steps else "Training"
    segments = "" if run.teaching is None else f" in segments of {pluralize(run.segment_length, 'step')}"
    print_(
        f"{verb} [bold]{config.env_id}[/] for {config.num_timesteps:,} steps{segments}; run directory "
        f"{config.run_dir}"
    )
    print_(f"Curves: tensorboard --logdir {shlex.quote(config.runs_dir)}")
    if run.teaching is not None:
        for line in run.welcome:
            print_(line)


def _disregard(*_: object) -> None:
    """Ignore a signal; unlike SIG_IGN, child processes do not inherit this."""


def _interrupt_once(number: int, _: object) -> None:
    """Raise ``KeyboardInterrupt`` for the first signal only, as torchrun repeats the terminal's."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(number)
