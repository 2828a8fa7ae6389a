"""Learning a reward from episodes that are there already, without an agent."""

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.data.demonstrations import Demonstrations
from teacher.data.preferences import PreferenceDataset
from teacher.data.segments import SegmentPool
from teacher.data.steps import LARGEST, Episode, fits_float32, readable_steps
from teacher.envs.episodes import terminations
from teacher.envs.recipe import EpisodeRecipe
from teacher.errors import ConfigError, DataError, counted
from teacher.queries.asking import Asking, Submitted
from teacher.queries.judges import Judge
from teacher.queries.messages import few_segments
from teacher.queries.schedules import AllAtOnce
from teacher.queries.synthetic import UnrecordedTeacher
from teacher.reward.idle import IN_A_SINGLE_FIT, refuse_idle_of_network
from teacher.reward.predictor import RewardPredictor
from teacher.reward.report import FitReport
from teacher.settings.checks import COUNT, SEED, check_fields, refuse_idle, whole_number
from teacher.settings.options import MAX_UPDATES, RewardConfig

Space = spaces.Space[Any]


@dataclass(frozen=True, eq=False)
class RecordedEpisode:
    """A whole episode from arrays; an :class:`Episode` that cannot be played again.

    Attributes:
        states: ``(steps + 1, *observation_shape)``, the observation before each step, and the last one.
        actions: ``(steps, *action_shape)``.
        true_rewards: ``(steps,)``; zeros where there are none.
        terminated: whether the environment ended it, rather than a time limit; None where nobody knows, and
            then it counts as not ended so.

    Raises:
        DataError: they are no arrays of numbers, or do not fit each other.
    """

    states: NDArray[Any]
    actions: NDArray[Any]
    true_rewards: NDArray[np.float64]
    terminated: bool | None = False

    def __post_init__(self) -> None:
        for name in ("states", "actions", "true_rewards"):
            self._require_numbers(name)
        if self.true_rewards.ndim > 1:
            raise DataError(
                f"expected one true reward for each step, (steps,), got an array {self.true_rewards.shape}"
            )
        lengths = len(self.states) - 1, len(self.actions), len(self.true_rewards)
        if len(set(lengths)) > 1:
            raise DataError(
                f"expected one state more than actions and true rewards, that after the last step, got "
                f"{len(self.states)} states, {lengths[1]} actions and {lengths[2]} true rewards"
            )

    def require_finite(self) -> None:
        """Raise :class:`DataError`, which names the step, unless all but a last step can be learned from.

        That may have led to what is no number: see :func:`~teacher.data.steps.readable_steps`.
        """
        steps = readable_steps(self)
        parts = {
            "observations": self.states[: steps + 1],
            "actions": self.actions[:steps],
            "true rewards": self.true_rewards[:steps],
        }
        for name, part in parts.items():
            bad = np.argwhere(~fits_float32(part))
            if bad.size:
                step, found = int(bad[0, 0]), part[tuple(bad[0])]
                place = "after the last step" if step == len(self) else f"at step {step}"
                raise DataError(f"expected finite {name} of at most {LARGEST:.1e}, got {found} {place}")

    def _require_numbers(self, name: str) -> None:
        array = getattr(self, name)
        if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in "iufb":
            found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise DataError(f"expected {name} as a numpy array of numbers, a row for each step, got {found}")

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def observations(self) -> NDArray[Any]:
        """See :class:`Steps`."""
        return self.states[:-1]

    @property
    def next_observations(self) -> NDArray[Any]:
        """See :class:`Steps`."""
        return self.states[1:]

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """See :class:`Steps`."""
        return terminations((len(self),), bool(self.terminated))

    @property
    def finished(self) -> bool:
        """See :class:`Episode`; nothing comes after it."""
        return True

    @property
    def frames(self) -> None:
        """See :class:`Episode`; there are none."""

    def recipe(self, upto: int | None = None) -> EpisodeRecipe:
        """The actions, of no environment that could be made."""
        return EpisodeRecipe("recorded", {}, 0, self.actions[:upto])


def demonstrated_episodes(
    demonstrations: Demonstrations, observation_space: Space, action_space: Space
) -> Iterator[RecordedEpisode]:
    """The episodes of demonstrations; each without its last step where what came of that is not known.

    Raises:
        DataError: they are of other spaces.
    """
    bounds = [*np.flatnonzero(demonstrations.episode_starts), len(demonstrations)]
    try:
        states = demonstrations.obs.reshape(-1, *(observation_space.shape or ()))
        actions = demonstrations.actions.reshape(-1, *(action_space.shape or ()))
        if not len(states) == len(actions) == len(demonstrations):
            raise ValueError
    except ValueError as error:
        shapes = demonstrations.obs.shape[1:], demonstrations.actions.shape[1:]
        raise DataError(
            f"expected demonstrations of {observation_space} and {action_space}, got shapes {shapes}"
        ) from error
    ends = demonstrations.terminated
    for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
        seen, terminated = states[start:stop], None if ends is None else bool(ends[number])
        if demonstrations.final_obs is None:
            terminated = False  # with none of the steps that are left
        else:
            seen = np.concatenate([seen, demonstrations.final_obs[number].reshape(1, *states.shape[1:])])
        steps = slice(start, start + len(seen) - 1)
        yield RecordedEpisode(seen, actions[steps], demonstrations.rewards[steps], terminated)


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
    episodes: Iterable[Episode],
    judge: Judge,
    observation_space: Space,
    action_space: Space,
    lesson: Lesson,
) -> RewardPredictor:
    """Cut episodes into segments, ask a judge about pairs of them, and fit a predictor to the answers.

    Args:
        episodes: :class:`RecordedEpisode`, or trajectories of this project's environments.
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


def _finite(episodes: Iterable[Episode]) -> Iterator[Episode]:
    """The same; recorded ones with what is no number are refused by their place among them, from 0."""
    for number, episode in enumerate(episodes):
        if isinstance(episode, RecordedEpisode):
            try:
                episode.require_finite()
            except DataError as error:
                raise DataError(f"episode {number}: {error}; mend or leave out the episode") from error
        yield episode


def _of_one_length(episodes: Iterable[Episode]) -> Iterator[Episode]:
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
    teacher = UnrecordedTeacher(judge)
    asking = Asking(teacher, teacher, PreferenceDataset(), pool, AllAtOnce(count))
    asking.submit_rest(lambda: _submit(asking))
    asking.receive()
    if len(asking.dataset) < count:
        raise DataError(
            f"expected {counted(count, 'answer')}, got {len(asking.dataset)} to "
            f"{counted(teacher.total(), 'question')} about {len(pool)} segments; ask for fewer, or a judge "
            "that can tell more pairs apart, or give more episodes"
        )
    return asking.dataset


def _submit(asking: Asking[UnrecordedTeacher]) -> Submitted:
    submitted = asking.submit(asking.missing(step=0), step=0)
    if submitted.repeats_segments:
        remedy = "more or longer episodes help, or shorter segments"
        warnings.warn(few_segments(submitted, remedy), stacklevel=5)
    return submitted
