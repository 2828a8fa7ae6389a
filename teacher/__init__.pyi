"""The names of the package, and where each is defined."""

from .assembly import open_run
from .bots import Bot
from .clips.render import Shot, Stage
from .config import TeachConfig
from .demonstrations import draw_returns, load_demonstrations, record_demonstrations, save_demonstrations
from .envs.random_episodes import policy_trajectories, random_trajectories
from .envs.tasks import describe_task
from .errors import ConfigError, DataError, TeacherError
from .evaluation import evaluate
from .judges import ScriptedTeacher, oracle, probability_of
from .loop import Round, train
from .metrics import rank_correlation
from .offline import Lesson, RecordedEpisode, ask, learn_reward
from .options import QueryConfig, RewardConfig
from .predictor_files import load_predictor, save_predictor
from .preference_files import load_preferences, save_preferences, saved_spaces
from .preferences import Preference, PreferenceDataset
from .queries import select_pairs
from .reward.predictor import RewardPredictor
from .segments import Segment, SegmentPool
from .steps import Steps
from .teachers import Manner
from .wrapper import FixedHorizon, HumanPreferencesEnvWrapper, HumanPreferencesVectorWrapper

__all__ = [
    "Bot",
    "ConfigError",
    "DataError",
    "FixedHorizon",
    "HumanPreferencesEnvWrapper",
    "HumanPreferencesVectorWrapper",
    "Lesson",
    "Manner",
    "Preference",
    "PreferenceDataset",
    "QueryConfig",
    "RecordedEpisode",
    "RewardConfig",
    "RewardPredictor",
    "Round",
    "ScriptedTeacher",
    "Segment",
    "SegmentPool",
    "Shot",
    "Stage",
    "Steps",
    "TeachConfig",
    "TeacherError",
    "ask",
    "describe_task",
    "draw_returns",
    "evaluate",
    "learn_reward",
    "load_demonstrations",
    "load_predictor",
    "load_preferences",
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
