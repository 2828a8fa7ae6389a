"""One run of the B-Pref benchmark: train it, or go on with it from its last checkpoint, and evaluate it."""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from agents.sac_step import SACConfig
from benchmarks.results import Curve
from benchmarks.teaching_run import mean_return, versions
from teacher.datasets.predictor_files import save_predictor
from teacher.envs.trajectory import Trajectory
from teacher.settings.config import TeachConfig, slug
from teacher.settings.config_files import CONFIG_NAME
from teacher.settings.presets import PRESETS
from teacher.teach import parse_arguments
from teacher.training.builder import open_run
from teacher.training.loop import Round, train
from teacher.training.run import Run

EVALUATION_EPISODES = 20
EPISODES_NAME = "episodes.jsonl"
PREDICTORS_NAME = "predictors"

FULL = {name: value for name, value in PRESETS["bpref"].items() if name.startswith("agent.")}
"""Options of SAC in B-Pref, for a GPU."""
SMALL = {name: getattr(SACConfig(), name.removeprefix("agent.")) for name in FULL}
"""Stable-Baselines3's values of these options, for a CPU."""


@dataclass(frozen=True)
class Side:
    """One method of training a policy.

    Attributes:
        title: name in tables and plots.
        agent: ``sac`` or ``ppo``.
        taught: True if it learns from labels.
        options: further ``teach`` options, such as ``preset=bpref``.
        first_share: share of the labels before training; None for the default of ``teach``.
    """

    title: str
    agent: str
    taught: bool = True
    options: str = ""
    first_share: float | None = None


SIDES: Mapping[str, Side] = {
    "sac": Side("SAC, true reward", "sac", taught=False),
    "pebble": Side("PEBBLE", "sac", options="preset=bpref", first_share=0.1),
    "sac-ours": Side("SAC, our default", "sac"),
    "sac-networks": Side("SAC, reward networks", "sac", options="reward.model=network"),
    "ppo": Side("PPO, true reward", "ppo", taught=False),
    "ppo-ours": Side("PPO, our default", "ppo"),
    "ppo-networks": Side("PPO, reward networks", "ppo", options="reward.model=network"),
}

TEACHERS: Mapping[str, str] = {
    "oracle": "oracle",
    "mistake": "mistake:0.1",
    "mistake-30": "mistake:0.3",
    "noisy": "noisy:1",
    "skip": "skip:0.1,collected:200",
    "equal": "equal:0.1,collected:200",
    "myopic": "myopic:0.9",
}
"""Scripted teachers with B-Pref's parameters, as values of ``--teacher``.

In DMControl, 200 segments are the last ten training episodes, from which B-Pref computes its thresholds.
"""


@dataclass(frozen=True)
class Job:
    """One run; its fields identify a line of the results file.

    Attributes:
        env_id: environment ID.
        side: key of :data:`SIDES`.
        teacher: key of :data:`TEACHERS`; empty for sides that aren't taught.
        labels: label budget; 0 for sides that aren't taught.
        full: True for the networks and minibatches of B-Pref, False for smaller ones.
    """

    env_id: str
    side: str
    teacher: str
    labels: int
    steps: int
    seed: int
    full: bool = False

    @property
    def name(self) -> str:
        """Return the name of the run's folder."""
        parts = self.side, self.teacher, self.labels or "", self.steps, "full" if self.full else "", self.seed
        return slug("-".join(str(part) for part in parts if part != ""))

    def folder(self, runs_dir: Path) -> Path:
        """Return the folder of the run."""
        return runs_dir / slug(self.env_id) / self.name

    def config(self, runs_dir: Path, device: str) -> TeachConfig:
        """Return the settings of the run, which has not begun.

        Raises:
            ConfigError: the side's options are invalid, or the run has begun.
        """
        side = SIDES[self.side]
        words = ["-e", self.env_id, "-a", side.agent, "-n", self.name, "-s", str(self.seed), "-V"]
        words += ["-t", str(self.steps), "--runs_dir", str(runs_dir), "--device", device]
        words += ["-p", "synth" if side.taught else "rl"]
        if side.taught:
            words += ["-l", str(self.labels), "--teacher", TEACHERS[self.teacher]]
        if side.first_share is not None:
            words += ["-L", str(max(1, round(side.first_share * self.labels)))]
        options = shlex.split(side.options)
        if side.agent == "sac":
            for name, value in (FULL if self.full else SMALL).items():
                options.append(f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}")
        return parse_arguments([*words, *(f"--{option}" for option in options)]).config


class EpisodesFile:
    """File of a run's finished episodes, which survives its interruptions.

    Each line has the environment steps so far, the return, and the processor seconds so far.

    Args:
        folder: folder of the run.
        step: environment steps at which the run goes on; later episodes are forgotten.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self._path = folder / EPISODES_NAME
        lines = [line for line in self.read(folder) if line[0] <= step]
        self._path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self._before = lines[-1][2] if lines else 0.0
        self._started = time.process_time()

    @property
    def cpu_seconds(self) -> float:
        """Return the processor seconds spent on the run so far."""
        return round(self._before + time.process_time() - self._started, 1)

    def add(self, step: int, episode_return: float) -> None:
        """Append a finished episode."""
        with self._path.open("a") as file:
            file.write(json.dumps([step, round(episode_return, 3), self.cpu_seconds]) + "\n")

    @staticmethod
    def read(folder: Path) -> list[tuple[int, float, float]]:
        """Return the episodes in a run's folder; empty if there are none."""
        path = folder / EPISODES_NAME
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


class PredictorFiles:
    """Files of every reward predictor that a run trains on, which :mod:`benchmarks.changing_reward` replays.

    Each file's name is the run's number of steps at the end of the first rollout that the predictor rewards.

    Args:
        run: the run to record.
        folder: folder of the files.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for step, path in self.read(folder):
            if step > run.step:
                path.unlink()  # written after the checkpoint that the run goes on from
        self._folder, self._fits = folder, 0

    def __call__(self, made: Round) -> None:
        """Save the predictor if it was fitted in this round."""
        teaching, task = made.run.teaching, made.run.task
        if teaching is not None and teaching.fits > self._fits:
            path = self._folder / f"{made.step:09}.npz"
            save_predictor(path, teaching.predictor, task.observation_space, task.action_space)
            self._fits = teaching.fits

    @staticmethod
    def read(folder: Path) -> list[tuple[int, Path]]:
        """Return the step and the path of each file, in order."""
        return [(int(path.stem), path) for path in sorted(folder.glob("*.npz"))]


def make(job: Job, runs_dir: Path, device: str, *, keeps_predictors: bool = False) -> dict[str, Any]:
    """Make a run, or go on with it, and return its line of the results file."""
    torch.set_num_threads(1)
    folder = job.folder(runs_dir.absolute())
    begun = (folder / CONFIG_NAME).exists()
    with open_run(folder if begun else job.config(runs_dir.absolute(), device), Console(quiet=True)) as run:
        episodes = EpisodesFile(folder, run.step)
        record_episodes(run, episodes)
        train(run, PredictorFiles(run, folder / PREDICTORS_NAME) if keeps_predictors else None)
        curve = Curve(job.steps)
        for step, episode_return, _ in EpisodesFile.read(folder):
            curve.add(step, episode_return)
        return {
            **asdict(job),
            "return": evaluate(run, job.seed),
            "curve": curve.means(),
            "asked": 0 if run.teaching is None else run.teaching.ledger.asked(),
            "cpu_seconds": episodes.cpu_seconds,
            "device": device,
            "versions": versions(),
        }


def record_episodes(run: Run, episodes: EpisodesFile) -> None:
    """Append each episode that ends during training to a file."""
    remember = run.remember

    def remember_and_record(trajectories: Sequence[Trajectory]) -> None:
        for trajectory in trajectories:
            if trajectory.finished:
                episodes.add(run.step, trajectory.true_return)
        remember(trajectories)

    run.remember = remember_and_record  # type: ignore[method-assign]


def evaluate(run: Run, seed: int) -> float:
    """Return the mean return of the deterministic policy in new episodes, as B-Pref reports it."""
    return mean_return(run.task, seed, EVALUATION_EPISODES, partial(run.agent.act, deterministic=True))
