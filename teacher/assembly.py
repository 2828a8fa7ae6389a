"""From settings to a run: which parts it consists of is decided here and nowhere else."""

import contextlib
import fcntl
import uuid
from collections.abc import Iterator

import torch
from rich.console import Console

from teacher.collectors.base import Collector
from teacher.collectors.synthetic import SyntheticTeacher
from teacher.config import TeachConfig, save_config
from teacher.envs.random_episodes import check_random_episodes
from teacher.envs.tasks import TaskInfo, describe_task
from teacher.errors import ConfigError
from teacher.ledger import Ledger
from teacher.preferences import PreferenceDataset
from teacher.reward.fitting import RewardConfig
from teacher.reward.predictor import RewardPredictor
from teacher.run import Run, Teaching, segment_length
from teacher.schedules import ConstantRate, ExponentialSchedule, LabelSchedule
from teacher.segments import SegmentPool


def check(config: TeachConfig, console: Console) -> TaskInfo:
    """Everything that can be refused before a run directory exists.

    Raises:
        ConfigError, EnvironmentUnsuitableError: in one line, what to change.
    """
    _check_device(config.device)
    task = describe_task(config.env_id, config.max_episode_steps)
    if config.predictor != "rl":
        with console.status("trying 50 random episodes"):
            check_random_episodes(
                task,
                segment_length(config, task),
                seed=config.seed,
                allow_variable_horizon=config.allow_variable_horizon,
            )
    return task


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--device: expected a device that works here, got {device!r}: {reason}") from error


@contextlib.contextmanager
def prepared_directory(config: TeachConfig, run_id: uuid.UUID, *, resumed: bool) -> Iterator[None]:
    """The run directory with its configuration, held so that no second process writes into it.

    Raises:
        ConfigError: another process runs in it, or it cannot be made.
    """
    try:
        config.run_dir.mkdir(parents=True, exist_ok=resumed)
        lock = (config.run_dir / "lock").open("w")
    except OSError as error:
        raise ConfigError(f"cannot make the run directory {config.run_dir}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{config.run_dir} is in use by another teach; stop that one first") from error
        if not resumed:
            save_config(config, run_id)
        yield


def build_run(config: TeachConfig, run_id: uuid.UUID, task: TaskInfo, console: Console) -> Run:
    """Put the run together, and restore it where it has a checkpoint."""
    torch.set_num_threads(1)  # networks this small only lose by more
    if config.predictor == "rl":
        return Run(config, task, console)
    with contextlib.ExitStack() as parts:
        ledger = Ledger(config.run_dir / "ledger.sqlite3")
        parts.callback(ledger.close)
        collector: Collector = SyntheticTeacher(ledger, config.seed)
        parts.callback(collector.close)
        run = Run(config, task, console, _teaching(config, task, ledger, collector))
        parts.pop_all()
    return run


def _teaching(config: TeachConfig, task: TaskInfo, ledger: Ledger, collector: Collector) -> Teaching:
    dataset = PreferenceDataset()
    dataset.upsert(ledger.preferences())
    predictor = RewardPredictor(
        task.observation_space, task.action_space, RewardConfig(), config.seed, config.device
    )
    pool = SegmentPool(segment_length(config, task), seed=config.seed)
    return Teaching(ledger, collector, dataset, predictor, _schedule(config), pool)


def _schedule(config: TeachConfig) -> LabelSchedule:
    if config.n_labels is None:
        return ConstantRate(config.num_pretrain_labels)
    return ExponentialSchedule(config.num_pretrain_labels, config.n_labels, config.num_timesteps)
