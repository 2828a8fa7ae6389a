"""Learning a reward from recorded episodes, without an agent."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from gymnasium import spaces

from teacher.data.preferences import PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.data.steps import require_finite
from teacher.envs.trajectory import Trajectory
from teacher.errors import ConfigError, DataError, pluralize
from teacher.queries.asking import Asking, Submitted
from teacher.queries.judges import Judge
from teacher.queries.messages import few_segments
from teacher.queries.schedules import AllAtOnce
from teacher.queries.synthetic import UnrecordedTeacher
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import FitReport
from teacher.reward.unused import reject_unused_of_network
from teacher.settings.checks import COUNT, SEED, check_fields, whole_number
from teacher.settings.options import MAX_UPDATES, RewardConfig
from teacher.settings.unused import reject_unused

Space = spaces.Space[Any]


@dataclass(frozen=True, kw_only=True)
class OfflineConfig:
    """Settings of :func:`learn_reward`; raises :class:`ConfigError` for invalid values."""

    n_labels: Annotated[int, 'labels, not counting "can\'t tell"', COUNT]
    segment_steps: Annotated[int, "steps per segment", COUNT]
    seed: Annotated[int, "for pairs, initial parameters and minibatches", SEED] = 1
    max_updates: Annotated[int, "of the predictor at most; stops earlier at convergence", COUNT] = MAX_UPDATES
    allow_variable_horizon: Annotated[
        bool, "accept episodes of different lengths, although the length leaks the reward"
    ] = False
    reward: Annotated[RewardConfig, "settings of the predictor; those for later fits are refused"] = field(
        default_factory=RewardConfig
    )

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
    """Cut episodes into segments, have a judge label pairs of them, and fit a predictor to the labels.

    Args:
        episodes: from :meth:`Trajectory.from_arrays`, or from this project's environments.
        judge: such as :func:`~teacher.queries.judges.oracle`, a
            :class:`~teacher.queries.judges.ScriptedTeacher`, or any function of two segments.
        observation_space: of one environment.
        action_space: of one environment.
        config: the settings.

    Raises:
        DataError: there are too few segments or labels to learn from, or finished episodes differ in length
            and the config does not allow that.
        BehaviorError: the judge failed, or returned an invalid label.
        ConfigError: a setting belongs to another kind of network.

    Warns if the fit diverged, if no label prefers either segment, if the predictor's inputs can't tell steps
    apart, and if segments are so few that some are in several pairs.
    """
    reject_unused_of_network(config.reward, observation_space)
    pool = SegmentPool(config.segment_steps, capacity=10**9, seed=config.seed)
    finite = _finite(episodes)
    pool.extend(finite if config.allow_variable_horizon else _of_one_length(finite))
    dataset = ask(pool, judge, config.n_labels)
    predictor = RewardPredictor(observation_space, action_space, config.reward, config.seed)
    report = fit_once(predictor, dataset, config.max_updates)
    require_updates(report, dataset)
    for problem in report.problems("RewardConfig(learning_rate=...)").values():
        warnings.warn(problem, stacklevel=2)
    return predictor


def check_single_fit(config: RewardConfig, max_updates: int, prefix: str) -> None:
    """Raise :class:`ConfigError` for a setting that has no effect where :func:`fit_once` is the only fit.

    Args:
        config: of the predictor.
        max_updates: of the fit.
        prefix: of the setting's name, in the message.
    """
    reject_unused(config, "single fit", f"{prefix}reward.")
    if config.initial_epochs is not None and max_updates != MAX_UPDATES:
        raise ConfigError(
            f"{prefix}max_updates: leave it out, it has no effect with {prefix}reward.initial_epochs, which "
            f"sets the length of the fit; got {max_updates}"
        )


def fit_once(
    predictor: RewardPredictor,
    dataset: PreferenceDataset,
    max_updates: int,
    progress: Callable[[int], None] | None = None,
) -> FitReport:
    """Fit an untrained predictor once: to convergence, or for the settings' ``initial_epochs``.

    Args:
        predictor: to be fitted.
        dataset: the preferences; only the latest are kept if the settings limit their number.
        max_updates: of a fit to convergence.
        progress: see :meth:`RewardPredictor.fit`.
    """
    dataset.max_size = predictor.config.max_preferences
    if predictor.config.initial_epochs is not None:
        return predictor.fit(dataset, progress=progress)
    return predictor.fit(dataset, max_updates=max_updates, progress=progress)


def _finite(episodes: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """Yield the episodes; raise DataError with the index of a recorded one that holds NaN or infinity."""
    for number, episode in enumerate(episodes):
        if not episode.replayable:
            try:
                require_finite(episode)
            except DataError as error:
                raise DataError(f"episode {number}: {error}; fix the episode or leave it out") from error
        yield episode


def _of_one_length(episodes: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """Yield the episodes; raise DataError if finished ones differ in length."""
    length: int | None = None
    for episode in episodes:
        if episode.finished and length is None:
            length = len(episode)
        if episode.finished and len(episode) != length:
            raise DataError(
                f"expected episodes of one length, got one of {length} and one of {len(episode)} steps, and "
                "the length of an episode leaks the reward: pass OfflineConfig(allow_variable_horizon=True, "
                "...) to accept that, for example for excerpts of episodes"
            )
        yield episode


def require_updates(report: FitReport, dataset: PreferenceDataset) -> None:
    """Raise an error for a predictor that learned nothing, so that its rewards are still random.

    Raises:
        DataError: the fit made no update, because every member happens to hold out all preferences.
    """
    if report.updates == 0:
        raise DataError(
            f"expected preferences to learn from, got {len(dataset)}, all of them held out by every member "
            "of the predictor; give more preferences, or increase --reward.members"
        )


def ask(pool: SegmentPool, judge: Judge, count: int) -> PreferenceDataset:
    """Return ``count`` labels of a judge for pairs from a pool.

    Warns if segments are so few that some are in several pairs.

    Raises:
        BehaviorError: the judge failed, or returned an invalid label.
        ConfigError: ``count`` is not an integer of 1 or more.
        DataError: the pool has too few pairs, or the judge can tell too few apart.
    """
    count = whole_number(count, "count", COUNT)
    steps, pairs_there = pluralize(pool.length, "step"), math.comb(len(pool), 2)
    if len(pool) < 2:
        raise DataError(f"expected 2 or more segments of {steps}, got {len(pool)}; give longer episodes")
    if count > pairs_there:
        raise DataError(
            f"expected segments for {pluralize(count, 'pair')}, got {len(pool)} of {steps}, which make "
            f"{pairs_there}; give more or longer episodes, or request fewer pairs or shorter segments"
        )
    teacher = UnrecordedTeacher(judge)
    asking = Asking(teacher, teacher, PreferenceDataset(), pool, AllAtOnce(count))
    asking.submit_rest(lambda: _submit(asking))
    asking.receive()
    if len(asking.dataset) < count:
        raise DataError(
            f"expected {pluralize(count, 'label')}, got {len(asking.dataset)} for "
            f"{pluralize(teacher.total(), 'comparison')} of {len(pool)} segments; request fewer labels, use "
            "a judge that can tell more pairs apart, or give more episodes"
        )
    return asking.dataset


def _submit(asking: Asking[UnrecordedTeacher]) -> Submitted:
    submitted = asking.submit(asking.missing(step=0), step=0)
    if submitted.repeats_segments:
        remedy = "give more or longer episodes, or use shorter segments"
        warnings.warn(few_segments(submitted, remedy), stacklevel=5)
    return submitted
