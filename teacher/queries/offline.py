"""Learning a reward from episodes that are there already, without an agent."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import NAMESPACE_URL, uuid5

from gymnasium import spaces

from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segment_pool import SegmentPool
from teacher.data.steps import require_finite
from teacher.envs.trajectory import Trajectory
from teacher.errors import ConfigError, DataError, counted
from teacher.queries.judges import Judge, answer_of
from teacher.queries.selection import select_pairs
from teacher.reward.idle import IN_A_SINGLE_FIT, refuse_idle_of_network
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import UNDECIDED, FitReport
from teacher.settings.checks import COUNT, SEED, check_fields, refuse_idle, whole_number
from teacher.settings.options import MAX_UPDATES, RewardConfig

Space = spaces.Space[Any]

_MAX_ROUNDS = 10  # of questions, where a judge leaves some without an answer


@dataclass(frozen=True, kw_only=True)
class Lesson:
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
    lesson: Lesson,
) -> RewardPredictor:
    """Cut episodes into segments, ask a judge about pairs of them, and fit a predictor to the answers.

    Args:
        episodes: :meth:`Trajectory.from_arrays`, or those of this project's environments.
        judge: such as :func:`~teacher.queries.judges.oracle`, a
            :class:`~teacher.queries.judges.ScriptedTeacher`, or any function of two segments.
        observation_space: of one environment.
        action_space: of one environment.
        lesson: how much and how.

    Raises:
        DataError: too few segments, or too few answers to learn from; or finished episodes of several
            lengths, unless the lesson allows them.
        BehaviourError: the judge failed, or said what is no answer.
        ConfigError: a setting of the lesson is of another kind of network.

    Warns where the fit diverged, where no answer says which segment is the better one, where steps cannot be
    told apart by what is read of them, and where there are so few segments that some are asked about several
    times.
    """
    refuse_idle_of_network(lesson.reward, observation_space)
    pool = SegmentPool(lesson.segment_steps, capacity=10**9, seed=lesson.seed)
    finite = _finite(episodes)
    pool.extend(finite if lesson.allow_variable_horizon else _of_one_length(finite))
    dataset = ask(pool, judge, lesson.n_labels)
    predictor = RewardPredictor(observation_space, action_space, lesson.reward, lesson.seed)
    report = fit_once(predictor, dataset, lesson.max_updates)
    require_updates(report, dataset)
    if report.undecided:
        warnings.warn(UNDECIDED, stacklevel=2)
    if report.doubt:
        warnings.warn(report.doubt, stacklevel=2)
    if report.diverged:
        warnings.warn(
            "the fit came to numbers that are none, and the predictor is what it was before; a smaller "
            "RewardConfig(learning_rate=...) helps, and outliers among the observations may be why",
            stacklevel=2,
        )
    return predictor


def check_single_fit(config: RewardConfig, max_updates: int, prefix: str) -> None:
    """Raise :class:`ConfigError` for a setting that does nothing where :func:`fit_once` is the only fit.

    Args:
        config: of the predictor.
        max_updates: of the fit.
        prefix: of the setting's name, in the message.
    """
    refuse_idle(config, IN_A_SINGLE_FIT, f"{prefix}reward.")
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
                "the length of an episode leaks the reward: pass Lesson(allow_variable_horizon=True, ...) to "
                "accept that, as for parts that were cut from episodes"
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
        BehaviourError: the judge failed, or said what is no answer.
        ConfigError: ``count`` is no whole number of 1 or more.
        DataError: the pool holds too few pairs, or the judge can tell few apart.
    """
    count = whole_number(count, "count", COUNT)
    steps, pairs_there = counted(pool.length, "step"), math.comb(len(pool), 2)
    if len(pool) < 2:
        raise DataError(f"expected 2 or more segments of {steps}, got {len(pool)}; give longer episodes")
    if count > pairs_there:
        raise DataError(
            f"expected segments for {counted(count, 'pair')}, got {len(pool)} of {steps}, which make "
            f"{pairs_there}; give more or longer episodes, or ask for fewer or shorter segments"
        )
    if len(pool) < 2 * count:
        warnings.warn(
            f"{len(pool)} segments are few for {count} comparisons, so some are in several; more or longer "
            "episodes help, or shorter segments",
            stacklevel=2,
        )
    dataset, asked = PreferenceDataset(), 0
    for _ in range(_MAX_ROUNDS):
        pairs = select_pairs(pool, count - len(dataset))
        # From the number asked before, so that a member's bootstrap is the same in every process.
        dataset.upsert(
            Preference(uuid5(NAMESPACE_URL, f"offline/{number}"), *pair, answer_of(judge, *pair))
            for number, pair in enumerate(pairs, asked)
        )
        asked += len(pairs)
    if len(dataset) < count:
        raise DataError(
            f"expected {counted(count, 'answer')}, got {len(dataset)} to {counted(asked, 'question')} about "
            f"{len(pool)} segments; ask for fewer, or a judge that can tell more pairs apart, or give more "
            "episodes"
        )
    return dataset
