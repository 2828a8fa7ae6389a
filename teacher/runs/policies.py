"""Policies to compare, from runs and other libraries' files, and their films from the same start states."""

import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.base import Agent
from agents.errors import AgentError
from teacher.clips import CLIP_SIZE, ClipJob, ClipRenderer, ClipSpec
from teacher.clips.encode import convert
from teacher.data.checkpoint import State
from teacher.data.segments import Segment, slice_of
from teacher.datasets.cards import CONFIG_NAME as CARD_CONFIG
from teacher.datasets.cards import POLICY_NAME
from teacher.envs.random_episodes import Actor, policy_trajectories
from teacher.envs.tasks import TaskInfo, make_vector_env
from teacher.errors import ConfigError, DataError, one_line
from teacher.extras import require_extra
from teacher.runs.saved_run import SavedRun
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import CONFIG_NAME
from teacher.training.parts import make_agent, task_of
from teacher.training.warmstart import read_policy

_NAMED = re.compile(r"([A-Za-z0-9@._-]+)=(.+)")
EXPECTED = (
    "a run, a checkpoint.npz, a folder of teach export --huggingface, *.safetensors, *.zip of "
    "Stable-Baselines3, *.onnx, or a folder of *.mp4 files"
)


@dataclass(frozen=True)
class Source:
    """A policy's name and where it is: a file, a run's folder, or a folder of films."""

    name: str
    path: Path

    @property
    def films(self) -> Sequence[Path]:
        """The folder's films, sorted by name; none if the source is a policy."""
        if not self.path.is_dir() or (self.path / CONFIG_NAME).exists() or (self.path / POLICY_NAME).exists():
            return ()
        return sorted(self.path.glob("*.mp4"))

    @property
    def run(self) -> SavedRun | None:
        """The run that a policy belongs to; None if there is none."""
        folder = self.path if self.path.is_dir() else self.path.parent
        is_run = (folder / CONFIG_NAME).exists() and not (folder / POLICY_NAME).exists()
        return SavedRun(folder) if is_run else None


@dataclass(frozen=True)
class Film:
    """A film of a policy; ``true_return`` is None if it is unknown."""

    path: Path
    true_return: float | None


def read_sources(words: Sequence[str]) -> list[Source]:
    """Parse sources such as ``runs/Hopper-v5/backflip`` and ``last_week=old/policy.onnx``.

    Raises:
        ConfigError: there are fewer than two, two have the same name, or one doesn't exist.
    """
    sources = []
    for word in words:
        named = None if Path(word).exists() else _NAMED.fullmatch(word)
        path = Path(named[2] if named else word)
        if not path.exists():
            raise ConfigError(f"{path} does not exist; expected {EXPECTED}")
        source = Source(named[1] if named else path.resolve().name.removesuffix(path.suffix), path)
        if path.is_dir() and not (source.films or source.run or (path / POLICY_NAME).exists()):
            raise ConfigError(f"{path} contains no policy and no film; expected {EXPECTED}")
        sources.append(source)
    names = [source.name for source in sources]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"two policies are called {min(repeated)}; name them, such as old=FILE new=FILE")
    if len(sources) < 2:
        raise ConfigError("expected two or more policies to compare; teach compare --help shows examples")
    return sources


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


def film(
    sources: Sequence[Source], config: TeachConfig | None, folder: Path, *, starts: int, seconds: float, seed: int
) -> dict[str, list[Film]]:
    """Film each policy from the same ``starts`` start states, and convert other films to the same format.

    Raises:
        ConfigError: a folder has too few films.
        RenderError: a film is damaged.
    """
    films: dict[str, list[Film]] = {}
    for source in sources:
        paths = [folder / f"{source.name}-{start + 1}.mp4" for start in range(starts)]
        if source.films:
            if len(source.films) < starts:
                raise ConfigError(
                    f"{source.path} has {len(source.films)} films, but each policy needs {starts}: add some, or "
                    f"pass --starts {len(source.films)}"
                )
            for original, path in zip(source.films, paths, strict=False):
                convert(original, path, CLIP_SIZE)
            films[source.name] = [Film(path, None) for path in paths]
        elif config is not None:
            task = task_of(config)
            films[source.name] = _filmed(task, play(source, config, task, starts, seed), paths, seconds)
    return films


def play(source: Source, config: TeachConfig, task: TaskInfo, starts: int, seed: int) -> list[Segment]:
    """Play one episode from each start state, with the most likely actions; they depend on the seed alone."""
    act = _actor(source, config, task)
    episodes: dict[int, Segment] = {}
    for episode in policy_trajectories(task, seed, act, num_envs=starts):
        episodes.setdefault(episode.recipe().seed % starts, slice_of(episode, 0, len(episode)))
        if len(episodes) == starts:
            break
    return [episodes[start] for start in range(starts)]


def _filmed(task: TaskInfo, episodes: Sequence[Segment], paths: Sequence[Path], seconds: float) -> list[Film]:
    shown = [slice_of(one, 0, min(len(one), max(1, round(seconds * task.fps)))) for one in episodes]
    with ClipRenderer() as renderer:
        jobs = [
            renderer.submit(ClipJob(ClipSpec.of(clip), path, task.fps))
            for clip, path in zip(shown, paths, strict=True)
        ]
        return [Film(job.result(), float(np.sum(clip.true_rewards))) for job, clip in zip(jobs, shown, strict=True)]


def _actor(source: Source, config: TeachConfig, task: TaskInfo) -> Actor:
    """Load a policy, and return the function that chooses its most likely actions.

    Raises:
        DataError: the file is damaged, or the policy is of another environment.
    """
    if source.path.suffix == ".onnx":
        return _onnx_actor(source.path)
    path = source.path / POLICY_NAME if (source.path / POLICY_NAME).exists() else source.path
    state = read_policy(path)
    if source.run is not None:
        config = source.run.config
    else:
        config = replace(config, **_settings(path, state))
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


def _onnx_actor(path: Path) -> Actor:
    runtime = require_extra("onnxruntime", f"the policy {path}", "onnx")
    try:
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises many kinds
        raise DataError(f"{path} is not a readable ONNX file: {one_line(error)}") from error
    given = session.get_inputs()[0]
    as_given = np.float32 if given.type == "tensor(float)" else None

    def act(observations: NDArray[Any]) -> NDArray[Any]:
        actions: NDArray[Any] = session.run(None, {given.name: observations.astype(as_given or observations.dtype)})[0]
        return actions

    return act
