"""Episodes that end early, filled up to one length, and the rule that refuses environments."""

import contextlib
import shlex
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, cast

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

from teacher import FixedHorizon
from teacher.clips.render import ClipSpec, ReplayRenderer
from teacher.data.segment_pool import SegmentPool
from teacher.envs.episodes import replay
from teacher.envs.make import make_env
from teacher.envs.random_episodes import check_replay, random_trajectories
from teacher.envs.tasks import examine, make_vector_env
from teacher.envs.trial import (
    TRIAL_EPISODES,
    TRIAL_STEPS,
    Audience,
    Trial,
    choose_length,
    fillings,
    of_fixed_length,
    try_episodes,
    usual_length,
)
from teacher.errors import EnvironmentUnsuitableError
from teacher.reporting.statistics import EpisodeStatistics
from teacher.runs.saved_run import SavedRun
from teacher.settings.config_files import load_config
from teacher.teach import main, parse_arguments
from teacher.training.parts import task_of
from teacher.training.start import check
from tests.environments import Stub


class Counting(gym.Env[Any, Any]):
    """Counts steps from a start that is drawn; ends after three."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, truncates: bool = False) -> None:
        self._truncates, self.seeds = truncates, list[int | None]()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self._state = np.array([self.np_random.integers(1000), 0], np.float32)
        return self._state, {}

    def step(self, action: Any) -> Any:
        self._state += (0, 1)  # into what was returned before
        ended = bool(self._state[1] == 3)
        return self._state, 1.0, ended and not self._truncates, ended and self._truncates, {"life": True}


def played(env: gym.Env[Any, Any], seed: int = 5, steps: int = 8) -> list[Any]:
    """Return what each step returned, with copies of observations."""
    first, _ = env.reset(seed=seed)
    outcomes: list[Any] = [(np.array(first), None, None, None)]
    for _ in range(steps):
        observation, *outcome, _ = env.step(1)
        outcomes.append((np.array(observation), *outcome))
    return outcomes


@pytest.mark.parametrize("truncates", [False, True])
def test_the_last_state_absorbs(truncates: bool) -> None:
    outcomes = played(FixedHorizon(Counting(truncates), "absorb", 8))
    assert [step[0][1] for step in outcomes] == [0, 1, 2, 3, 3, 3, 3, 3, 3]
    assert [step[1] for step in outcomes[1:]] == [1, 1, 1, 0, 0, 0, 0, 0]
    assert not any(step[2] for step in outcomes[1:])
    assert [step[3] for step in outcomes[1:]] == [False] * 7 + [True]


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize(
    ("name", "value", "horizon", "ends"),
    [
        ("max_frozen_steps", 2, 8, [(5, False)]),
        ("max_frozen_steps", 2, 4, [(4, False)]),
        ("terminates", True, 8, [(3, True)]),
        ("terminates", True, 3, [(3, False)]),
    ],
)
def test_last_state_repeats(name: str, value: Any, horizon: int, ends: Any, truncates: bool) -> None:
    env = FixedHorizon(Counting(truncates), "absorb", horizon)
    assert env.set_wrapper_attr(name, value, force=False)
    for _ in range(2):  # a reset starts counting again
        env.reset(seed=1)
        flags = [env.step(1)[2:4] for _ in range(ends[0][0])]
        assert not any(map(any, flags[:-1]))
        assert [(len(flags), flags[-1][0])] == ends
        assert any(flags[-1])


@pytest.mark.parametrize("truncates", [False, True])
def test_the_next_life_begins_within_the_episode(truncates: bool) -> None:
    inner = Counting(truncates)
    outcomes = played(FixedHorizon(inner, "restart", 8))
    assert [step[0][1] for step in outcomes] == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert [step[1] for step in outcomes[1:]] == [1] * 8
    assert not any(step[2] for step in outcomes[1:])
    assert [step[3] for step in outcomes[1:]] == [False] * 7 + [True]
    assert len({step[0][0] for step in outcomes}) == 3, "each life is another"
    assert inner.seeds[0] == 5
    assert None not in inner.seeds, "so that it replays where only a seed decides"


def test_mutating_results_changes_nothing() -> None:
    env = FixedHorizon(Counting(), "absorb", 8)
    env.reset(seed=1)
    for _ in range(8):
        observation = env.step(1)[0]
        last, observation[1] = float(observation[1]), min(observation[1], 2)
    assert last == 3


def test_an_end_with_the_last_step_begins_nothing() -> None:
    inner = Counting()
    outcomes = played(FixedHorizon(inner, "restart", 3), steps=3)
    assert outcomes[-1][0][1] == 3
    assert outcomes[-1][2:] == (False, True)
    assert len(inner.seeds) == 1


@pytest.mark.parametrize("filling", ["absorb", "restart"])
def test_the_seed_decides_all_lives(filling: Any) -> None:
    env = FixedHorizon(Counting(), filling, 8)
    first, other, again = (played(env, seed) for seed in (5, 6, 5))
    assert np.array_equal([one[0] for one in first], [one[0] for one in again])
    assert not np.array_equal([one[0] for one in first], [one[0] for one in other])


def test_the_limit_is_that_of_the_environment_and_is_needed() -> None:
    assert FixedHorizon(gym.make("CartPole-v1", max_episode_steps=70), "absorb").horizon == 70
    with pytest.raises(EnvironmentUnsuitableError, match="no step limit per episode; pass a"):
        FixedHorizon(Counting(), "absorb")
    filling: Any = "fill"
    with pytest.raises(EnvironmentUnsuitableError, match="must be absorb or restart, not 'fill'"):
        FixedHorizon(Counting(), filling, 3)


def test_its_specification_makes_it_again() -> None:
    spec = FixedHorizon(gym.make("CartPole-v1"), "restart", 40).spec
    assert spec is not None
    with gym.make(spec) as again:
        again.reset(seed=1)
        ends = [again.step(0)[2:4] for _ in range(40)]
    assert ends == [(False, False)] * 39 + [(False, True)]


def test_for_the_agent_an_absorbed_episode_is_as_long_as_the_original() -> None:
    limit = {"max_episode_steps": 25}
    absorbed = examine("CartPole-v1", {**limit, "fixed_horizon": "absorb"}).task
    tasks = examine("CartPole-v1", limit).task, replace(absorbed, frozen_steps=9, terminates=True)
    plain, ours = (make_vector_env(each, num_envs=2, seed=1) for each in tasks)
    with contextlib.closing(plain), contextlib.closing(ours):
        plain.action_space.seed(1)
        np.testing.assert_array_equal(plain.reset()[0], ours.reset()[0])
        for _ in range(200):
            actions = plain.action_space.sample()
            for one, other in zip(plain.step(actions)[:4], ours.step(actions)[:4], strict=True):
                np.testing.assert_array_equal(one, other)
        originals, episodes = plain.drain(), ours.drain()
    lengths = [len(one) + min(9, 25 - len(one)) if one.terminated else len(one) for one in originals]
    assert [len(one) for one in episodes] == lengths
    assert {one.terminated for one in originals} == {True, False}
    statistics = EpisodeStatistics()
    statistics.add(one for one in episodes if one.finished)
    assert statistics.mean("length") == np.mean([len(one) for one in originals if one.finished])


def task(line: str) -> Any:
    return check(parse_arguments(shlex.split(f"-p synth -n x -l 20 {line}")), Console(quiet=True)).task


def quiet() -> Any:
    from rich.console import Console

    return Console(quiet=True)


@pytest.mark.parametrize("filling", ["absorb", "restart"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "Hopper-v5", "LunarLander-v3"])
def test_recorded_episodes_have_one_length_and_replay(env_id: str, filling: str, here: Path) -> None:
    found = task(f"-e {env_id} --max_episode_steps 120 --fixed_horizon {filling}")
    assert found.never_terminates
    check_replay(found, seed=1)
    episodes = list(islice(random_trajectories(found, 1, num_envs=2), 4))
    lengths = [len(episode) for episode in episodes]
    if filling == "absorb":
        lived = [len(episode) - episode.absorbed_steps for episode in episodes]
        assert lengths == [min(steps + found.frozen_steps, 120) for steps in lived]
        assert all(episode.moving_steps <= steps for episode, steps in zip(episodes, lived, strict=True))
    else:
        assert lengths == [120] * 4
    assert not any(episode.terminated for episode in episodes)
    for episode in episodes:
        steps = list(replay(episode.recipe()))
        assert [step.observation.tobytes() for step in steps] == [o.tobytes() for o in episode.observations]
        assert [step.reward for step in steps] == episode.true_rewards.tolist()
    rewarded = [np.count_nonzero(episode.true_rewards) for episode in episodes]
    if env_id == "CartPole-v1":
        assert (max(rewarded) < 120) == (filling == "absorb")
    pool = SegmentPool(10, seed=1)
    pool.extend(episodes)
    stage = ReplayRenderer(found.env_id, found.kwargs)
    assert len(list(stage.frames(ClipSpec.of(pool.segments[-1])))) == 10
    stage.close()


@pytest.mark.usefixtures("short_rollouts")
@pytest.mark.parametrize(
    "settings",
    [
        "-e FrozenLake-v1 --fixed_horizon absorb",
        "-e CartPole-v1 --fixed_horizon restart --env_kwargs sutton_barto_reward=true",
    ],
)
def test_a_run_is_trained_gone_on_with_played_and_exported(
    settings: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            shlex.split(f"-p synth {settings} --max_episode_steps 20 -n x -l 8 -t 300 -i 5 --reward.hidden 8")
        )
        == 0
    )
    said = capsys.readouterr().out
    (folder,) = Path("runs").glob("*/x")
    assert ("Observations in Discrete(16) are flattened into 16 numbers." in said) == ("Lake" in settings)
    assert list(folder.glob("videos/*.mp4"))
    config, _ = load_config(folder)
    assert task_of(config).kwargs["fixed_horizon"] == config.fixed_horizon
    assert main(["--resume", str(folder)]) == 0
    assert main(["play", str(folder), "film.mp4", "--episodes", "1", "--rewards"]) == 0
    assert main(["export", str(folder), "labels.npz"]) == 0
    assert main(["export", str(folder), "--predictor", "predictor.npz"]) == 0
    assert main(["evaluate", "predictor.npz", "labels.npz"]) == 0
    assert SavedRun(folder).load_predictor().env_id == config.env_id
    with make_env(config.env_id, task_of(config).kwargs) as env:
        assert env.observation_space == SavedRun(folder).task.observation_space


def test_a_fifth_of_the_episodes_is_enough() -> None:
    assert Trial([30] * 40 + [90] * 10, 500).fits(75)
    assert not Trial([30] * 41 + [90] * 9, 500).fits(75)


def usual_75(trial: Trial) -> tuple[int, str]:
    length, note, problems = choose_length(trial, None, 75, "accepted", cast(Audience, None))
    assert problems == []
    return length, note


def test_a_segment_is_shortened_only_where_it_does_not_fit() -> None:
    assert usual_75(Trial([30] * 40 + [90] * 10, 500)) == (75, "")
    length, note = usual_75(Trial([30] * 41 + [90] * 9, 500))
    assert length == 15
    assert note == (
        "Segments of 15 steps, half the median length of random episodes (30), because too few reach the "
        "usual 75 steps"
    )
    assert usual_75(Trial([1] * 50, 500))[0] == 1
    assert usual_75(of_fixed_length(50))[0] == 25


def test_episodes_are_early_beside_the_limit_or_beside_each_other() -> None:
    assert Trial([30, 40, 50], 50).early == 2
    assert Trial([50, 50, 50], None).early == 0
    assert Trial([30, 40, 50], None).early == 2


def test_the_usual_segment_takes_a_second_and_a_half() -> None:
    assert [usual_length(None, fps) for fps in (1, 4, 50)] == [1, 6, 75]
    assert usual_length(2.0, 30) == 60


def test_the_seed_decides_the_trial() -> None:
    trials = [try_episodes(make_env("CartPole-v1", {}), 500, seed) for seed in (3, 3, 4)]
    assert trials[0] == trials[1] != trials[2]
    assert len(trials[0].lengths) == TRIAL_EPISODES
    assert max(trials[0].lengths) < 200


@pytest.mark.parametrize(
    ("images", "length", "filling"), [(0, 9, "absorb"), (1, 9, "restart"), (1, 10, "absorb")]
)
def test_episodes_continue_when_ends_are_uninformative(images: bool, length: int, filling: str) -> None:
    assert fillings(Trial([5, length, 19], 20), images=images)[0] == filling


@pytest.mark.parametrize(
    ("env_id", "filling"),
    [
        ("CartPole-v1", "absorb"),
        ("InvertedPendulum-v5", "absorb"),
        ("FrozenLake-v1", "absorb"),
        ("Acrobot-v1", "absorb"),  # loses reward until its end
        ("LunarLanderContinuous-v3", "restart"),
    ],
)
def test_failures_that_cost_reward_are_not_shown(env_id: str, filling: str) -> None:
    limit = gym.spec(env_id).max_episode_steps
    assert fillings(try_episodes(make_env(env_id, {}), limit, 1))[0] == filling


class _Endless(Stub):
    """Counts how far it was ever played."""

    steps: ClassVar[int] = 0

    def reward(self, action: Any) -> float:
        type(self).steps += 1
        return 0.0


@pytest.mark.parametrize(("limit", "episodes"), [(15, TRIAL_EPISODES), (1000, TRIAL_STEPS // 1000)])
def test_a_trial_has_an_end(limit: int, episodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand steps of fifty episodes take minutes where each one draws a picture."""
    monkeypatch.setattr(_Endless, "steps", 0)
    told: list[int] = []
    assert try_episodes(_Endless(), None, 0, limit, told.append) == Trial([limit] * episodes, None)
    assert _Endless.steps == limit * episodes
    assert told == list(range(episodes + 1))
