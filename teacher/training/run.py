"""A training run: its environments, agent, preference learning, checkpoints and reports."""

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from agents.base import Agent
from agents.rollout import Rollout
from teacher.data.checkpoint import CHECKPOINT_NAME, State, save_state
from teacher.datasets.predictor_files import save_predictor
from teacher.envs.episodes import EpisodeRecorder
from teacher.envs.random_episodes import Explorer
from teacher.envs.trajectory import Trajectory
from teacher.errors import pluralize
from teacher.queries.judges import goal_of, true_return
from teacher.queries.learning import PreferenceLearning
from teacher.reporting.console import RunConsole, waiting
from teacher.reporting.metrics import BEHAVIOR_TAG, SUCCESS_TAG, TRUE_RETURN_TAG, Metrics
from teacher.reporting.statistics import EpisodeStatistics
from teacher.reporting.timing import ProgressFile, RoundTimer
from teacher.reporting.tracking import Tracking
from teacher.reporting.videos import EpisodeVideos
from teacher.training.multiprocess import Followers
from teacher.training.parts import RunPlan

Teaching = PreferenceLearning

REPLAY_NAME = "replay"
"""Folder of the replay buffer in a run's folder."""
SLOW_SECONDS = 5.0  # show progress of operations that take longer


@dataclass(frozen=True, eq=False)
class Opened:
    """Outputs and label source of a run that has begun.

    Attributes:
        videos: records videos of episodes; None if the run has none.
        explorer: collects steps used only in comparisons; None if the agent trains on the true reward.
        address: link for labeling and watching; empty if the run uses a scripted teacher or no labels.
        welcome: lines to print at the start, such as the link for labeling and watching.
    """

    metrics: Metrics | None = None
    videos: EpisodeVideos | None = None
    tracking: Tracking | None = None
    explorer: Explorer | None = None
    address: str = ""
    welcome: Sequence[str] = ()


@dataclass(eq=False, repr=False)
class Run:
    """A training run with all its components; a context manager that closes them.

    :meth:`begin` opens what training writes to; until then, the run's folder is only read.

    Attributes:
        teaching: learns the reward from labels; None if the agent trains on the true reward.
        state: the checkpoint that the run resumes from; None for a new run.
        open_outputs: opens what training writes to, and applies a new run's warm start.
        fits_used: number of reward fits completed before the last agent update.
    """

    plan: RunPlan
    console: RunConsole
    stack: contextlib.ExitStack
    followers: Followers
    teaching: Teaching | None
    envs: EpisodeRecorder
    env_seed: int | Sequence[int]
    agent: Agent
    state: InitVar[State | None]
    open_outputs: Callable[["Run"], Opened]
    opened: Opened = field(default_factory=Opened, init=False)
    begun: bool = field(default=False, init=False)
    fits_used: int = field(default=0, init=False)

    def __post_init__(self, state: State | None) -> None:
        self.config, self.task = self.plan.config, self.plan.task
        self.segment_length = self.plan.segment_length
        goal = true_return if self.teaching is None else goal_of(self.config.error_model)
        self.statistics = EpisodeStatistics(goal)
        self._waiting_for: int | None = None
        self._checkpoint = self.config.run_dir / CHECKPOINT_NAME
        # -inf, so that a new run is saved right after its first round
        self._saved_at = -math.inf if state is None else time.monotonic()
        self._last_return: float | None = None if state is None else state.get("return")
        self.timer = RoundTimer(0.0 if state is None else state.get("waited", 0.0))
        self._progress = ProgressFile(self.config.run_dir)

    def begin(self) -> None:
        """Open what training writes to, unless that has been done; called by everything that trains.

        Raises:
            ConfigError: another process is training the run, or has trained it since it was opened.
        """
        if not self.begun:
            self.begun = True
            try:
                self.opened = self.open_outputs(self)
            except BaseException:
                self.begun = False
                raise

    @property
    def address(self) -> str:
        """Link for labeling and watching; empty if the run uses a scripted teacher or no labels."""
        return self.opened.address

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.__exit__(kind, error, trace)

    @property
    def step(self) -> int:
        """Number of environment steps trained on so far, summed over all processes."""
        return self.agent.total_steps

    @property
    def is_over(self) -> bool:
        """True once the run has reached ``num_timesteps``."""
        return self.step >= self.config.num_timesteps

    @property
    def episodes(self) -> Sequence[Trajectory]:
        """The most recent finished episodes, with all their steps."""
        return self.statistics.episodes

    def collect(self) -> Rollout:
        """Collect the next rollout, showing progress if it takes more than a few seconds."""
        self.begin()
        total = self.agent.config.rollout_steps
        with waiting(self.console.rich, after=SLOW_SECONDS) as show:
            return self.agent.collect(
                lambda steps: show(f"rollout: step {steps} of {total} in each environment")
            )

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Sample actions from the current policy, ``(num_envs, *action_shape)``."""
        return self.agent.act(observations, deterministic=False)

    def remember(self, trajectories: Sequence[Trajectory]) -> None:
        """Add finished episodes to the statistics, and warn if any ended early.

        Also offers the last one to the video recorder.
        """
        finished = [trajectory for trajectory in trajectories if trajectory.finished]
        self.statistics.add(finished)
        ends_early = any(trajectory.terminated for trajectory in finished)
        if self.teaching is not None and not self.config.allow_variable_horizon and ends_early:
            self.console.warn_once(
                f"episodes of {self.config.env_id} now end early, and their length leaks the reward; "
                "pass --allow_variable_horizon to accept this",
                about="early end",
            )
        if self.opened.videos is not None and finished:
            self.opened.videos.offer(finished[-1], self.step)

    def report(self, values: Mapping[str, float], losses: Mapping[str, float]) -> dict[str, float]:
        """Log an iteration's metrics to TensorBoard, the console, the site and the experiment tracker.

        Return them keyed by tag.
        """
        self.begin()
        step, statistics = self.step, self.statistics
        values = {**values, **{f"agent/{name}": value for name, value in losses.items()}}
        values["agent/total_steps"] = step
        self.timer.tick(step)
        values["time/steps_per_second"] = self.timer.steps_per_second
        values["time/seconds_left"] = left = self.timer.seconds_left(self.config.num_timesteps)
        if not math.isnan(true_return := statistics.mean("true_return")):
            values[TRUE_RETURN_TAG] = true_return
        if self.task.reports_success:
            values[SUCCESS_TAG] = statistics.mean("success")
        if self.teaching is not None:
            if statistics.has_own_goal:
                values[BEHAVIOR_TAG] = statistics.mean("behavior")
            values["labels/desired"] = self.teaching.due(step)
            values["labels/asked"] = self.teaching.ledger.asked()
            values["labels/answered"] = self.teaching.ledger.usable()
            values["predictor/fresh_accuracy"] = self.teaching.fresh_accuracy
            values["time/seconds_waited"] = self.timer.waited
            self.teaching.collector.report(values, step, None)
            self.console.show_trouble(self.teaching.collector.status)
        if self.opened.tracking is not None:
            self.opened.tracking.log_scalars(values, step)
        if self.opened.metrics is not None:
            self.opened.metrics.log(step, values)
        self._progress.write(step, left)
        return values

    def tell_waiting(self, labels: int | None) -> None:
        """Tell the site how many labels training is waiting for; ``labels`` is None if it isn't waiting."""
        if self.teaching is not None and labels != self._waiting_for:
            self._waiting_for = labels
            self.teaching.collector.report({}, self.step, labels)

    def warn_of_losses(self) -> None:
        """Warn if a resumed run's custom schedule was not saved or its ledger is missing some comparisons."""
        teaching = self.teaching
        if teaching is None:
            return
        now = {
            "schedule": f"--schedule {self.config.schedule or 'exponential'}",
            "select": f"--queries.selection {self.config.queries.selection}",
            "loss": "the default loss",
        }
        for part in sorted(teaching.lost):
            where = "the predictor's loss" if part == "loss" else f"run.teaching.{part}"
            self.console.warn_once(
                f"{where}, set in Python, was not saved; resuming with {now[part]} unless it is set again",
                about=part,
            )
        if teaching.forgotten:
            self.console.warn_once(
                f"{teaching.ledger.path} has lost {pluralize(teaching.forgotten, 'comparison')} since this "
                "run was saved; to recover them, stop the run and restore that file and its -wal file from a "
                "backup",
                about="ledger",
            )

    def finish(self) -> None:
        """Tell labelers that training is complete."""
        if self.teaching is not None:
            self.teaching.collector.finish()

    def save(self, at_most_every: float = 0.0) -> None:
        """Write the checkpoint, unless the last one is less than ``at_most_every`` seconds old."""
        if time.monotonic() - self._saved_at < at_most_every:
            return
        self.begin()
        last = self.statistics.mean("true_return")
        state: State = {
            "agent": self.agent.state_dict(),
            "return": self._last_return if math.isnan(last) else last,
            "waited": self.timer.waited,
        }
        if self.teaching is not None:
            state["finished_on_site"] = self.teaching.collector.status.state == "finished"
            state["teaching"] = self.teaching.state_dict()
            self.teaching.ledger.copy_for_readers()
        save_state(self._checkpoint, state)
        self._saved_at = time.monotonic()

    def track_results(self) -> None:
        """Upload the checkpoint and the predictor to the experiment tracker, if any, after the last save."""
        if self.opened.tracking is None:
            return
        files: dict[str, Callable[[Path], object]] = {
            CHECKPOINT_NAME: partial(shutil.copyfile, self._checkpoint)
        }
        if self.teaching is not None:
            files["predictor.npz"] = partial(
                save_predictor,
                predictor=self.teaching.predictor,
                observation_space=self.task.observation_space,
                action_space=self.task.action_space,
            )
        self.opened.tracking.log_results(files)
