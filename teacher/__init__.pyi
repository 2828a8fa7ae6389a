"""The names of the package, and where each is defined."""

from .clips.render import ClipSpec, ReplayRenderer
from .data.demonstrations import draw_returns, load_demonstrations, record_demonstrations, save_demonstrations
from .data.preferences import Preference, PreferenceDataset
from .data.segment_pool import SegmentPool
from .data.segments import Segment
from .data.steps import Steps
from .datasets.predictor_files import load_predictor, save_predictor
from .datasets.preference_files import load_preferences, save_preferences, saved_spaces
from .datasets.trajectories import load_trajectories
from .envs.random_episodes import policy_trajectories, random_trajectories
from .envs.tasks import describe_task
from .envs.trajectory import Trajectory
from .errors import ConfigError, DataError, TeacherError
from .labeling.bots import Bot
from .labeling.people import SiteOptions
from .queries.judges import ScriptedTeacher, oracle, probability_of
from .queries.offline import OfflineConfig, ask, learn_reward
from .queries.selection import select_pairs
from .reward.evaluation import evaluate, rank_correlation
from .reward.predictor import RewardPredictor
from .settings.config import TeachConfig
from .settings.options import QueryConfig, RewardConfig
from .settings.teachers import ErrorModel
from .training.builder import open_run
from .training.loop import Round, train
from .wrapper import FixedHorizon, HumanPreferencesEnvWrapper, HumanPreferencesVectorWrapper

__all__ = [
    "Bot",
    "ClipSpec",
    "ConfigError",
    "DataError",
    "ErrorModel",
    "FixedHorizon",
    "HumanPreferencesEnvWrapper",
    "HumanPreferencesVectorWrapper",
    "OfflineConfig",
    "Preference",
    "PreferenceDataset",
    "QueryConfig",
    "ReplayRenderer",
    "RewardConfig",
    "RewardPredictor",
    "Round",
    "ScriptedTeacher",
    "Segment",
    "SegmentPool",
    "SiteOptions",
    "Steps",
    "TeachConfig",
    "TeacherError",
    "Trajectory",
    "ask",
    "describe_task",
    "draw_returns",
    "evaluate",
    "learn_reward",
    "load_demonstrations",
    "load_predictor",
    "load_preferences",
    "load_trajectories",
    "open_run",
    "oracle",
    "policy_trajectories",
    "probability_of",
    "random_trajectories",
    "rank_correlation",
    "record_demonstrations",
    "save_demonstrations",
    "save_predictor",
    "save_preferences",
    "saved_spaces",
    "select_pairs",
    "train",
]
