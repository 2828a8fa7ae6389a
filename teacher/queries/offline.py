"""Learning a reward from episodes that are there already, without an agent."""

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
from teacher.reward.unused import IN_A_SINGLE_FIT, reject_unused_of_network
from teacher.settings.checks import COUNT, SEED, check_fields, reject_unused, whole_number
from teacher.settings.options import MAX_UPDATES, RewardConfig

Space = spaces.Space[Any]


@dataclass(frozen=True, kw_only=True)
class OfflineConfig:
    """How much is asked about and how it is learned; raises :class:`ConfigError` where values do not fit."""

    n_labels: Annotated[int, 'answers, those that say "can\'t tell" not counted', COUNT]
    segment_steps: Annotated[int, "steps of a segment", COUNT]
    seed: Annotated[int, "of the pairs, of initial parameters and of minibatches", SEED] = 1
    max_updates: Annotated[
        int, "of the predictor; it ends before where nothing is gained any more", COUNT
    ] = MAX_UPDATES
    allow_variable_horizon: Annotated[
        bool, "accept episodes of several lengths, although an episode's length leaks the reward"
    ] = False
    reward: Annotated[
        RewardConfig, "the predictor's settings; those about a second fit are refused, for there is none"
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
    """Cut episodes into segments, ask a judge about pairs of them, and fit a predictor to the answers.

    Args:
        episodes: :meth:`Trajectory.from_arrays`, or those of this project's environments.
        judge: such as :func:`~teacher.queries.judges.oracle`, a
            :class:`~teacher.queries.judges.ScriptedTeacher`, or any function of two segments.
        observation_space: of one environment.
        action_space: of one environment.
        config: how much and how.

    Raises:
        DataError: too few segments, or too few answers to learn from; or finished episodes of several
            lengths, unless the config allows them.
        BehaviorError: the judge failed, or said what is no answer.
        ConfigError: a setting of the config is of another kind of network.

    Warns where the fit diverged, where no answer says which segment is the better one, where steps cannot be
    told apart by what is read of them, and where there are so few segments that some are asked about several
    times.
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
    """Raise :class:`ConfigError` for a setting that does nothing where :func:`fit_once` is the only fit.

    Args:
        config: of the predictor.
        max_updates: of the fit.
        prefix: of the setting's name, in the message.
    """
    reject_unused(config, IN_A_SINGLE_FIT, f"{prefix}reward.")
    if config.initial_epochs is not None and max_updates != MAX_UPDATES:
        raise ConfigError(
            f"{prefix}max_updates: does nothing here, leave it out: {prefix}reward.initial_epochs says how "
            f"far the fit goes; got {max_updates}"
        )


def fit_once(
    predictor: RewardPredictor,
    dataset: PreferenceDataset,
    max_updates: int,
    progress: Callable[[int], None] | None = None,
) -> FitReport:
    """A first and only fit: to convergence, or as often through all preferences as the settings say.

    Args:
        predictor: to be fitted.
        dataset: the preferences; where the settings want fewer, only those given last are kept.
        max_updates: of a fit to convergence.
        progress: see :meth:`RewardPredictor.fit`.
    """
    dataset.max_size = predictor.config.max_preferences
    if predictor.config.initial_epochs is not None:
        return predictor.fit(dataset, progress=progress)
    return predictor.fit(dataset, max_updates=max_updates, progress=progress)


def _finite(episodes: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """The same; recorded ones with what is no number are refused by their place among them, from 0."""
    for number, episode in enumerate(episodes):
        if not episode.replayable:
            try:
                require_finite(episode)
            except DataError as error:
                raise DataError(f"episode {number}: {error}; mend or leave out the episode") from error
        yield episode


def _of_one_length(episodes: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """The same, refused where they differ; those that have not ended may be of any length."""
    length: int | None = None
    for episode in episodes:
        if episode.finished and length is None:
            length = len(episode)
        if episode.finished and len(episode) != length:
            raise DataError(
                f"expected episodes of one length, got one of {length} and one of {len(episode)} steps, and "
                "the length of an episode leaks the reward: pass OfflineConfig(allow_variable_horizon=True, "
                "...) to accept that, as for parts that were cut from episodes"
            )
        yield episode


def require_updates(report: FitReport, dataset: PreferenceDataset) -> None:
    """Refuse a predictor that learned nothing, whose rewards would be as random as it began.

    Raises:
        DataError: the fit made no update, because all preferences happen to be held out from each member.
    """
    if report.updates == 0:
        raise DataError(
            f"expected preferences to learn from, got {len(dataset)}, all of them held out from every member "
            "of the predictor; give more of them, or more --reward.members"
        )


def ask(pool: SegmentPool, judge: Judge, count: int) -> PreferenceDataset:
    """``count`` answers of a judge about pairs of a pool.

    Warns where some segments are asked about several times, because there are few.

    Raises:
        BehaviorError: the judge failed, or said what is no answer.
        ConfigError: ``count`` is no whole number of 1 or more.
        DataError: the pool holds too few pairs, or the judge can tell few apart.
    """
    count = whole_number(count, "count", COUNT)
    steps, pairs_there = pluralize(pool.length, "step"), math.comb(len(pool), 2)
    if len(pool) < 2:
        raise DataError(f"expected 2 or more segments of {steps}, got {len(pool)}; give longer episodes")
    if count > pairs_there:
        raise DataError(
            f"expected segments for {pluralize(count, 'pair')}, got {len(pool)} of {steps}, which make "
            f"{pairs_there}; give more or longer episodes, or ask for fewer or shorter segments"
        )
    teacher = UnrecordedTeacher(judge)
    asking = Asking(teacher, teacher, PreferenceDataset(), pool, AllAtOnce(count))
    asking.submit_rest(lambda: _submit(asking))
    asking.receive()
    if len(asking.dataset) < count:
        raise DataError(
            f"expected {pluralize(count, 'answer')}, got {len(asking.dataset)} to "
            f"{pluralize(teacher.total(), 'question')} about {len(pool)} segments; ask for fewer, or a judge "
            "that can tell more pairs apart, or give more episodes"
        )
    return asking.dataset


def _submit(asking: Asking[UnrecordedTeacher]) -> Submitted:
    submitted = asking.submit(asking.missing(step=0), step=0)
    if submitted.repeats_segments:
        remedy = "more or longer episodes help, or shorter segments"
        warnings.warn(few_segments(submitted, remedy), stacklevel=5)
    return submitted
