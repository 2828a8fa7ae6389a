"""The plan of a run: checked settings and the facts about its environment."""

from dataclasses import dataclass

from teacher.envs.tasks import TaskInfo, examine
from teacher.envs.trial import usual_length
from teacher.settings.config import RunSettings, TeachConfig


@dataclass(frozen=True)
class RunPlan:
    """Checked settings of a run and its environment's properties.

    Attributes:
        settings: the run's settings.
        task: the environment's spaces, episode limit, and clip frame rate.
    """

    settings: RunSettings
    task: TaskInfo

    @property
    def config(self) -> TeachConfig:
        """The run's configuration."""
        return self.settings.config

    @property
    def segment_length(self) -> int:
        """Steps of a segment: ``segment_steps``, else ``segment_seconds`` at the task's frame rate."""
        return self.config.segment_steps or usual_length(self.config.segment_seconds, self.task.fps)


def task_of(config: TeachConfig) -> TaskInfo:
    """Return the properties of a run's environment, which is made once to examine it.

    Raises:
        ConfigError: the observation transform does not exist.
        EnvironmentUnsuitableError: runs cannot use the environment.
    """
    return examine(config.env_id, config.make_kwargs, captures=config.capture_frames).task
