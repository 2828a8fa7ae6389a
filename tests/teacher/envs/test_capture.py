"""Frames captured where an environment cannot be played again, and recipes, which can."""

import contextlib
import dataclasses
import io
import json
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from PIL import Image

from teacher.clips import ClipJob, ClipRenderer, ClipSpec
from teacher.clips.render import ReplayRenderer, captured
from teacher.data.segment_pool import SegmentPool
from teacher.data.segments import Segment
from teacher.envs.capture import draw, jpeg
from teacher.envs.episodes import replay
from teacher.envs.random_episodes import Explorer, check_replay, random_steps, random_trajectories
from teacher.envs.recipe import EpisodeRecipe, library_versions
from teacher.envs.tasks import TaskInfo, describe_task, make_vector_env
from teacher.envs.text import TextFrames
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError, EnvironmentUnsuitableError, RenderError
from teacher.settings.config import TeachConfig
from teacher.settings.options import RewardConfig
from teacher.teach import main
from teacher.training.builder import open_run
from teacher.training.loop import train
from tests.environments import Stub, registered


@pytest.fixture
def dots() -> TaskInfo:
    return describe_task("teacher/MovingDot-v1", captures=True)


def decoded(frame: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(frame)))


def test_there_is_a_picture_of_what_came_of_each_step(dots: TaskInfo) -> None:
    for trajectory in islice(random_trajectories(dots, seed=1, num_envs=3), 5):
        assert trajectory.frames is not None
        assert len(trajectory.frames) == len(trajectory) == 40
        for frame, after in zip(trajectory.frames, trajectory.next_observations, strict=True):
            difference = decoded(frame).astype(int) - after.repeat(3, axis=2)
            assert np.abs(difference).max() < 40, "JPEG is not exact"


def test_steps_beyond_a_block_and_a_reset_keep_their_pictures(dots: TaskInfo) -> None:
    with contextlib.closing(make_vector_env(dots, 2, 1)) as envs:
        envs.reset()
        for step in range(150):
            envs.step(np.array([step % 5, 0]))
            if step == 70:
                envs.reset()
        trajectories = envs.drain()
    assert sum(map(len, trajectories)) > 200
    for trajectory in trajectories:
        assert trajectory.frames is not None
        assert len(trajectory.frames) == len(trajectory)
        last = decoded(trajectory.frames[-1])[..., 0].astype(int)
        assert np.abs(last - trajectory.final_observation[..., 0]).max() < 40
        assert trajectory.nbytes > trajectory.observations.nbytes


def test_without_the_option_nothing_is_drawn(dots: TaskInfo) -> None:
    plain = dataclasses.replace(dots, captures=False)
    assert next(random_trajectories(plain, seed=1)).frames is None


@pytest.fixture
def segment(dots: TaskInfo) -> Segment:
    pool = SegmentPool(length=6, seed=1)
    pool.extend(islice(random_trajectories(dots, seed=1), 1))
    return pool.segments[2]


def test_a_segment_keeps_its_pictures_in_its_archive(segment: Segment) -> None:
    assert segment.frames is not None
    assert Segment.from_bytes(segment.to_bytes()).frames == segment.frames
    bare = dataclasses.replace(segment, frames=None)
    assert Segment.from_bytes(bare.to_bytes()).frames is None
    assert segment.nbytes > bare.nbytes
    with pytest.raises(ValueError, match="6 steps must have 6 frames, not 5"):
        dataclasses.replace(segment, frames=segment.frames[1:])


def test_a_clip_shows_the_pictures_and_plays_nothing(segment: Segment, tmp_path: Path) -> None:
    """Make a segment of an environment that does not exist."""
    recipe = dataclasses.replace(segment.recipe, env_id="Nowhere-v0")
    spec = ClipSpec.of(dataclasses.replace(segment, recipe=recipe))
    assert ClipSpec.from_dict(spec.to_dict()).frames == segment.frames
    with ClipRenderer(workers=1) as renderer:
        path = renderer.submit(ClipJob(spec, tmp_path / "clip.mp4", 10)).result()
    assert path.stat().st_size > 500
    with pytest.raises(DataError, match="a clip of 6 steps needs 6 captured frames, not 5"):
        dataclasses.replace(spec, frames=(segment.frames or ())[1:])


def test_a_picture_of_another_shape_is_refused(segment: Segment) -> None:
    assert segment.frames is not None
    odd = jpeg(np.zeros((10, 20, 3), np.uint8))
    with pytest.raises(RenderError, match="have different shapes"):
        list(captured((*segment.frames, odd)))


def test_a_picture_that_says_that_it_is_huge_is_not_decoded() -> None:
    small = jpeg(np.zeros((10, 20, 3), np.uint8))
    size = small.index(b"\xff\xc0") + 5  # in the header of the frame: height and width, two bytes each
    for side in (5000, 65_500):
        huge = small[:size] + 2 * side.to_bytes(2) + small[size + 4 :]
        with pytest.raises(RenderError, match="cannot read a captured frame"):
            list(captured([huge]))


def test_large_pictures_are_made_smaller_and_small_ones_are_not() -> None:
    assert decoded(jpeg(np.zeros((400, 600, 3), np.uint8))).shape == (267, 400, 3)
    assert decoded(jpeg(np.zeros((7, 9, 3), np.uint8))).shape == (7, 9, 3)


def test_an_environment_that_does_not_replay_is_told_from_one_that_does() -> None:
    check_replay(describe_task("LunarLander-v3"), seed=1)
    with pytest.raises(
        EnvironmentUnsuitableError, match=r"gives different observations.*: .* --capture_frames"
    ):
        check_replay(describe_task("BipedalWalker-v3"), seed=1)


class Once(Stub):
    """Plays no episode twice."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    played: ClassVar[set[int | None]] = set()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.again = seed in self.played
        self.played.add(seed)
        return super().reset(seed=seed)

    def reward(self, action: np.int64) -> float:
        if self.again:
            raise RuntimeError("the robot is gone")
        return 1.0


def test_an_environment_that_fails_when_it_is_played_again_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(EnvironmentUnsuitableError) as error:
        check_replay(describe_task(registered(monkeypatch, "Once-v0", Once, 50)), seed=1)
    assert str(error.value) == (
        "replaying an episode of Once-v0 failed: RuntimeError: the robot is gone; fix the environment"
    )


def test_a_run_keeps_pictures_in_ledger_and_films(tmp_path: Path) -> None:
    config = TeachConfig(
        env_id="teacher/MovingDot-v1",
        predictor="synth",
        name="filmed",
        runs_dir=str(tmp_path),
        n_labels=4,
        segment_steps=3,
        num_timesteps=500,
        pretrain_iters=2,
        capture_frames=True,
        reward=RewardConfig(members=2, epochs=1),
    )
    with open_run(config) as run:
        train(run)
        assert run.teaching is not None
        assert run.teaching.pool.segments[-1].frames is not None
        for pair in run.teaching.ledger.decided_items(4):
            assert [len(segment.frames or ()) for segment in pair] == [3, 3]
    assert [film.stat().st_size > 500 for film in (config.run_dir / "videos").glob("*.mp4")] == [True]


def test_people_are_asked_only_about_what_can_be_shown(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "-p human -e BipedalWalker-v3 -n x -l 4 --segment_steps 10 --max_episode_steps 60"
    assert main([*line.split(), "--allow_variable_horizon"]) == 2
    assert "pass --capture_frames" in capsys.readouterr().err
    assert not (here / "runs").exists()


class Words(Stub):
    """Renders text, in red where it is; a frame is longer every step."""

    metadata: dict[str, Any] = {"render_modes": ["human", "ansi"], "render_fps": 5}  # noqa: RUF012
    observation_space = gym.spaces.Box(0, 99, (1,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def observe(self) -> Any:
        return np.full(1, self.time, np.float32)

    def render(self) -> Any:
        text = f"step\n{'.' * self.time}\x1b[41m@\x1b[0m"
        return text if self.render_mode == "ansi" else print(text)


class Said(Words):
    """Renders a text, then a mark in red."""

    def __init__(self, text: str) -> None:
        super().__init__("ansi")
        self.text = text

    def render(self) -> Any:
        return f"{self.text}\x1b[41m@\x1b[0m"


class Printed(Words):
    metadata: dict[str, Any] = {"render_modes": ["human"]}  # noqa: RUF012


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[Any] = [Words, Printed]
    for kind in kinds:
        spec = gym.envs.registration.EnvSpec(f"{kind.__name__}-v0", kind, max_episode_steps=30)
        monkeypatch.setitem(gym.registry, spec.id, spec)


def test_text_is_drawn_in_frames_of_one_size(words: None, capsys: pytest.CaptureFixture[str]) -> None:
    spec = ClipSpec(EpisodeRecipe("Words-v0", {}, 1, np.zeros(12, int)))
    frames = list(ReplayRenderer("Words-v0", {}).frames(spec))
    assert {frame.shape for frame in frames} == {(60, 88, 3)}
    red = [np.argwhere(frame[..., 0] > 2 * frame[..., 1] + 50)[:, 1].mean() for frame in frames]
    assert red[0] < red[1] < red[3], "the mark moves to the right"
    random_steps(describe_task("Words-v0", captures=True), 1)
    ice, dots = (TextFrames(Said(text)).render().astype(int) for text in ("\u51b0\u9762", "...."))
    assert np.array_equal(ice[..., 0] > 2 * ice[..., 1] + 50, dots[..., 0] > 2 * dots[..., 1] + 50)
    assert not capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*not in the possible render_modes")
def test_environments_without_images_refused(words: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EnvironmentUnsuitableError) as refused:
        random_steps(describe_task("Printed-v0", captures=True), 1)
    why = (
        "its metadata['render_modes'] is ['human']: add 'rgb_array', in which render() returns an image, or "
        "'ansi', in which it returns text"
    )
    assert str(refused.value) == f"--capture_frames: Printed-v0 can't be rendered: {why}"
    assert not capsys.readouterr().out
    with pytest.raises(RenderError) as failed:
        list(
            ReplayRenderer("Printed-v0", {}).frames(
                ClipSpec(EpisodeRecipe("Words-v0", {}, 1, np.zeros(1, int)))
            )
        )
    assert str(failed.value).endswith(f"expected an RGB array of shape (height, width, 3); {why}")


class Contexts(Words):
    """Stands for a MuJoCo environment whose renderer draws in the context that is current."""

    current: list[Any] = []  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.viewer = self.mujoco_renderer = self

    def make_context_current(self) -> None:
        self.current[:] = [self]

    def render(self) -> Any:
        return self.current == [self]


def test_each_environment_of_a_vector_is_drawn_in_its_own_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teacher.envs.capture.select_gl", lambda: "egl")
    assert draw(SyncVectorEnv([Contexts, Contexts])) == (True, True)


def test_each_of_several_mujoco_environments_is_captured() -> None:
    envs = make_vector_env(describe_task("Reacher-v5", captures=True), 2, 1)
    with contextlib.closing(envs):
        envs.reset()
        for _ in range(2):
            envs.step(envs.action_space.sample())
        frames = [decoded(frame).astype(int) for one in envs.drain() for frame in one.frames or ()]
    assert len(frames) == 4
    assert all(frame.std() > 10 for frame in frames)
    assert np.abs(frames[1] - frames[3]).max() > 50, "another target"


@given(
    actions=hnp.arrays(
        st.sampled_from([np.dtype(name) for name in ("<f4", ">f8", "<i8", "u1", "?")]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    ),
    seed=st.integers(0, 2**63),
)
def test_json_keeps_every_bit(actions: NDArray[Any], seed: int) -> None:
    recipe = EpisodeRecipe("teacher/Hopper-v1", {"max_episode_steps": 30}, seed, actions)
    again = EpisodeRecipe.from_json(recipe.to_json())
    assert (again.env_id, again.kwargs, again.seed) == (recipe.env_id, recipe.kwargs, seed)
    assert again.actions.shape == actions.shape
    assert again.actions.dtype == actions.dtype.newbyteorder("=")
    assert again.actions.tobytes() == actions.astype(actions.dtype.newbyteorder("=")).tobytes()


def test_versions_are_those_of_the_recording() -> None:
    recipe = EpisodeRecipe("CartPole-v1", {}, 0, np.zeros(2, np.int64))
    assert recipe.versions == library_versions()
    assert set(recipe.versions) == {"gymnasium", "mujoco", "numpy"}
    older = recipe.to_json().replace(recipe.versions["numpy"], "1.0.0")
    assert EpisodeRecipe.from_json(older).versions["numpy"] == "1.0.0"


VALID = json.loads(EpisodeRecipe("CartPole-v1", {}, 0, np.zeros(2, np.int64)).to_json())
VALID_ACTIONS = VALID["actions"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "not json",
        *[json.dumps({key: VALID[key] for key in VALID if key != missing}) for missing in VALID],
        json.dumps({**VALID, "seed": "today"}),
        json.dumps({**VALID, "seed": float("inf")}),
        json.dumps({**VALID, "kwargs": 3}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "shape": [3]}}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "dtype": "O"}}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "dtype": "nonsense"}}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "dtype": "(2,3"}}),
        json.dumps({**VALID, "actions": {**VALID_ACTIONS, "base64": "!!!!"}}),
        "[" * 100_000,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="not an episode recipe"):
        EpisodeRecipe.from_json(text)


def test_random_trajectories_are_finished_and_reproducible() -> None:
    task = describe_task("CartPole-v1")
    first = list(islice(random_trajectories(task, seed=3), 12))
    again = list(islice(random_trajectories(task, seed=3, workers=3), 12))
    other = list(islice(random_trajectories(task, seed=4), 12))
    assert all(trajectory.finished for trajectory in first)
    assert [t.recipe().to_json() for t in first] == [t.recipe().to_json() for t in again]
    assert not {t.seed for t in first} & {t.seed for t in other}
    assert len({t.seed for t in first}) == 12


def test_progress_is_told_before_the_first_episode_ends() -> None:
    told: list[int] = []
    episodes = random_trajectories(
        describe_task("teacher/MovingDot-v1"), seed=1, num_envs=2, tell=told.append
    )
    next(episodes)
    assert told == list(range(2, 82, 2))


def test_random_actions_fill_the_action_box() -> None:
    trajectory = next(random_trajectories(describe_task("ShortHumanoid-v1"), seed=0, num_envs=1))
    assert np.abs(trajectory.actions).max() == pytest.approx(0.4, abs=0.01)
    assert trajectory.actions.mean() == pytest.approx(0, abs=0.02)


NOTHING = 0.125  # what the agent of these tests always does; chance does it with probability 0


def stand(observations: NDArray[Any]) -> NDArray[Any]:
    return np.full((len(observations), 3), NOTHING, np.float32)


@pytest.fixture(scope="module")
def task() -> TaskInfo:
    return describe_task("ShortHopper-v1")


def explored(
    task: TaskInfo, switch: float, chance: float, seed: int = 0, steps: int = 800
) -> list[NDArray[np.bool_]]:
    """Return the randomly chosen steps of each episode."""
    explorer = Explorer(task, (seed,), switch, chance)
    episodes: dict[int, Trajectory] = {}
    for _ in range(3):
        episodes |= {id(episode): episode for episode in explorer.explore(stand, steps)}
    explorer.close()
    return [(episode.actions != NOTHING).all(axis=1) for episode in episodes.values()]


def test_the_agent_and_chance_take_turns(task: TaskInfo) -> None:
    turns = explored(task, switch=0.1, chance=0.4)
    assert sum(map(len, turns)) >= 2400 - 8 * 4
    steps = np.concatenate(turns)
    assert 0.25 < steps.mean() < 0.55
    # Who acts changes in a step where it is chosen anew and someone else comes: 0.1 * 2 * 0.4 * 0.6.
    changes = np.concatenate([np.diff(episode) for episode in turns])
    assert 0.025 < changes.mean() < 0.075
    # Environments change by themselves.
    assert len({episode.tobytes() for episode in turns}) == len(turns)


@pytest.mark.parametrize(("switch", "chance", "share"), [(1.0, 0.0, 0.0), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0)])
def test_either_may_act_alone(task: TaskInfo, switch: float, chance: float, share: float) -> None:
    assert np.concatenate(explored(task, switch, chance, steps=80)).mean() == share


def test_unchanged_actor_continues(task: TaskInfo) -> None:
    turns = explored(task, switch=0.0, chance=0.5, seed=3, steps=80)
    assert {float(episode.mean()) for episode in turns} == {0.0, 1.0}


def test_seed_decides_exploration(task: TaskInfo) -> None:
    def actions(seed: int) -> list[NDArray[Any]]:
        explorer = Explorer(task, (seed, 40), 0.5, 0.5)
        episodes = explorer.explore(stand, 400)
        explorer.close()
        return [episode.actions for episode in episodes]

    for one, again, other in zip(actions(1), actions(1), actions(2), strict=True):
        np.testing.assert_array_equal(one, again)
        assert not np.array_equal(one, other)


def test_explored_episodes_replay(task: TaskInfo) -> None:
    explorer = Explorer(task, (5,), 0.5, 0.5, num_envs=2)
    (episode, _) = explorer.explore(stand, 60)
    explorer.close()
    steps = list(replay(episode.recipe()))
    np.testing.assert_array_equal([step.observation for step in steps], episode.observations)


def test_discrete_actions_are_mixed_too() -> None:
    explorer = Explorer(describe_task("CartPole-v1"), (0,), 0.5, 0.5)
    episodes = explorer.explore(lambda observations: np.ones(len(observations), np.int64), 800)
    explorer.close()
    assert 0.6 < np.concatenate([episode.actions for episode in episodes]).mean() < 0.9
