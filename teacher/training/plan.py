"""Plan of a run: its validated settings and its environment's properties."""

from dataclasses import dataclass, replace

from teacher.envs.tasks import TaskInfo, examine
from teacher.envs.trial import usual_length
from teacher.reward.images import earns_0_after_end
from teacher.settings.config import RunSettings, TeachConfig


@dataclass(frozen=True)
class RunPlan:
    """A run's validated settings and its environment's properties.

    Attributes:
        settings: the run's settings.
        task: the environment's spaces, maximum episode length, and clip frame rate. Absorbed episodes
            continue for a segment after their end, because no segment ends later.
    """

    settings: RunSettings
    task: TaskInfo

    def __post_init__(self) -> None:
        if self.config.fixed_horizon == "absorb":
            terminates = self.config.predictor == "rl" or earns_0_after_end(self.config.reward)
            task = replace(self.task, frozen_steps=self.segment_length, terminates=terminates)
            object.__setattr__(self, "task", task)

    @property
    def config(self) -> TeachConfig:
        """The run's configuration."""
        return self.settings.config

    @property
    def segment_length(self) -> int:
        """Steps per segment: ``segment_steps`` if set, else ``segment_seconds`` at the task's frame rate."""
        return self.config.segment_steps or usual_length(self.config.segment_seconds, self.task.fps)


def task_of(config: TeachConfig) -> TaskInfo:
    """Return the properties of a run's environment, read from a temporary instance.

    Raises:
        ConfigError: the observation transform does not exist.
        EnvironmentUnsuitableError: the environment is not supported.
    """
    return examine(config.env_id, config.make_kwargs, captures=config.capture_frames).task
