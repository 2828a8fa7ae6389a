"""Policies to compare, from runs and other libraries' files, and their films from the same start states."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from agents.base import Agent
from agents.errors import AgentError
from teacher.clips import CLIP_SIZE, ClipJob, ClipRenderer, ClipSpec
from teacher.clips.encode import convert
from teacher.data.checkpoint import State, load_state
from teacher.data.segments import slice_of
from teacher.datasets.cards import CONFIG_NAME as CARD_CONFIG
from teacher.datasets.cards import POLICY_NAME, POLICY_ONNX
from teacher.envs.random_episodes import Actor, policy_trajectories
from teacher.envs.tasks import TaskInfo, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.errors import ConfigError, DataError, one_line
from teacher.extras import require_extra
from teacher.runs.saved_run import SavedRun
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import CONFIG_NAME
from teacher.training.parts import make_agent, task_of
from teacher.training.warmstart import read_policy

_NAMED = re.compile(r"([A-Za-z0-9@._-]+)=(.+)")
STARTS = 10
FPS = 30
"""Frames per second of clips if all policies are folders of films."""
EXPECTED = (
    "a run, RUN@STEP, a checkpoint.npz, *.safetensors, *.onnx, *.zip of Stable-Baselines3, a folder of teach "
    "export, or a folder of *.mp4 files"
)


@dataclass(frozen=True)
class Source:
    """A policy's name and where it is: a file, a run's folder, or a folder of films."""

    name: str
    path: Path

    @property
    def films(self) -> Sequence[Path]:
        """The folder's films, sorted by name; none if the source is a policy."""
        return () if self.run else sorted(self.path.glob("*.mp4"))

    @property
    def run(self) -> SavedRun | None:
        """The run that a policy belongs to; None if there is none."""
        folder = self.path if self.path.is_dir() else self.path.parent
        is_run = (folder / CONFIG_NAME).exists() and not (folder / POLICY_NAME).exists()
        return SavedRun(folder) if is_run else None


def read_sources(words: Sequence[str]) -> list[Source]:
    """Parse sources such as ``runs/Hopper-v5/flip``, ``runs/Hopper-v5/flip@20000`` and ``old=policy.onnx``.

    Raises:
        ConfigError: there are fewer than two, two have the same name, or one doesn't exist.
    """
    sources = [_read_source(word) for word in words]
    names = [source.name for source in sources]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"two policies are called {min(repeated)}; name them, such as old=FILE new=FILE")
    if len(sources) < 2:
        raise ConfigError("expected two or more policies to compare")
    return sources


def _read_source(word: str) -> Source:
    named = None if Path(word).exists() else _NAMED.fullmatch(word)
    path, step = Path(named[2] if named else word), ""
    if not path.exists() and "@" in path.name:
        run, _, step = str(path).rpartition("@")
        path = Path(run)
    if not path.exists():
        raise ConfigError(f"{path} does not exist; expected {EXPECTED}")
    name = named[1] if named else path.resolve().name.removesuffix(path.suffix) + (step and f"@{step}")
    exported = [path / file for file in (POLICY_NAME, POLICY_ONNX) if (path / file).exists()]
    source = Source(name, _checkpoint_at(path, step) if step else exported[0] if exported else path)
    if source.path.is_dir() and not (source.films or source.run):
        raise ConfigError(f"{path} contains no policy and no film; expected {EXPECTED}")
    return source


def _checkpoint_at(run: Path, step: str) -> Path:
    """Return the run's checkpoint after this number of steps."""
    found: dict[int, Path] = {}
    for path in sorted(run.glob("*.npz")):
        with contextlib.suppress(DataError, KeyError, TypeError):
            found[int(load_state(path, with_arrays=False)["agent"]["total_steps"])] = path
    if not step.isdigit() or int(step) not in found:
        steps = ", ".join(map(str, sorted(found))) or "none"
        raise ConfigError(
            f"{run} has no checkpoint of step {step}, only of: {steps}. A run keeps its newest; copies of "
            "checkpoint.npz beside it, such as early.npz, count too"
        )
    return found[int(step)]


def config_for(sources: Sequence[Source], env_id: str | None) -> TeachConfig | None:
    """Return the settings of the environment to film in; None if all sources are films.

    Raises:
        ConfigError: the environment is unknown, or runs have different ones.
    """
    runs = [source.run.config for source in sources if source.run]
    if all(source.films for source in sources):
        return None
    if env_id is not None:
        own = next((config for config in runs if config.env_id == env_id), None)
        return own or TeachConfig(env_id=env_id, name="compare", predictor="rl", device="cpu")
    found = {config.env_id for config in runs}
    if len(found) != 1:
        raise ConfigError(
            f"the policies' environment is {' or '.join(sorted(found)) or 'unknown'}; choose one with -e ENV"
        )
    return runs[0]


def count_starts(sources: Sequence[Source], wanted: int | None) -> int:
    """Return from how many start states to film: as many as wanted, or as there are films in each folder.

    Raises:
        ConfigError: a folder has too few films.
    """
    fewest = min(
        (source for source in sources if source.films), key=lambda each: len(each.films), default=None
    )
    if fewest is None:
        return wanted or STARTS
    if wanted is not None and wanted > len(fewest.films):
        raise ConfigError(
            f"--starts: expected at most {len(fewest.films)}, the number of films in {fewest.path}"
        )
    return wanted or len(fewest.films)


def film(
    source: Source, config: TeachConfig | None, paths: Sequence[Path], seconds: float, seed: int
) -> Sequence[float | None]:
    """Film a policy once from each start state, or convert its films; ``paths`` has a file for each.

    The start states depend on the seed and their number alone.

    Returns:
        The true return of what each film shows; None if it is unknown.

    Raises:
        RenderError: a film is damaged, or can't be made.
        DataError: the policy is damaged, or of another environment.
    """
    if config is None or source.films:
        fps = FPS if config is None else task_of(config).fps
        for original, path in zip(source.films, paths, strict=False):
            convert(original, path, fps, seconds, CLIP_SIZE)
        return [None] * len(paths)
    task = task_of(config)
    episodes = play(source, config, task, len(paths), seed)
    shown = [slice_of(one, 0, min(len(one), max(1, round(seconds * task.fps)))) for one in episodes]
    with ClipRenderer() as renderer:
        jobs = [
            renderer.submit(ClipJob(ClipSpec.of(clip), path, task.fps))
            for clip, path in zip(shown, paths, strict=True)
        ]
        for job in jobs:
            job.result()
    return [clip.true_return for clip in shown]


def play(source: Source, config: TeachConfig, task: TaskInfo, starts: int, seed: int) -> list[Trajectory]:
    """Play one episode from each start state, with the most likely actions."""
    episodes: dict[int, Trajectory] = {}
    for episode in policy_trajectories(task, seed, _actor(source, config, task), num_envs=starts):
        episodes.setdefault(episode.recipe().seed % starts, episode)  # each environment has its own seeds
        if len(episodes) == starts:
            break
    return [episodes[start] for start in range(starts)]


def _actor(source: Source, config: TeachConfig, task: TaskInfo) -> Actor:
    """Load a policy, and return the function that chooses its most likely actions.

    Raises:
        DataError: the file is damaged, or the policy is of another environment.
    """
    if source.path.suffix == ".onnx":
        return _onnx_actor(source.path, task)
    state = read_policy(source.path)
    config = source.run.config if source.run else replace(config, **_settings(source.path, state))
    try:
        with contextlib.closing(make_vector_env(task, 1, 0)) as envs:
            agent: Agent = make_agent(config, envs)
        agent.load_policy(state)
    except AgentError as error:
        raise DataError(f"{source.path} does not fit {task.env_id}: {one_line(error)}") from error
    return partial(agent.act, deterministic=True)


def _settings(path: Path, state: State) -> dict[str, Any]:
    """Return the settings of the agent that a policy outside of its run belongs to."""
    beside = path.with_name(CARD_CONFIG)
    if path.name == POLICY_NAME and beside.exists():
        card: Mapping[str, Any] = json.loads(beside.read_text())
        return {"agent": card["agent"], "agent_settings": card["agent_config"]}
    weights = [array for name, array in state["policy"].items() if re.fullmatch(r"actor\.\d+\.weight", name)]
    settings: dict[str, Any] = {"normalize_observations": int(state["normalizer"]["count"]) > 0}
    if weights and all(np.ndim(array) == 2 for array in weights):
        settings["hidden_sizes"] = tuple(len(array) for array in weights[:-1])
    if "activation" in state:
        settings["activation"] = state["activation"]
    is_sac = any(name.startswith("target") for name in state["policy"])
    return {"agent": "sac" if is_sac else "ppo", "agent_settings": settings}


def _onnx_actor(path: Path, task: TaskInfo) -> Actor:
    """Return a function that runs a network; its first output must be the action."""
    runtime = require_extra("onnxruntime", f"the policy {path}", "onnx")
    space = task.action_space
    try:
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        given = session.get_inputs()[0]
        single = given.type == "tensor(float)"

        def act(observations: NDArray[Any]) -> NDArray[Any]:
            rows = observations.astype(np.float32) if single else observations
            actions = np.array([session.run(None, {given.name: row[None]})[0][0] for row in rows])
            if isinstance(space, Box):
                actions = np.clip(actions, space.low, space.high)
            return actions.reshape(-1, *(space.shape or ())).astype(space.dtype)

        act(np.zeros((2, *(task.observation_space.shape or ())), task.observation_space.dtype))
    except Exception as error:  # onnxruntime raises many kinds
        raise DataError(f"{path} is not an ONNX policy for {task.env_id}: {one_line(error)}") from error
    return act
