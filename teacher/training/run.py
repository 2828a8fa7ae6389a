"""One run put together: environments, agent, teaching and reports; saved and restored as a whole."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from agents.defaults import TaskDefaults, defaults_for
from agents.distributed import Ranks
from agents.on_policy import OnPolicyAgent
from agents.ppo import PPO
from agents.rollout import Rollout
from agents.trpo import TRPO
from teacher.data.checkpoint import CHECKPOINT_NAME, State, load_state, restoring, save_state
from teacher.data.segment_pool import SegmentPool
from teacher.data.steps import Steps, StepsBatch
from teacher.envs.episodes import EpisodeRecorder
from teacher.envs.exploration import Explorer
from teacher.envs.families import base_env_id
from teacher.envs.tasks import TaskInfo, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.envs.trial import usual_length
from teacher.errors import counted
from teacher.queries.judges import Value, true_return
from teacher.queries.learner import PreferenceLearner
from teacher.queries.schedules import LabelSchedule
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config import TeachConfig
from teacher.settings.functions import named_function
from teacher.training.crew import Crew
from teacher.training.metrics import BEHAVIOUR_TAG, TRUE_RETURN_TAG, Metrics
from teacher.training.pace import Pace, ProgressFile
from teacher.training.videos import EpisodeVideos

EPISODES_REMEMBERED = 100
EPISODE_BYTES = 2**29
"""Of the episodes that are remembered whole, those of images hardly ever as many as of numbers."""
_RESUMED = 2  # a stream of seeds apart from those of random episodes


@dataclass
class Teaching(PreferenceLearner):
    """What turns answers into rewards; absent where the agent is trained on the true reward.

    Attributes:
        goal: what those who answer want more of, where a function says it; reports compare with it.
        seconds: of joint training so far, without the time spent waiting for people; for schedules by time.
        pretrained: whether the predictor was fitted on the pretraining labels.
        address: where people label; empty where nobody does.
        welcome: lines to print once, such as how to enter the admin.
        schedule_lost: whether the run had another schedule than its settings say, which no checkpoint keeps.
        forgotten: comparisons that the ledger had at the last checkpoint and has no longer.
    """

    schedule: LabelSchedule
    pool: SegmentPool
    explorer: Explorer
    goal: Value = true_return
    seconds: float = 0.0
    pretrained: bool = False
    address: str = ""
    welcome: Sequence[str] = ()
    schedule_lost: bool = False
    forgotten: int = 0

    def __post_init__(self) -> None:
        self._configured = self.schedule

    @property
    def has_own_schedule(self) -> bool:
        """Whether the schedule was replaced since the run was built."""
        return self.schedule is not self._configured

    def state_dict(self) -> State:
        """All but the dataset, which the ledger keeps."""
        return {
            "predictor": self.predictor.state_dict(),
            "pool": self.pool.state_dict(),
            "seconds": self.seconds,
            "pretrained": self.pretrained,
            "own_schedule": self.has_own_schedule,
            "comparisons": self.ledger.total(),
        }

    def load_state_dict(self, state: State) -> None:
        """Take over :meth:`state_dict`."""
        self.predictor.load_state_dict(state["predictor"])
        self.pool.load_state_dict(state["pool"])
        self.seconds = state["seconds"]
        self.pretrained = state["pretrained"]
        self.schedule_lost = state.get("own_schedule", False)
        self.forgotten = max(0, state.get("comparisons", 0) - self.ledger.total())
        self.unfitted = len(self.dataset)  # the ledger may hold answers that came after the checkpoint


class Run:
    """Everything one run consists of; a context manager that closes all its parts.

    Args:
        parts: takes up what the run opens; :meth:`own` makes it the run's.
        crew: the other processes that train the agent.
        teaching: None for ``-p rl``.
    """

    def __init__(
        self,
        config: TeachConfig,
        task: TaskInfo,
        console: Console,
        parts: contextlib.ExitStack,
        crew: Crew,
        teaching: Teaching | None = None,
    ) -> None:
        self.config = config
        self.task = task
        self.console = console
        self.crew = crew
        self.teaching = teaching
        self.segment_length = segment_length(config, task)
        self.episodes: deque[Trajectory] = deque(maxlen=EPISODES_REMEMBERED)
        self._lengths: deque[int] = deque(maxlen=EPISODES_REMEMBERED)
        self._true_returns: deque[float] = deque(maxlen=EPISODES_REMEMBERED)
        self._behaviours: deque[float] = deque(maxlen=EPISODES_REMEMBERED)
        self._checkpoint = config.run_dir / CHECKPOINT_NAME
        state = load_state(self._checkpoint) if self._checkpoint.exists() else None
        self.env_seed: int | Sequence[int] = config.seed
        if state is not None:
            # A resumed run begins new episodes; with the seeds it began with they would be the old ones.
            with restoring(self._checkpoint):
                self.env_seed = [config.seed, _RESUMED, int(state["agent"]["total_steps"])]
        self.envs = make_envs(config, task, self.env_seed, crew.ranks)
        self._parts = contextlib.ExitStack()
        parts.callback(self.envs.close)
        self.agent = make_agent(config, self.envs)
        self.agent.ranks = crew.ranks
        if state is not None:
            with restoring(self._checkpoint):
                self._restore(state)
        # A new run is saved after its first round: from then on there is something to lose.
        self._saved_at = -math.inf if state is None else time.monotonic()
        self._waiting_for: int | None = None
        self._warned: set[str] = set()
        self._trouble: str | None = None
        self._paused = False
        self.pace = Pace(0.0 if state is None else state.get("waited", 0.0))
        self._progress = ProgressFile(config.run_dir)
        self._metrics = Metrics(
            config.run_dir / "tensorboard",
            config.num_timesteps,
            self.agent.total_steps,
            console,
            people=config.predictor == "human",
        )
        parts.callback(self._metrics.close)
        self._videos: EpisodeVideos | None = None
        if not config.no_videos:
            show = None if self.teaching is None else self.teaching.collector.show
            self._videos = EpisodeVideos(config, task, console, show)
            parts.callback(self._videos.close)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()

    def own(self, parts: contextlib.ExitStack) -> None:
        """Close ``parts`` with this run."""
        self._parts = parts

    def labels_due(self) -> int:
        """Labels that should have been asked by now, those before training included."""
        if self.teaching is None:
            return 0
        return self.teaching.schedule.due(self.agent.total_steps, self.teaching.seconds)

    @property
    def steps_per_episode(self) -> float:
        """Of the last finished episodes; NaN while there are none."""
        return float(np.mean(self._lengths)) if self._lengths else float("nan")

    def remember(self, trajectories: Sequence[Trajectory]) -> None:
        """Keep the finished episodes for statistics, and film one every so often."""
        finished = [trajectory for trajectory in trajectories if trajectory.finished]
        self._remember_whole(finished)
        self._lengths.extend(map(len, finished))
        self._true_returns.extend(episode.true_return for episode in finished)
        if self.teaching is not None and self.teaching.goal is not true_return:
            self._behaviours.extend(self.teaching.goal(episode) for episode in finished)
        ends_early = any(trajectory.terminated for trajectory in finished)
        if self.teaching is not None and not self.config.allow_variable_horizon and ends_early:
            self.warn_once(
                f"episodes of {self.config.env_id} end early now, and their length leaks the reward; "
                "--allow_variable_horizon says that this is meant",
                about="early end",
            )
        if self._videos is not None and finished:
            self._videos.offer(finished[-1], self.agent.total_steps)

    def _remember_whole(self, episodes: Sequence[Trajectory]) -> None:
        self.episodes.extend(episodes)
        size = sum(episode.nbytes for episode in self.episodes)
        while size > EPISODE_BYTES:
            size -= self.episodes.popleft().nbytes

    def warn_once(self, warning: str, about: str) -> None:
        """Print a warning, unless there was one about the same before."""
        if about not in self._warned:
            self._warned.add(about)
            self.console.print(warning, style="yellow")

    def _last_return(self) -> float | None:
        """Mean true return of the last episodes; None while there are none."""
        return float(np.mean(self._true_returns)) if self._true_returns else None

    def report(self, values: dict[str, float], losses: dict[str, float]) -> dict[str, float]:
        """Write one iteration's values to TensorBoard, the console and the site; all of them by tag."""
        step = self.agent.total_steps
        values = {**values, **{f"agent/{name}": value for name, value in losses.items()}}
        values["agent/total_steps"] = step
        self.pace.tick(step)
        values["time/steps_per_second"] = self.pace.steps_per_second
        values["time/seconds_left"] = left = self.pace.seconds_left(self.config.num_timesteps)
        if (last := self._last_return()) is not None:
            values[TRUE_RETURN_TAG] = last
        if self.teaching is not None:
            if self.teaching.goal is not true_return:
                values[BEHAVIOUR_TAG] = float(np.mean(self._behaviours or [np.nan]))
            values["labels/desired"] = self.labels_due()
            values["labels/asked"] = self.teaching.ledger.asked()
            values["labels/answered"] = self.teaching.ledger.usable()
            values["predictor/fresh_accuracy"] = self.teaching.fresh_accuracy
            values["time/seconds_waited"] = self.pace.waited
            self.teaching.collector.report(values, step, None)
        self._metrics.log(step, values)
        self._progress.write(step, left)
        self.tell_trouble()
        return values

    def tell_waiting(self, answers: int | None) -> None:
        """Tell those who answer how many answers training waits for; None where it does not wait."""
        if self.teaching is not None and answers != self._waiting_for:
            self._waiting_for = answers
            self.teaching.collector.report({}, self.agent.total_steps, answers)

    def tell_trouble(self) -> None:
        """Say once what keeps comparisons from people or answers from here, and once that it is over."""
        if self.teaching is None:
            return
        status = self.teaching.collector.status
        trouble = f"trying again: {status.away}" if status.away else None
        if status.failed:
            failed = counted(status.failed, "comparison")
            trouble = f"{trouble or 'going on'}; {failed} could not be shown, others are asked"
        if trouble != self._trouble:
            self.console.print(trouble or "the site answers again", style="yellow")
        self._trouble = trouble

    def tell_pause(self) -> bool:
        """Say once that the site has paused this run, and once that it goes on; whether it is paused."""
        paused = self.teaching is not None and self.teaching.collector.status.state == "paused"
        if paused and not self._paused:
            self.console.print(
                "Paused on the site. It goes on by itself when it is resumed there; Ctrl-C saves and ends.",
                style="yellow",
            )
        elif self._paused and not paused:
            self.console.print("No longer paused.", style="yellow")
        self._paused = paused
        return paused

    def finish_videos(self) -> None:
        """Film the last episode and wait for it; Ctrl-C skips it."""
        if self._videos is not None:
            self._videos.finish()

    def finish(self) -> None:
        """Tell those who answer that training is complete."""
        if self.teaching is not None:
            self.teaching.collector.finish()

    def save(self, at_most_every: float = 0.0) -> None:
        """Write the checkpoint, unless the last one is younger than ``at_most_every`` seconds."""
        if time.monotonic() - self._saved_at < at_most_every:
            return
        state: State = {
            "agent": self.agent.state_dict(),
            "return": self._last_return(),
            "waited": self.pace.waited,
        }
        if self.teaching is not None:
            state["teaching"] = self.teaching.state_dict()
        save_state(self._checkpoint, state)
        self._saved_at = time.monotonic()

    def _restore(self, state: State) -> None:
        self.agent.load_state_dict(state["agent"])
        if self.teaching is not None:
            self.teaching.load_state_dict(state["teaching"])


def _defaults(env_id: str, observation_space: gym.Space[Any]) -> TaskDefaults:
    """The hyperparameters of a task; rl-teacher's tasks have those of what they are made of."""
    return defaults_for(base_env_id(env_id), observation_space)


def make_envs(
    config: TeachConfig, task: TaskInfo, seed: int | Sequence[int], ranks: Ranks
) -> EpisodeRecorder:
    """This rank's environments, as many as suit the task."""
    part = (ranks.rank, ranks.size)
    num_envs = _defaults(task.env_id, task.observation_space).num_envs
    return make_vector_env(task, num_envs, seed, config.workers, part=part)


def make_predictor(config: TeachConfig, task: TaskInfo) -> RewardPredictor:
    """The untrained predictor of a run.

    Raises:
        ConfigError: the function of ``--network`` does not do.
    """
    network = None if config.network is None else named_function(config.network, "--network")
    spaces = task.observation_space, task.action_space
    return RewardPredictor(*spaces, config.reward, config.seed, config.device, network)


def predicted_rewards(predictor: RewardPredictor, rollout: Rollout) -> NDArray[np.float64]:
    """``(num_steps, num_envs)``."""
    return predictor.step_rewards(steps_of(rollout, predictor))


def steps_of(
    rollout: Rollout, predictor: RewardPredictor, which: NDArray[np.bool_] | EllipsisType = ...
) -> Steps:
    """All steps or those of a mask; what is laborious to tell of one is told where the predictor reads it."""
    after = rollout.next_observations[which] if "next_state" in predictor.inputs else None
    observations, actions = rollout.observations[which], rollout.executed_actions[which]
    return StepsBatch(observations, actions, after, rollout.terminated[which])


def make_agent(config: TeachConfig, envs: EpisodeRecorder) -> OnPolicyAgent:
    """The algorithm by the task's defaults; only true rewards come in a scale of the environment's own."""
    row, scale = _defaults(envs.env_id, envs.single_observation_space), config.predictor == "rl"
    own: dict[str, Any] = {} if config.ent_coef is None else {"ent_coef": config.ent_coef}
    if config.agent == "trpo":
        trpo = row.trpo_for(envs.single_action_space, normalize_rewards=scale)
        return TRPO(envs, replace(trpo, **own), config.seed, config.device)
    ppo = row.ppo_for(config.num_timesteps, normalize_rewards=scale)
    return PPO(envs, replace(ppo, **own), config.seed, config.device)


def segment_length(config: TeachConfig, task: TaskInfo) -> int:
    """Steps of a segment: as given, else so many seconds at the task's clip rate."""
    return config.segment_steps or usual_length(config.segment_seconds, task.fps)
