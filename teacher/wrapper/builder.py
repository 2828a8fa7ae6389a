"""Setup of the wrapper's trainer: preferences, predictors, label collector and label schedule."""

import logging
import re
from dataclasses import asdict, fields
from pathlib import Path

from teacher.data.ledger import Ledger
from teacher.data.preferences import PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.datasets.predictor_files import load_predictor
from teacher.datasets.preference_files import load_preferences
from teacher.envs.families import same_environment
from teacher.errors import ConfigError, DataError, pluralize
from teacher.queries.collector import Collector
from teacher.queries.kinds import KINDS
from teacher.queries.learning import PreferenceLearning
from teacher.queries.schedules import ConstantRate, ExponentialSchedule, LabelSchedule
from teacher.reward.building import reject_unused_of_network
from teacher.reward.images import with_absorbing
from teacher.reward.modules import MakeNetwork
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig
from teacher.wrapper.recording import Source
from teacher.wrapper.settings import WrapperConfig

CHECKPOINTS_NAME = "reward_predictor_checkpoints"
_CHECKPOINT = re.compile(r"predictor-(\d+)\.npz")
_SYNTHETIC_PERIOD = 0.25  # seconds per label, as in DRLHP
_PEOPLE_PERIOD = 3.0

_log = logging.getLogger("teacher.wrapper")
_preferences_log = logging.getLogger("teacher.wrapper.preferences")


def start_learning(
    config: WrapperConfig, source: Source, ledger: Ledger, predictor: RewardPredictor
) -> PreferenceLearning:
    """Create a trainer's preference learning, with all labels so far, but without a source of more.

    Raises:
        DataError, OSError: ``prefs_dir`` can't be read, or is from a different environment.
    """
    dataset = _saved_preferences(config, source)
    loaded = dataset.labels
    dataset.max_size = config.max_prefs_in_db
    most = predictor.config.max_preferences
    if most is not None and config.train_reward:
        if most < config.n_initial_prefs:
            raise ConfigError(
                f"reward.max_preferences: must be at least n_initial_prefs ({config.n_initial_prefs}), or "
                f"training never starts; got {most}"
            )
        dataset.max_size = min(most, config.max_prefs_in_db)
    learning = PreferenceLearning(
        ledger,
        dataset,
        SegmentPool(config.segment_steps, config.max_pref_interface_segs, config.seed),
        _schedule_of(config, loaded + ledger.asked()),
        predictor,
        collector=Collector(ledger),
        queries=config.queries,
        kinds=(KINDS[config.feedback],),
        earlier=loaded,
    )
    if not same_environment(dataset.env_id, source.env_id):
        raise ConfigError(
            f"log_dir: {config.logs} contains labels for {dataset.env_id}, not for {source.env_id}; choose a "
            "different log_dir"
        )
    dataset.env_id = source.env_id  # the environment may have two IDs
    if len(dataset):
        _preferences_log.info("starting with %s", pluralize(len(dataset), "preference"))
    return learning


def _saved_preferences(config: WrapperConfig, source: Source) -> PreferenceDataset:
    if (path := config.saved_preferences) is None:
        return PreferenceDataset()
    spaces = {"observation_space": source.observation_space, "action_space": source.action_space}
    dataset = load_preferences(path, env_id=source.env_id, **spaces)
    if dataset.segment_length != config.segment_steps:
        raise ConfigError(
            f"segment_length: must be {dataset.segment_length}, the length of the segments in {path}; got "
            f"{config.segment_length}"
        )
    dataset.env_id = source.env_id
    return dataset


def first_predictors(
    config: WrapperConfig, source: Source, network: MakeNetwork | None
) -> tuple[RewardPredictor | None, RewardPredictor]:
    """Return the pretrained predictor (None if not configured) and the predictor to train.

    Raises:
        DataError: the pretrained predictor can't be read, or does not match the environment.
    """
    folder = config.pretrained_reward_predictor_dir
    if folder is None:
        if config.train_reward:
            own = network is not None
            reject_unused_of_network(config.reward, source.observation_space, own_network=own)
        reward = config.reward
        if source.absorbs:
            reward = with_absorbing(reward, source.observation_space)
        return None, new_predictor(config, source, network, reward)
    path = newest_checkpoint(Path(folder))
    spaces = source.observation_space, source.action_space
    used, trained = (
        load_predictor(path, *spaces, config.device, network, env_id=source.env_id) for _ in range(2)
    )
    settings = {**asdict(used.config), "members": used.members}
    for field in fields(RewardConfig):
        asked, saved = getattr(config.reward, field.name), settings[field.name]
        if asked not in (field.default, saved):
            raise ConfigError(
                f"reward: {field.name} is {asked}, but {saved} in the pretrained predictor {path}; leave out "
                "reward if you pass pretrained_reward_predictor_dir"
            )
    _log.info("predicting rewards with %s", path)
    return used, trained


def new_predictor(
    config: WrapperConfig, source: Source, network: MakeNetwork | None, reward: RewardConfig
) -> RewardPredictor:
    """Create an untrained predictor with the settings ``reward``."""
    spaces = source.observation_space, source.action_space
    return RewardPredictor(*spaces, reward, config.seed, config.device, network)


def _schedule_of(config: WrapperConfig, asked: int) -> LabelSchedule:
    """Return the label schedule; a time-based one starts with the ``asked`` earlier labels due."""
    if config.schedule is not None:
        return config.schedule
    if config.n_prefs is not None and config.total_timesteps is not None:
        return ExponentialSchedule(config.n_initial_prefs, config.n_prefs, config.total_timesteps)
    period = _SYNTHETIC_PERIOD if config.synthetic_prefs else _PEOPLE_PERIOD
    return ConstantRate(max(config.n_initial_prefs, asked), period)


def checkpoints(folder: Path) -> list[Path]:
    """Return the saved predictor files in a folder, oldest first."""
    return sorted(path for path in folder.glob("*.npz") if _CHECKPOINT.fullmatch(path.name))


def newest_checkpoint(folder: Path) -> Path:
    """Return the newest predictor file in a checkpoint folder or ``log_dir``.

    If ``folder`` is a file, return it unchanged.
    """
    if folder.is_file():
        return folder
    saved = checkpoints(folder) or checkpoints(folder / CHECKPOINTS_NAME)
    if not saved:
        raise DataError(
            f"{folder} contains no saved reward predictors (predictor-*.npz): pass a log_dir, or its "
            f"subfolder {CHECKPOINTS_NAME}"
        )
    return saved[-1]
