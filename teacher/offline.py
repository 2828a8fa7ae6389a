"""Learning a reward from episodes that are there already, without an agent."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.demonstrations import Demonstrations
from teacher.envs.episodes import terminations
from teacher.envs.recipe import EpisodeRecipe
from teacher.errors import DataError
from teacher.judges import Judge, probability_of
from teacher.options import RewardConfig
from teacher.preferences import Preference, PreferenceDataset
from teacher.queries import select_pairs
from teacher.reward.predictor import RewardPredictor
from teacher.segments import Episode, SegmentPool

Space = spaces.Space[Any]

_MAX_ROUNDS = 10  # of questions, where a judge leaves some without an answer


@dataclass(frozen=True, eq=False)
class RecordedEpisode:
    """A whole episode from arrays; an :class:`Episode` that cannot be played again.

    Attributes:
        states: ``(steps + 1, *observation_shape)``, the observation before each step, and the last one.
        actions: ``(steps, *action_shape)``.
        true_rewards: ``(steps,)``; zeros where there are none.
        terminated: whether the environment ended it, rather than a time limit.
    """

    states: NDArray[Any]
    actions: NDArray[Any]
    true_rewards: NDArray[np.float64]
    terminated: bool = False

    def __post_init__(self) -> None:
        lengths = len(self.states) - 1, len(self.actions), len(self.true_rewards)
        if len(set(lengths)) > 1:
            raise DataError(
                f"expected one state more than actions and true rewards, that after the last step, got "
                f"{len(self.states)} states, {lengths[1]} actions and {lengths[2]} true rewards"
            )

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
        return terminations((len(self),), self.terminated)

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
    """The episodes of demonstrations, each without its last step, since what came of that is not in the file.

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
    for start, stop in itertools.pairwise(bounds):
        steps = slice(start, stop - 1)
        yield RecordedEpisode(states[start:stop], actions[steps], demonstrations.rewards[steps])


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """How much is asked about and how it is learned.

    Attributes:
        n_labels: answers, those that say "can't tell" not counted.
        segment_steps: steps of a segment.
        seed: of the pairs, of initial parameters and of minibatches.
        max_updates: of the predictor; it ends before where nothing is gained any more.
        reward: the predictor's settings.
    """

    n_labels: int
    segment_steps: int
    seed: int = 1
    max_updates: int = 10_000
    reward: RewardConfig = field(default_factory=RewardConfig)


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
        judge: such as :func:`~teacher.judges.oracle`, a :class:`~teacher.judges.ScriptedTeacher`, or any
            function of two segments.
        observation_space: of one environment.
        action_space: of one environment.
        lesson: how much and how.

    Raises:
        DataError: too few segments, or too few answers.
    """
    pool = SegmentPool(lesson.segment_steps, capacity=10**9, seed=lesson.seed)
    pool.extend(episodes)
    dataset = ask(pool, judge, lesson.n_labels)
    predictor = RewardPredictor(observation_space, action_space, lesson.reward, lesson.seed)
    predictor.fit(dataset, max_updates=lesson.max_updates)
    return predictor


def ask(pool: SegmentPool, judge: Judge, count: int) -> PreferenceDataset:
    """``count`` answers of a judge about pairs of a pool.

    Raises:
        DataError: the pool holds no pair, or the judge can tell few apart.
    """
    if len(pool) < 2:
        raise DataError(
            f"expected 2 or more segments of {pool.length} steps, got {len(pool)}; give longer episodes"
        )
    dataset, asked = PreferenceDataset(), 0
    for _ in range(_MAX_ROUNDS):
        pairs = select_pairs(pool, count - len(dataset))
        # From the number asked before, so that a member's bootstrap is the same in every process.
        dataset.upsert(
            Preference(uuid5(NAMESPACE_URL, f"offline/{number}"), *pair, probability_of(judge(*pair)))
            for number, pair in enumerate(pairs, asked)
        )
        asked += len(pairs)
    if len(dataset) < count:
        raise DataError(
            f"expected {count} answers, got {len(dataset)} to {asked} questions; ask for fewer, or a judge "
            "that can tell more pairs apart"
        )
    return dataset
