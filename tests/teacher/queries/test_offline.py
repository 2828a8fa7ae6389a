"""A reward learned from episodes that are there already.

How much labels teach, over many seeds, is measured by ``benchmarks/reward_claims.py``.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box

from teacher.data.demonstrations import demonstrated_episodes, record_demonstrations
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.data.steps import readable_steps
from teacher.envs.random_episodes import random_trajectories
from teacher.envs.tasks import TaskInfo, describe_task, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.errors import BehaviorError, ConfigError, DataError
from teacher.queries.judges import Judge, oracle
from teacher.queries.offline import OfflineConfig, ask, learn_reward
from teacher.reward.predictor import RewardPredictor
from teacher.settings.options import RewardConfig

STEPS = 15
SMALL = RewardConfig(features="even", hidden=16)


@pytest.fixture(scope="module")
def pendulum() -> TaskInfo:
    return describe_task("Pendulum-v1")


@pytest.fixture(scope="module")
def fumbling(pendulum: TaskInfo) -> list[Trajectory]:
    return list(itertools.islice(random_trajectories(pendulum, seed=1), 12))


Learn = Callable[..., RewardPredictor]


@pytest.fixture(scope="module")
def learn(pendulum: TaskInfo) -> Learn:
    def learn(episodes: Sequence[Any], judge: Judge, n_labels: int, seed: int = 1) -> RewardPredictor:
        lesson = OfflineConfig(
            n_labels=n_labels, segment_steps=STEPS, seed=seed, max_updates=100, reward=SMALL
        )
        return learn_reward(episodes, judge, pendulum.observation_space, pendulum.action_space, lesson)

    return learn


def test_arrays_do_as_well_as_trajectories(fumbling: list[Trajectory], learn: Learn) -> None:
    recorded = [
        Trajectory.from_arrays(
            episode.all_observations,
            episode.actions,
            episode.true_rewards,
        )
        for episode in fumbling[:10]
    ]
    expected, found = (learn(episodes, oracle, 20) for episodes in (fumbling[:10], recorded))
    np.testing.assert_array_equal(found.step_rewards(fumbling[11]), expected.step_rewards(fumbling[11]))


def test_demonstrations_without_last_states_are_episodes_without_their_last_steps() -> None:
    env = gym.make("CartPole-v1")
    recorded = record_demonstrations(lambda _: 1, env, n_episodes=3, seed=1)
    demonstrations = replace(recorded, final_obs=None)
    episodes = list(demonstrated_episodes(demonstrations, env.observation_space, env.action_space))
    assert sum(len(episode) + 1 for episode in episodes) == len(demonstrations)
    assert sum(len(episode.all_observations) for episode in episodes) == len(demonstrations.obs)
    assert {episode.actions.shape for episode in episodes} == {(len(episode),) for episode in episodes}
    (first, *_), states = episodes, demonstrations.obs
    np.testing.assert_array_equal(first.observations, states[: len(first)])
    np.testing.assert_array_equal(first.next_observations, states[1 : len(first) + 1])
    lesson = OfflineConfig(n_labels=2, segment_steps=4, max_updates=10, allow_variable_horizon=True)
    predictor = learn_reward(
        episodes, lambda one, two: one.observations[-1, 2] < two.observations[-1, 2],
        env.observation_space, env.action_space, lesson,
    )  # fmt: skip
    assert predictor.step_rewards(first).shape == (len(first),)
    with pytest.raises(DataError, match="do not match the observation space Box"):
        list(demonstrated_episodes(demonstrations, gym.spaces.Box(-1, 1, (3,)), env.action_space))
    whole = list(demonstrated_episodes(recorded, env.observation_space, env.action_space))
    assert sum(map(len, whole)) == len(recorded)
    final = np.stack([episode.final_observation for episode in whole])
    np.testing.assert_array_equal(final, recorded.final_obs)
    np.testing.assert_array_equal(whole[0].all_observations[:-1], episodes[0].all_observations)


def recorded_episode(seed: int, last: float = 0.0) -> Trajectory:
    """30 steps whose reward is the first number of what they lead to, the last of which is ``last``."""
    states = np.random.default_rng(seed).normal(size=(31, 2))
    states[-1, 0] = last
    return Trajectory.from_arrays(states, np.zeros((30, 1)), states[1:, 0].clip(-3, 3), terminated=True)


@pytest.mark.parametrize("last", [np.nan, np.inf, 4e38])
def test_final_nan_is_in_no_segment(last: float) -> None:
    episodes = [recorded_episode(seed, last if seed % 2 else 0.0) for seed in range(20)]
    assert [readable_steps(episode) for episode in episodes] == [30, 29] * 10
    pool = SegmentPool(1)
    pool.extend(episodes)
    assert len(pool) == 10 * 30 + 10 * 29
    assert sum(segment.terminated for segment in pool.segments) == 10
    spaces = Box(-np.inf, np.inf, (2,)), Box(-1, 1, (1,))
    lesson = OfflineConfig(n_labels=30, segment_steps=5, max_updates=20)
    assert np.isfinite(learn_reward(episodes, oracle, *spaces, lesson).step_rewards(episodes[0])).all()


def test_nan_before_the_end_is_refused() -> None:
    states = recorded_episode(1).all_observations.copy()
    states[7] = np.nan
    broken = Trajectory.from_arrays(states, np.zeros((30, 1)), np.zeros(30))
    with pytest.raises(DataError, match="in observations of"):
        SegmentPool(5).extend([broken])


def test_states_are_one_more_than_actions() -> None:
    with pytest.raises(DataError, match="and one more observation"):
        Trajectory.from_arrays(np.zeros((5, 3)), np.zeros((5, 1)), np.zeros(5))


def test_other_pairs_are_asked_where_the_judge_cannot_tell(fumbling: list[Trajectory]) -> None:
    pool, asked = SegmentPool(STEPS, seed=1), []
    pool.extend(fumbling)

    def unsure(first: Segment, second: Segment) -> Any:
        asked.append((first, second))
        return "cant_tell" if len(asked) % 3 else oracle(first, second)

    dataset = ask(pool, unsure, 30)
    assert len(dataset) == 30
    assert len(asked) > 60


@pytest.mark.parametrize(
    ("judge", "episodes", "error", "says"),
    [
        (lambda *_: "cant_tell", 10, DataError, "got only 0 of 20 labels from 1,000 comparisons"),
        (
            lambda *_: "left",
            10,
            BehaviorError,
            "must return first, second, equal, cant_tell or a probability",
        ),
        (
            lambda *_: 2.0,
            10,
            BehaviorError,
            r":<lambda> returned 2\.0, .* or a probability; fix the function",
        ),
        (oracle, 0, DataError, "expected 2 or more segments of 15 steps, got 0"),
    ],
)
def test_unlearnable_data_is_refused(
    fumbling: list[Trajectory], learn: Learn, judge: Any, episodes: int, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        learn(fumbling[:episodes], judge, 20)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"n_labels": 0}, "n_labels: expected 1 or more; got 0"),
        ({"n_labels": -3}, "n_labels: expected 1 or more; got -3"),
        ({"segment_steps": 0}, "segment_steps: expected 1 or more; got 0"),
        ({"max_updates": 0}, "max_updates: expected 1 or more; got 0"),
        ({"seed": -1}, r"seed: expected 0 to 2\*\*32 - 1; got -1"),
    ],
)
def test_a_lesson_that_would_teach_nothing_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        OfflineConfig(**{"n_labels": 10, "segment_steps": 5, **settings})


def recorded(lengths: Sequence[int]) -> list[Trajectory]:
    random = np.random.default_rng(1)
    return [
        Trajectory.from_arrays(
            random.normal(size=(length + 1, 3)), random.normal(size=(length, 1)), np.zeros(length)
        )
        for length in lengths
    ]


def by_first_number(first: Segment, second: Segment) -> bool:
    return bool(first.observations[0, 0] > second.observations[0, 0])


def test_episodes_of_several_lengths_are_learned_from_where_that_is_allowed(learn: Learn) -> None:
    """Also as they come one by one; those that have not ended may be of any length."""
    with pytest.raises(DataError, match=r"\(40 and 37 steps\).*reveal.*allow_variable_horizon=True"):
        learn(iter(recorded([40, 40, 37])), by_first_number, 2)
    lesson = OfflineConfig(n_labels=2, segment_steps=STEPS, max_updates=5, allow_variable_horizon=True)
    spaces = gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-np.inf, np.inf, (1,))
    learn_reward(iter(recorded([40, 40, 37])), by_first_number, *spaces, lesson)


@pytest.mark.parametrize(("ends", "inputs"), [(15, "next_state,absorbing"), (40, "next_state")])
def test_episodes_that_repeat_their_last_state_are_taken_as_absorbed(ends: int, inputs: str) -> None:
    episodes = recorded([40] * 8)
    padded = [
        Trajectory.from_arrays(
            np.concatenate([each.all_observations[:ends], each.all_observations[[ends] * (41 - ends)]]),
            each.actions,
            each.true_rewards,
        )
        for each in episodes
    ]
    lesson = OfflineConfig(n_labels=2, segment_steps=STEPS, max_updates=5)
    spaces = gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-np.inf, np.inf, (1,))
    assert learn_reward(padded, by_first_number, *spaces, lesson).config.inputs == inputs


def test_episodes_that_have_not_ended_may_be_of_any_length(pendulum: TaskInfo, learn: Learn) -> None:
    envs = make_vector_env(pendulum, 2, seed=1)
    envs.action_space.seed(1)
    envs.reset()
    for _ in range(pendulum.horizon + 60):
        envs.step(envs.action_space.sample())
    episodes = envs.drain()
    envs.close()
    assert {(len(one), one.finished) for one in episodes} == {(200, True), (59, False)}
    learn(episodes, oracle, 4)


def test_too_few_segments_are_not_the_judges_fault() -> None:
    pool, asked = SegmentPool(STEPS, seed=1), []
    pool.extend(recorded([STEPS] * 4))

    def judge(first: Segment, second: Segment) -> float:
        asked.append((first, second))
        return 1.0

    with pytest.raises(DataError, match="4 segments of 15 steps form only 6 pairs, not 7; use"):
        ask(pool, judge, 7)
    assert not asked


def test_segments_that_are_few_for_the_labels_are_warned_of() -> None:
    pool = SegmentPool(STEPS, seed=1)
    pool.extend(recorded([STEPS] * 9))
    assert len(ask(pool, by_first_number, 4)) == 4
    with pytest.warns(
        UserWarning, match="9 segments are too few for 5 comparisons, so some segments are in several"
    ):
        assert len(ask(pool, by_first_number, 5)) == 5
    with pytest.warns(UserWarning, match="are too few"):  # and these are all pairs but those before
        assert len(ask(pool, by_first_number, 27)) == 27


def test_a_reward_that_was_not_learned_is_not_given_out(pendulum: TaskInfo) -> None:
    """The only answer is held out from the one member, as from every third by chance."""
    spaces = gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-np.inf, np.inf, (1,))
    lesson = OfflineConfig(n_labels=1, segment_steps=STEPS, reward=RewardConfig(members=1))
    with pytest.raises(
        DataError, match=r"every ensemble member holds out the whole dataset \(1 preference\)"
    ):
        learn_reward(recorded([40, 40]), by_first_number, *spaces, lesson)


@pytest.mark.parametrize("answer", [[1], object(), 1j, b"first", np.array([0.5, 0.5])])
def test_a_judge_that_answers_strangely_is_told_so(fumbling: list[Trajectory], answer: Any) -> None:
    pool = SegmentPool(STEPS, seed=1)
    pool.extend(fumbling)
    with pytest.raises(BehaviorError, match="must return first, second, equal, cant_tell or a probability"):
        ask(pool, lambda first, second: answer, 4)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        (
            {"observations": [[0.0, 1.0]] * 5},
            "observations must be a numeric numpy array .* not list",
        ),
        (
            {"observations": np.full((5, 2), "1")},
            "observations must be a numeric numpy array .* not <U1",
        ),
        ({"actions": np.zeros((4, 1), complex)}, "actions must be a numeric numpy array .* not complex128"),
        ({"true_rewards": np.zeros((4, 1))}, r"true_rewards must have shape \(steps,\), not \(4, 1\)"),
    ],
)
def test_recorded_episodes_of_something_else_are_refused(arrays: dict[str, Any], says: str) -> None:
    whole: dict[str, Any] = {
        "observations": np.zeros((5, 2)),
        "actions": np.zeros((4, 1)),
        "true_rewards": np.zeros(4),
    }
    assert len(Trajectory.from_arrays(**whole)) == 4
    with pytest.raises(DataError, match=says):
        Trajectory.from_arrays(**{**whole, **arrays})


def test_a_fit_that_diverged_is_told(fumbling: list[Trajectory], pendulum: TaskInfo) -> None:
    lesson = OfflineConfig(
        n_labels=30, segment_steps=STEPS, max_updates=30, reward=RewardConfig(learning_rate=1e30)
    )
    with pytest.warns(UserWarning, match=r"reward fit diverged \(NaN\).*learning_rate"):
        predictor = learn_reward(fumbling, oracle, pendulum.observation_space, pendulum.action_space, lesson)
    assert np.isfinite(predictor.step_rewards(fumbling[0])).all()


@pytest.mark.parametrize(
    ("lesson", "says"),
    [
        (
            {"reward": RewardConfig(epochs=5)},
            r"^reward\.epochs: has no effect .*in a single fit, .*; got 5$",
        ),
        (
            {"reward": RewardConfig(converge=True)},
            r"^reward\.converge: has no effect .*in a single fit",
        ),
        (
            {"reward": RewardConfig(refit_after=0.5)},
            r"^reward\.refit_after: has no effect .*in a single fit",
        ),
        (
            {"reward": RewardConfig(initial_epochs=5), "max_updates": 9},
            r"^max_updates: .* reward\.initial_epochs, which sets .* of the fit; set only one of them$",
        ),
    ],
)
def test_settings_that_do_nothing_in_a_single_fit_are_refused(lesson: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        OfflineConfig(n_labels=3, segment_steps=STEPS, **lesson)


def test_settings_of_images_are_refused_for_vectors(fumbling: list[Trajectory], pendulum: TaskInfo) -> None:
    lesson = OfflineConfig(n_labels=3, segment_steps=STEPS, reward=RewardConfig(image_dropout=0.1))
    with pytest.raises(ConfigError, match=r"image_dropout: has no effect .*observations are not images"):
        learn_reward(fumbling, oracle, pendulum.observation_space, pendulum.action_space, lesson)


def test_fit_limits_are_respected(fumbling: list[Trajectory], pendulum: TaskInfo) -> None:
    spaces = pendulum.observation_space, pendulum.action_space
    settings = RewardConfig(initial_epochs=4, max_preferences=20, hidden=8)
    lesson = OfflineConfig(n_labels=30, segment_steps=STEPS, reward=settings)
    found = learn_reward(fumbling, oracle, *spaces, lesson).step_rewards(fumbling[0])
    pool = SegmentPool(STEPS, capacity=10**9, seed=lesson.seed)
    pool.extend(fumbling)
    dataset = ask(pool, oracle, 30)
    dataset.max_size = 20
    same = RewardPredictor(*spaces, RewardConfig(hidden=8), lesson.seed)
    same.fit(dataset, max_epochs=4)
    np.testing.assert_array_equal(found, same.step_rewards(fumbling[0]))


def test_answers_that_tell_nothing_are_warned_of(fumbling: list[Trajectory], learn: Learn) -> None:
    with pytest.warns(UserWarning, match="no label .* prefers either segment"):
        learn(fumbling, lambda *_: "equal", 20)
