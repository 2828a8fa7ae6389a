"""Initial state of the wrapper's trainer: saved preferences, predictors, collector, label schedule."""

import contextlib
import logging
import re
from pathlib import Path

from teacher.data.ledger import Ledger
from teacher.data.preferences import PreferenceDataset
from teacher.datasets.predictor_files import load_predictor
from teacher.datasets.preference_files import load_preferences
from teacher.envs.families import same_environment
from teacher.errors import ConfigError, DataError
from teacher.queries.collector import Collector
from teacher.queries.judges import Judge
from teacher.queries.schedules import ConstantRate, ExponentialSchedule, LabelSchedule
from teacher.queries.synthetic import SyntheticTeacher, scripted_judge
from teacher.reward.modules import MakeNetwork
from teacher.reward.predictor import RewardPredictor
from teacher.reward.unused import reject_unused_of_network
from teacher.settings.options import RewardConfig
from teacher.settings.teachers import ErrorModel
from teacher.wrapper.clips import ClipSource
from teacher.wrapper.recording import Source
from teacher.wrapper.settings import WrapperConfig

PREFERENCES_NAME = "preferences.npz"
CHECKPOINTS_NAME = "reward_predictor_checkpoints"
_CHECKPOINT = re.compile(r"predictor-(\d+)\.npz")
_SYNTHETIC_PERIOD = 0.25  # seconds per label, as in DRLHP
_PEOPLE_PERIOD = 3.0

_log = logging.getLogger("teacher.wrapper")


def first_preferences(config: WrapperConfig, source: Source, ledger: Ledger) -> tuple[PreferenceDataset, int]:
    """Return the preferences to start from, and the number of them from ``prefs_dir``.

    Raises:
        ConfigError: the saved segments have another length, or ``log_dir`` is from another environment.
        DataError, OSError: ``prefs_dir`` cannot be read, or is from another environment.
    """
    dataset = _saved_preferences(config, source)
    loaded = len(dataset)
    dataset.max_size = config.max_prefs_in_db
    dataset.upsert(ledger.targets())
    if not same_environment(dataset.env_id, source.env_id):
        raise ConfigError(
            f"log_dir: {config.logs} holds labels for {dataset.env_id}, expected {source.env_id}; choose "
            "another log_dir"
        )
    dataset.env_id = source.env_id  # if the environment has two names
    return dataset, loaded


def keep_last(dataset: PreferenceDataset, config: WrapperConfig, most: int | None) -> None:
    """Limit the dataset to the newest ``most`` preferences, if the predictor's settings have a limit.

    Raises:
        ConfigError: the limit is less than training needs to start.
    """
    if most is None or not config.train_reward:
        return
    if most < config.n_initial_prefs:
        raise ConfigError(
            f"reward.max_preferences: expected n_initial_prefs ({config.n_initial_prefs}) or more, or "
            f"training never starts; got {most}"
        )
    dataset.max_size = min(most, config.max_prefs_in_db)


def _saved_preferences(config: WrapperConfig, source: Source) -> PreferenceDataset:
    """Return the preferences in ``prefs_dir``, none if it is not set.

    Raises:
        ConfigError: its segments have another length.
        DataError, OSError: it cannot be read, or is from another environment.
    """
    if config.prefs_dir is None:
        return PreferenceDataset()
    path = Path(config.prefs_dir)
    path = path / PREFERENCES_NAME if path.is_dir() else path
    spaces = source.observation_space, source.action_space
    dataset = load_preferences(
        path, env_id=source.env_id, observation_space=spaces[0], action_space=spaces[1]
    )
    if dataset.segment_length != config.segment_steps:
        raise ConfigError(
            f"segment_length: expected {dataset.segment_length} as in {path}, got {config.segment_length}"
        )
    dataset.env_id = source.env_id
    return dataset


def first_predictors(
    config: WrapperConfig, source: Source, network: MakeNetwork | None
) -> tuple[RewardPredictor | None, RewardPredictor]:
    """Return the pretrained predictor to use from the first step, None without one, and the one to train.

    Raises:
        ConfigError: a setting of ``reward`` has no effect, or a pretrained predictor has other settings.
        DataError: the pretrained predictor cannot be read, or does not fit the environment.
    """
    folder = config.pretrained_reward_predictor_dir
    if folder is None:
        if config.train_reward:
            own = network is not None
            reject_unused_of_network(config.reward, source.observation_space, own_network=own)
        return None, new_predictor(config, source, network, config.reward)
    path = newest_checkpoint(Path(folder))
    spaces = source.observation_space, source.action_space
    used, trained = (
        load_predictor(path, *spaces, config.device, network, env_id=source.env_id) for _ in range(2)
    )
    if config.reward not in (RewardConfig(), used.config):
        raise ConfigError(
            f"reward: expected the settings of {path}, or none; leave it out with "
            "pretrained_reward_predictor_dir"
        )
    _log.info("predicting rewards with %s", path)
    return used, trained


def new_predictor(
    config: WrapperConfig, source: Source, network: MakeNetwork | None, reward: RewardConfig
) -> RewardPredictor:
    """Return an untrained predictor with the settings ``reward``."""
    spaces = source.observation_space, source.action_space
    return RewardPredictor(*spaces, reward, config.seed, config.device, network)


def collector_of(
    config: WrapperConfig,
    source: Source,
    clips: ClipSource,
    ledger: Ledger,
    parts: contextlib.ExitStack,
    seed: int,
) -> Collector:
    """Return the collector that the settings ask for.

    Args:
        config: settings of the wrapper.
        source: the environment that segments come from.
        clips: shows segments to people.
        ledger: stores comparisons and labels.
        parts: stack that closes the collector.
        seed: seed of a scripted teacher's UUIDs and mistakes.

    Raises:
        ConfigError: people cannot label in the configured way.
        SiteUnreachableError, SiteRefusedError: the site is unreachable or refuses the experiment.
    """
    if config.synthetic_prefs or not config.collect_prefs:
        return SyntheticTeacher(ledger, seed, _judge(config, ledger))
    from teacher.wrapper.people import people_collector  # noqa: PLC0415 (needed for people only)

    return people_collector(config, source, clips, ledger, parts)


def _judge(config: WrapperConfig, ledger: Ledger) -> Judge:
    if not isinstance(config.judge, str):
        return config.judge
    return scripted_judge(ErrorModel.parse(config.judge, "judge"), config.seed, ledger)


def schedule_of(config: WrapperConfig, asked: int) -> LabelSchedule:
    """Return the label schedule; one by time counts the ``asked`` comparisons as due already."""
    if config.schedule is not None:
        return config.schedule
    if config.n_prefs is not None and config.total_timesteps is not None:
        return ExponentialSchedule(config.n_initial_prefs, config.n_prefs, config.total_timesteps)
    period = _SYNTHETIC_PERIOD if config.synthetic_prefs else _PEOPLE_PERIOD
    return ConstantRate(max(config.n_initial_prefs, asked), period)


def checkpoints(folder: Path) -> list[Path]:
    """Return the saved predictors in a folder, oldest first."""
    return sorted(path for path in folder.glob("*.npz") if _CHECKPOINT.fullmatch(path.name))


def newest_checkpoint(folder: Path) -> Path:
    """Return the newest predictor file in a folder of checkpoints or a ``log_dir``; a file is returned as is.

    Raises:
        DataError: there is none.
    """
    if folder.is_file():
        return folder
    saved = checkpoints(folder) or checkpoints(folder / CHECKPOINTS_NAME)
    if not saved:
        raise DataError(
            f"expected a folder of saved reward predictors (predictor-*.npz), got {folder}: name the "
            f"{CHECKPOINTS_NAME} of a log_dir"
        )
    return saved[-1]
