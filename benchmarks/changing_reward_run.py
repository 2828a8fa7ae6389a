"""One run of the benchmark of changing rewards: train an agent on stored predictors, and evaluate it."""

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import nn

from agents.defaults import defaults_for
from agents.numerics.correlation import correlation
from agents.sac import SAC
from benchmarks.agent_variants import VARIANTS
from benchmarks.bpref_run import EVALUATION_EPISODES, PREDICTORS_NAME, SMALL, EpisodesFile, PredictorFiles
from benchmarks.results import Curve
from benchmarks.teaching_run import evaluation_episodes, mean_return, versions
from teacher.data.checkpoint import CHECKPOINT_NAME, load_state, save_state
from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.data.preferences import PreferenceDataset
from teacher.datasets.predictor_files import load_predictor, save_predictor
from teacher.envs.episodes import EpisodeRecorder
from teacher.envs.families import base_env_id
from teacher.envs.tasks import TaskInfo, describe_task, make_vector_env
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError
from teacher.queries.kinds import preferences_in
from teacher.queries.offline import fit_once
from teacher.reward.predictor import RewardPredictor, relabeled
from teacher.settings.config import slug
from teacher.settings.config_files import load_config
from teacher.settings.options import MAX_UPDATES, REWARD_STD_SAC, RewardConfig
from teacher.training.parts import predicted_rewards

REWARDS: Mapping[str, str] = {
    "random": "random actions",
    "true": "true reward",
    "last": "last predictor, frozen",
    "linear": "linear, all labels, frozen",
    "networks": "networks, all labels, frozen",
    "tanh": "tanh networks, all labels, frozen",
    "sequence": "every predictor in turn",
}
_MODELS = {"linear": "linear", "networks": "network", "tanh": "auto"}
_SAVE_EVERY = 60.0  # seconds


@dataclass(frozen=True)
class Job:
    """One run; its fields identify a line of the results file.

    Attributes:
        env_id: environment ID.
        source: name of the stored run that the predictors or labels come from; empty for the true reward.
        reward: key of :data:`REWARDS`.
        agent: key of :data:`~benchmarks.agent_variants.VARIANTS`.
    """

    env_id: str
    source: str
    reward: str
    agent: str
    steps: int
    seed: int

    def folder(self, runs_dir: Path) -> Path:
        """Return the folder of the run."""
        parts = self.source, self.reward, self.agent, str(self.steps), str(self.seed)
        return runs_dir / slug(self.env_id) / slug("-".join(part for part in parts if part))


def tanh_network(shape: tuple[int, ...]) -> nn.Module:
    """Return a reward network as in PEBBLE: three layers of 256 units, and a tanh of the output."""
    sizes = *shape, 256, 256, 256
    layers = [nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
    hidden = [module for layer in layers for module in (layer, nn.LeakyReLU())]
    return nn.Sequential(*hidden, nn.Linear(256, 1), nn.Tanh())


def fitted(job: Job, stored: Path, folder: Path, task: TaskInfo) -> RewardPredictor:
    """Return a reward predictor fitted to all labels of the stored run; save it in ``folder``."""
    path, spaces = folder / "predictor.npz", (task.observation_space, task.action_space)
    network = tanh_network if job.reward == "tanh" else None
    if not path.exists():
        dataset = PreferenceDataset()
        with contextlib.closing(Ledger(stored / LEDGER_NAME, read_only=True)) as ledger:
            dataset.upsert(preferences_in(ledger))
        config = RewardConfig(model=_MODELS[job.reward], reward_std=REWARD_STD_SAC)  # type: ignore[arg-type]
        predictor = RewardPredictor(*spaces, config, job.seed, network=network)
        fit_once(predictor, dataset, MAX_UPDATES)
        save_predictor(path, predictor, *spaces)
    return load_predictor(path, *spaces, network=network)


def rewards_of(job: Job, stored: Path | None, folder: Path, task: TaskInfo) -> list[tuple[int, Any]]:
    """Return the steps from which the agent trains on each reward, and predictors or their files, in order.

    The predictor is None for the true reward.
    """
    if stored is None:
        return [(0, None)]
    if job.reward in _MODELS:
        return [(0, fitted(job, stored, folder, task))]
    files = PredictorFiles.read(stored / PREDICTORS_NAME)
    return [(0, files[-1][1])] if job.reward == "last" else [(0, files[0][1]), *files[1:]]


def make_agent(
    job: Job, task: TaskInfo, seed: int | Sequence[int], folder: Path
) -> tuple[Any, EpisodeRecorder]:
    """Return the agent and its environments, with the hyperparameters of ``teach``."""
    row = defaults_for(base_env_id(job.env_id), task.observation_space)
    variant = VARIANTS[job.agent]
    envs = make_vector_env(task, row.num_envs_for("sac" if issubclass(variant.kind, SAC) else "ppo"), seed)
    if not issubclass(variant.kind, SAC):
        ppo = row.ppo_for(job.steps, normalize_rewards=job.reward == "true")
        return variant.kind(envs, replace(ppo, **variant.settings), job.seed), envs
    small = {name.removeprefix("agent."): value for name, value in SMALL.items()}
    config = replace(row.sac, **{**small, **variant.settings})
    return variant.kind(envs, config, job.seed, buffer_folder=folder / "replay"), envs


class Training:
    """One agent in training, which goes on from the checkpoint in its folder.

    Args:
        job: the run.
        stored: folder of the stored run; None for the true reward.
        folder: folder of this run.
    """

    def __init__(self, job: Job, stored: Path | None, folder: Path) -> None:
        self.task = describe_task(job.env_id)
        self._checkpoint = folder / CHECKPOINT_NAME
        state = load_state(self._checkpoint) if self._checkpoint.exists() else None
        # As in teach, a resumed run starts new episodes.
        seed = job.seed if state is None else [job.seed, 2, int(state["agent"]["total_steps"])]
        self.agent, self.envs = make_agent(job, self.task, seed, folder)
        self.episodes: list[list[float]] = []
        """Step of the end, true return and predicted return of each finished episode."""
        self._before = 0.0
        if state is not None:
            self.agent.load_state_dict(state["agent"])
            self.episodes, self._before = state["episodes"], state["cpu_seconds"]
        self._coming = rewards_of(job, stored, folder, self.task)
        self.predictor: RewardPredictor | None = None
        self._started = time.process_time()

    @property
    def cpu_seconds(self) -> float:
        """Return the processor seconds of training so far, without those of fitting a predictor."""
        return round(self._before + time.process_time() - self._started, 1)

    def train(self, steps: int) -> None:
        """Train until the agent has taken ``steps`` steps, and save a checkpoint each minute."""
        saved = time.monotonic()
        while self.agent.total_steps < steps:
            self.iterate()
            if time.monotonic() - saved > _SAVE_EVERY:
                self.save()
                saved = time.monotonic()
        self.save()

    def iterate(self) -> None:
        """Collect a rollout, change the reward if that is due, and update the agent, as ``teach`` does."""
        rollout = self.agent.collect()
        trajectories = self.envs.drain()
        self._change()
        predictor = self.predictor
        rewards = rollout.rewards if predictor is None else predicted_rewards(predictor, rollout)
        for episode in trajectories:
            if episode.finished:
                predicted = 0.0 if predictor is None else float(predictor.step_rewards(episode).sum())
                self.episodes.append([self.agent.total_steps, episode.true_return, predicted])
        self.agent.update(rollout, rewards)

    def _change(self) -> None:
        due = [reward for step, reward in self._coming if step <= self.agent.total_steps]
        if not due:
            return
        del self._coming[: len(due)]
        self.predictor = load_predictor(due[-1]) if isinstance(due[-1], Path) else due[-1]
        if self.predictor is not None:
            self.agent.relabel(partial(relabeled, self.predictor))

    def repeat(self, stored: Path) -> None:
        """Take over the policy and the episodes of a stored run, if training would only repeat it."""
        self.agent.load_policy(load_state(stored / CHECKPOINT_NAME)["agent"])
        recorded = EpisodesFile.read(stored)
        self.episodes = [[step, episode_return, 0.0] for step, episode_return, _ in recorded]
        self._before = recorded[-1][2]
        self.predictor = load_predictor(PredictorFiles.read(stored / PREDICTORS_NAME)[-1][1])

    def save(self) -> None:
        """Write the checkpoint."""
        state = {"agent": self.agent.state_dict(), "episodes": self.episodes}
        save_state(self._checkpoint, {**state, "cpu_seconds": self.cpu_seconds})


def repeats(job: Job, stored: Path) -> bool:
    """Return True if the stored run is this run: the same agent, seed and predictors."""
    config, _ = load_config(stored)
    agent = {"sac": "default", "ppo": "ppo"}.get(str(config.agent))
    same = (config.num_timesteps, config.seed, agent) == (job.steps, job.seed, job.agent)
    return same and job.reward == "sequence"


def require_finished(stored: Path) -> None:
    """Raise :class:`DataError` unless a folder has a finished run with all its predictors."""
    config, _ = load_config(stored)
    step = int(load_state(stored / CHECKPOINT_NAME, with_arrays=False)["agent"]["total_steps"])
    if step < config.num_timesteps:
        raise DataError(f"{stored} has taken {step:,} of {config.num_timesteps:,} steps; finish it first")
    if not PredictorFiles.read(stored / PREDICTORS_NAME):
        raise DataError(f"{stored} has no predictors; make it with benchmarks.bpref --keep_predictors")


@contextlib.contextmanager
def opened(job: Job, stored: Path | None, folder: Path) -> Iterator[Training]:
    """Open a run, and close its environments at the end."""
    training = Training(job, stored, folder)
    try:
        yield training
    finally:
        training.envs.close()


def make(job: Job, stored: Path | None, runs_dir: Path) -> dict[str, Any]:
    """Make a run, or go on with it, and return its line of the results file."""
    torch.set_num_threads(1)
    threadpool_limits(1, "blas")
    if job.reward == "random":
        returned = mean_return(describe_task(job.env_id), job.seed, EVALUATION_EPISODES, act=None)
        return {**asdict(job), "return": returned, "curve": [], "cpu_seconds": 0.0, "versions": versions()}
    folder = job.folder(runs_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with opened(job, stored, folder) as training:
        if stored is not None and repeats(job, stored):
            training.repeat(stored)
        else:
            training.train(job.steps)
        steps, true, predicted = np.array(training.episodes).reshape(-1, 3).T
        taught: dict[str, Any] = {}
        if stored is not None and job.reward != "sequence":
            together = round(correlation(predicted, true), 4)
            taught = {"predicted": _curve(job, steps, predicted), "correlation": together}
        played = _played(training, job)
        if training.predictor is not None:
            taught["predicted_return"] = _predicted_return(training.predictor, played)
            taught["predicted_return_of_true"] = _of_true(training, job, runs_dir)
        return {
            **asdict(job),
            "return": round(float(np.mean([episode.true_return for episode in played])), 3),
            "curve": _curve(job, steps, true),
            **taught,
            "cpu_seconds": training.cpu_seconds,
            "versions": versions(),
        }


def _played(training: Training, job: Job) -> list[Trajectory]:
    act = partial(training.agent.act, deterministic=True)
    return evaluation_episodes(training.task, job.seed, EVALUATION_EPISODES, act)


def _predicted_return(predictor: RewardPredictor, episodes: Sequence[Trajectory]) -> float:
    return round(float(np.mean([predictor.step_rewards(episode).sum() for episode in episodes])), 3)


def _of_true(training: Training, job: Job, runs_dir: Path) -> float | None:
    """Return the predicted return of the same agent trained on the true reward; None if it is not there."""
    folder = replace(job, source="", reward="true").folder(runs_dir)
    if not (folder / CHECKPOINT_NAME).exists() or training.predictor is None:
        return None
    with opened(replace(job, source="", reward="true"), None, folder) as other:
        if other.agent.total_steps < job.steps:
            return None
        return _predicted_return(training.predictor, _played(other, job))


def _curve(job: Job, steps: NDArray[Any], returns: NDArray[Any]) -> list[float | None]:
    curve = Curve(job.steps)
    for step, episode_return in zip(steps, returns, strict=True):
        curve.add(int(step), float(episode_return))
    return curve.means()
