"""A run whose settings were checked: what is known of it before anything is made."""

from dataclasses import dataclass

from teacher.envs.tasks import TaskInfo, examine
from teacher.envs.trial import usual_length
from teacher.settings.config import RunSettings, TeachConfig


@dataclass(frozen=True)
class RunPlan:
    """The settings of a run, fitted to its environment, and what the environment is.

    Attributes:
        settings: of the run.
        task: the environment: its spaces, the limit of an episode, the rate of its clips.
    """

    settings: RunSettings
    task: TaskInfo

    @property
    def config(self) -> TeachConfig:
        """The run's configuration."""
        return self.settings.config

    @property
    def segment_length(self) -> int:
        """Steps of a segment: as given, else the given seconds at the task's clip rate."""
        return self.config.segment_steps or usual_length(self.config.segment_seconds, self.task.fps)


def task_of(config: TeachConfig) -> TaskInfo:
    """Return the environment of a run, by making it once.

    Raises:
        ConfigError: there is no such observation transform.
        EnvironmentUnsuitableError: a run cannot use it.
    """
    return examine(config.env_id, config.make_kwargs, captures=config.capture_frames).task
