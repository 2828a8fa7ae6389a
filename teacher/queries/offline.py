"""Offline learning of a reward predictor from recorded episodes, without an agent."""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from gymnasium import spaces

from teacher.data.ledger import Ledger
from teacher.data.preferences import PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.data.steps import require_finite
from teacher.envs.trajectory import Trajectory
from teacher.errors import ConfigError, DataError, pluralize
from teacher.queries.collector import SyntheticTeacher
from teacher.queries.judges import Judge
from teacher.queries.learning import Asking, Submitted
from teacher.queries.schedules import AllAtOnce
from teacher.reward.building import reject_unused_of_network
from teacher.reward.images import with_absorbing
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import FitReport
from teacher.settings.checks import COUNT, SEED, check_fields, whole_number
from teacher.settings.options import MAX_UPDATES, RewardConfig
from teacher.settings.unused import reject_unused

Space = spaces.Space[Any]


@dataclass(frozen=True, kw_only=True)
class OfflineConfig:
    """Settings of :func:`learn_reward`.

    Raises:
        ConfigError: a setting is invalid, or has no effect in a single fit.
    """

    n_labels: Annotated[int, 'number of labels, not counting "can\'t tell"', COUNT]
    segment_steps: Annotated[int, "steps per segment", COUNT]
    seed: Annotated[int, "seed of pairs, initial parameters and minibatches", SEED] = 1
    max_updates: Annotated[int, "maximum updates of the fit, which ends earlier at convergence", COUNT] = (
        MAX_UPDATES
    )
    allow_variable_horizon: Annotated[
        bool, "accept episodes of different lengths, although the length can reveal the reward"
    ] = False
    reward: Annotated[
        RewardConfig, "settings of the predictor, except settings that only affect later fits"
    ] = field(default_factory=RewardConfig)

    def __post_init__(self) -> None:
        check_fields(self, prefix="")
        check_single_fit(self.reward, self.max_updates, prefix="")


def learn_reward(
    episodes: Iterable[Trajectory],
    judge: Judge,
    observation_space: Space,
    action_space: Space,
    config: OfflineConfig,
) -> RewardPredictor:
    """Cut episodes into segments, let a judge label pairs of them, and fit a predictor to the labels.

    Warns if the fit diverges, if no label used for fitting is a strict preference, if the predictor's inputs
    are nearly constant or too coarsely rounded to tell steps apart, or if there are so few segments that some
    are in several pairs.

    Args:
        episodes: recorded episodes, for example from :meth:`Trajectory.from_arrays`.
        judge: :func:`~teacher.queries.judges.oracle`, a :class:`~teacher.queries.judges.ScriptedTeacher`, or
            any function of two segments that returns a decision or a probability.
        observation_space: observation space of a single environment.
        action_space: action space of a single environment.
        config: settings for segments, labels and the predictor.

    Returns:
        The fitted predictor.

    Raises:
        DataError: there are too few segments or labels to learn from, or finished episodes (terminated or
            truncated) differ in length and ``config.allow_variable_horizon`` is False.
        BehaviorError: the judge failed, or returned neither a decision nor a probability.
        ConfigError: a setting has no effect on the predictor's network type.
    """
    reject_unused_of_network(config.reward, observation_space)
    pool = SegmentPool(config.segment_steps, capacity=10**9, seed=config.seed)
    finite, reward = _finite(episodes), config.reward
    for episode in finite if config.allow_variable_horizon else _of_one_length(finite):
        pool.extend([episode])
        still = len(episode) - episode.moving_steps if episode.absorbs else 0
        if still > config.segment_steps:
            reward = with_absorbing(reward, observation_space)
    dataset = ask(pool, judge, config.n_labels)
    predictor = RewardPredictor(observation_space, action_space, reward, config.seed)
    report = fit_once(predictor, dataset, config.max_updates)
    require_updates(report, dataset)
    for problem in report.problems("RewardConfig(learning_rate=...)").values():
        warnings.warn(problem, stacklevel=2)
    return predictor


def check_single_fit(config: RewardConfig, max_updates: int, prefix: str) -> None:
    """Raise :class:`ConfigError` for settings that have no effect in a single fit (:func:`fit_once`).

    Args:
        prefix: prefix for setting names in error messages.
    """
    reject_unused(config, "single fit", f"{prefix}reward.")
    if config.initial_epochs is not None and max_updates != MAX_UPDATES:
        raise ConfigError(
            f"{prefix}max_updates: has no effect with {prefix}reward.initial_epochs, which "
            f"sets the length of the fit; set only one of them"
        )


def fit_once(
    predictor: RewardPredictor,
    dataset: PreferenceDataset,
    max_updates: int,
    progress: Callable[[int], None] | None = None,
) -> FitReport:
    """Fit an untrained predictor for ``initial_epochs`` if that is set, else to convergence.

    Args:
        dataset: the preferences. If there are more than the predictor's ``max_preferences``, the oldest are
            dropped from the dataset.
    """
    dataset.max_size = predictor.config.max_preferences
    if predictor.config.initial_epochs is not None:
        return predictor.fit(dataset, progress=progress)
    return predictor.fit(dataset, max_updates=max_updates, progress=progress)


def _finite(episodes: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """Yield the episodes; raise DataError if an episode built from arrays contains NaN or infinity."""
    for index, episode in enumerate(episodes):
        if not episode.replayable:
            try:
                require_finite(episode)
            except DataError as error:
                raise DataError(f"episode {index}: {error}; fix the episode or leave it out") from error
        yield episode


def _of_one_length(episodes: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """Yield the episodes; raise DataError if finished episodes differ in length."""
    length: int | None = None
    for episode in episodes:
        if episode.finished and length is None:
            length = len(episode)
        if episode.finished and len(episode) != length:
            raise DataError(
                f"finished episodes have different lengths ({length} and {len(episode)} steps), and an "
                "episode's length can reveal the reward; to allow different lengths, for example "
                "for excerpts of episodes, pass OfflineConfig(allow_variable_horizon=True, ...)"
            )
        yield episode


def require_updates(report: FitReport, dataset: PreferenceDataset) -> None:
    """Raise :class:`DataError` if a fit made no updates, in which case predicted rewards are still random.

    This happens if every ensemble member holds out all preferences.
    """
    if report.updates == 0:
        raise DataError(
            f"nothing was learned, because every ensemble member holds out the whole dataset "
            f"({pluralize(len(dataset), 'preference')}); add preferences, or increase --reward.members"
        )


def ask(pool: SegmentPool, judge: Judge, count: int) -> PreferenceDataset:
    """Let a judge label random pairs from a pool, and return a dataset of ``count`` preferences.

    Warns if there are so few segments that some are in several pairs.

    Raises:
        BehaviorError: the judge failed, or returned neither a decision nor a probability.
        ConfigError: ``count`` is not an integer of 1 or more.
        DataError: the pool has too few pairs, or the judge answers "can't tell" for too many of them.
    """
    count = whole_number(count, "count", COUNT)
    steps, pairs_there = pluralize(pool.length, "step"), math.comb(len(pool), 2)
    if len(pool) < 2:
        raise DataError(
            f"expected 2 or more segments of {steps}, got {len(pool)}; use more or longer episodes"
        )
    if count > pairs_there:
        raise DataError(
            f"{len(pool)} segments of {steps} form only {pluralize(pairs_there, 'pair')}, not {count:,}; "
            "use more or longer episodes, or request fewer pairs or shorter segments"
        )
    with contextlib.closing(Ledger(None)) as counts:
        teacher = SyntheticTeacher(counts, None, judge)
        asking = Asking(counts, PreferenceDataset(), pool, AllAtOnce(count), collector=teacher)
        asking.submit_rest(lambda: _submit(asking))
        asking.receive()
        asked = counts.total()
    if len(asking.dataset) < count:
        raise DataError(
            f"got only {len(asking.dataset)} of {pluralize(count, 'label')} from "
            f"{pluralize(asked, 'comparison')} of {len(pool)} segments, because the judge answered "
            '"can\'t tell" for the rest; request fewer labels, use a judge that answers "can\'t tell" less '
            "often, or use more episodes"
        )
    return asking.dataset


def _submit(asking: Asking) -> Submitted:
    submitted = asking.submit(asking.missing(step=0), step=0)
    if submitted.repeats_segments:
        remedy = "use more or longer episodes, or shorter segments"
        warnings.warn(submitted.warning(remedy), stacklevel=5)
    return submitted
