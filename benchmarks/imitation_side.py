"""Benchmark server for the imitation library, run by a Python that has imitation but not our code.

Reads requests as JSON Lines from stdin and writes measurements as JSON Lines to stdout. Training runs use
the reward model of imitation's training script with ``reward_ensemble``: an ensemble of 64-64 networks with
running normalization of inputs and outputs. In the speed benchmarks the networks have no normalization,
which is imitation's default for networks and is faster.
"""

import contextlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from imitation.algorithms import preference_comparisons as pc
from imitation.data.types import TrajectoryWithRew
from imitation.data.wrappers import RolloutInfoWrapper
from imitation.rewards.reward_nets import (
    AddSTDRewardWrapper,
    BasicRewardNet,
    NormalizedRewardNet,
    RewardEnsemble,
)
from imitation.rewards.reward_wrapper import RewardVecEnvWrapper
from imitation.util import logger as imitation_logger
from imitation.util.networks import RunningNorm
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

EPOCHS = 3  # per fit during a run, as in imitation's training script
_LEARNING_RATE = 1e-3  # of the reward model; imitation's default


def make_reward_net(
    observations: gym.Space[Any], actions: gym.Space[Any], members: int, *, normalize: bool
) -> Any:
    """Return a reward ensemble that predicts the mean of its members' rewards."""
    norm = RunningNorm if normalize else None
    nets: list[Any] = [
        BasicRewardNet(observations, actions, hid_sizes=(64, 64), normalize_input_layer=norm)
        for _ in range(members)
    ]
    if normalize:
        nets = [NormalizedRewardNet(net, RunningNorm) for net in nets]
    return AddSTDRewardWrapper(RewardEnsemble(observations, actions, nets), default_alpha=0.0)


def make_trainer(net: Any, epochs: int, batch_size: int, rng: np.random.Generator) -> Any:
    """Return imitation's trainer for a reward ensemble."""
    return pc.EnsembleTrainer(
        pc.PreferenceModel(net),
        pc.CrossEntropyRewardLoss(),
        rng,
        batch_size=batch_size,
        epochs=epochs,
        lr=_LEARNING_RATE,
        custom_logger=_silent(),
    )


def _silent() -> Any:
    return imitation_logger.configure(folder=None, format_strs=())


def fragments(observations: NDArray[Any], actions: NDArray[Any], rewards: NDArray[Any]) -> Iterator[Any]:
    """Yield arrays of shape ``(n, length, ...)`` as trajectories; the last observation is repeated."""
    for each, acts, rews in zip(observations, actions, rewards, strict=True):
        yield TrajectoryWithRew(
            obs=np.concatenate([each, each[-1:]]), acts=acts, rews=rews, infos=None, terminal=False
        )


class Side:
    """Request handlers: a request names a method of this class and its arguments."""

    def fit(self, *, data: str, members: int, epochs: int, batch_size: int, seed: int) -> dict[str, Any]:
        """Fit a new ensemble to the pairs in an ``.npz`` file; return CPU seconds and held-out accuracy."""
        arrays = np.load(data)
        pairs, held_out = (
            [_pairs(arrays, part, index) for index in (0, 1)] for part in ("train", "held_out")
        )
        observations, actions = _box(arrays["train_observations"]), _box(arrays["train_actions"])
        torch.manual_seed(seed)
        net = make_reward_net(observations, actions, members, normalize=False)
        trainer = make_trainer(net, epochs, batch_size, np.random.default_rng(seed))
        dataset = pc.PreferenceDataset()
        dataset.push(list(zip(*pairs, strict=True)), arrays["train_values"])
        started = time.process_time()
        trainer.train(dataset)
        seconds = time.process_time() - started
        first, second = (np.array([_predicted_return(net, one) for one in part]) for part in held_out)
        right = (first > second) == (arrays["held_out_values"] > 0.5)
        return {"seconds": seconds, "accuracy": float(right.mean())}

    def relabel(self, *, sizes: Sequence[int], members: int, num_envs: int, num_steps: int) -> dict[str, Any]:
        """Measure the CPU seconds that the reward wrapper adds to steps of environments that do nothing.

        Args:
            sizes: size of an observation and of an action.
        """
        spaces = [gym.spaces.Box(-np.inf, np.inf, (size,), np.float32) for size in sizes]
        net = make_reward_net(spaces[0], spaces[1], members, normalize=False)
        bare = _Still(num_envs, *spaces)
        wrapped = RewardVecEnvWrapper(_Still(num_envs, *spaces), net.predict_processed)
        actions = np.zeros((num_envs, sizes[1]), np.float32)
        seconds = []
        for envs in (bare, wrapped):
            envs.reset()
            started = time.process_time()
            for _ in range(num_steps):
                envs.step(actions)
            seconds.append(time.process_time() - started)
        return {"seconds": seconds[1] - seconds[0]}

    def train(self, *, labels: int, fragment_length: int, **settings: Any) -> dict[str, Any]:
        """Train a whole run, with labels from an oracle, or on the true reward if ``labels`` is 0."""
        return Training(**settings).run(labels, fragment_length)


def _pairs(arrays: Mapping[str, NDArray[Any]], part: str, index: int) -> Sequence[Any]:
    names = ("observations", "actions", "rewards")
    return list(fragments(*(arrays[f"{part}_{name}"][:, index] for name in names)))


def _predicted_return(net: Any, fragment: Any) -> float:
    steps = fragment.obs[:-1], fragment.acts, fragment.obs[1:], np.zeros(len(fragment), bool)
    return float(net.predict_processed(*steps, update_stats=False).sum())


def _box(values: NDArray[Any]) -> gym.spaces.Box:
    return gym.spaces.Box(-np.inf, np.inf, values.shape[3:], np.float32)


class _Still(VecEnv):
    """Vector environment whose observations never change, to measure overhead."""

    def __init__(self, num_envs: int, observations: gym.Space[Any], actions: gym.Space[Any]) -> None:
        self.render_mode = None
        super().__init__(num_envs, observations, actions)
        self._observations = np.random.default_rng(0).normal(size=(num_envs, *(observations.shape or ())))
        self._observations = self._observations.astype(np.float32)

    def reset(self) -> Any:
        return self._observations

    def step_async(self, actions: Any) -> None:
        pass

    def step_wait(self) -> Any:
        nothing = np.zeros(self.num_envs)
        return self._observations, nothing, nothing.astype(bool), [{} for _ in range(self.num_envs)]

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> Any:
        return [getattr(self, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> Any:
        return [False] * self.num_envs


class _Returns(VecEnvWrapper):
    """Records the true return of each episode and the number of training steps when it ended."""

    def __init__(self, envs: VecEnv) -> None:
        super().__init__(envs)
        self.ended: list[tuple[int, float]] = []
        self.trained_steps: Callable[[], int] = lambda: 0
        self._sums = np.zeros(envs.num_envs)

    def reset(self) -> Any:
        self._sums[:] = 0
        return self.venv.reset()

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        self._sums += rewards
        self.ended += [(self.trained_steps(), float(total)) for total in self._sums[dones]]
        self._sums[dones] = 0
        return observations, rewards, dones, infos


class Training:
    """One run of Stable-Baselines3's PPO, trained with imitation's ``preference_comparisons``.

    Args:
        env_id: environment ID in a Gymnasium version before 1.0.
        steps: environment steps, not counting those that imitation takes for its first comparisons.
        seed: seed of all random generators.
        members: size of the reward ensemble.
        num_envs: number of parallel environments.
        ppo: arguments of Stable-Baselines3's PPO.
    """

    def __init__(
        self, *, env_id: str, steps: int, seed: int, members: int, num_envs: int, ppo: Mapping[str, Any]
    ) -> None:
        self._env_id, self._steps, self._seed, self._members = env_id, steps, seed, members
        torch.manual_seed(seed)
        self._rng = np.random.default_rng(seed)
        envs = make_vec_env(env_id, n_envs=num_envs, seed=seed, wrapper_class=RolloutInfoWrapper)
        self._envs = _Returns(envs)
        arch = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh}
        self._model = PPO("MlpPolicy", self._envs, policy_kwargs=arch, seed=seed, device="cpu", **ppo)
        self._envs.trained_steps = lambda: int(self._model.num_timesteps)

    def run(self, labels: int, fragment_length: int) -> dict[str, Any]:
        """Train, then evaluate; return times, episode returns during training and evaluation returns."""
        comparisons = self._comparisons(fragment_length) if labels else None
        started, worked = time.monotonic(), time.process_time()
        if comparisons is None:
            self._model.learn(self._steps)
        else:
            comparisons.train(self._steps, labels)
        return {
            "seconds": round(time.monotonic() - started, 2),
            "cpu_seconds": round(time.process_time() - worked, 2),
            "ended": self._envs.ended,
            "returns": self.evaluate(50, deterministic=False),
            "deterministic_returns": self.evaluate(50, deterministic=True),
        }

    def _comparisons(self, fragment_length: int) -> Any:
        """Return imitation's trainer with one iteration per rollout, so it asks as often as ours."""
        spaces = self._envs.observation_space, self._envs.action_space
        net = make_reward_net(*spaces, self._members, normalize=True)
        agent = pc.AgentTrainer(self._model, net, self._envs, self._rng, custom_logger=_silent())
        rollout = self._model.n_steps * self._envs.num_envs
        return pc.PreferenceComparisons(
            agent,
            net,
            num_iterations=-(-self._steps // rollout),
            fragmenter=pc.RandomFragmenter(self._rng, warning_threshold=0, custom_logger=_silent()),
            preference_gatherer=pc.SyntheticGatherer(temperature=0, rng=self._rng, custom_logger=_silent()),
            reward_trainer=make_trainer(net, EPOCHS, batch_size=32, rng=self._rng),
            fragment_length=fragment_length,
            custom_logger=_silent(),
        )

    def evaluate(self, episodes: int, *, deterministic: bool) -> list[float]:
        """Play episodes with the policy and return their returns."""
        env, returns = gym.make(self._env_id), []
        for episode in range(episodes):
            observation, _ = env.reset(seed=1_000_000 * self._seed + episode)
            total, over = 0.0, False
            while not over:
                action, _ = self._model.predict(observation, deterministic=deterministic)
                observation, reward, terminated, truncated, _ = env.step(action)
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
        return returns


def main() -> None:
    """Handle requests until stdin closes."""
    torch.set_num_threads(1)
    side, answers = Side(), sys.stdout
    names = ("imitation", "stable_baselines3", "gymnasium", "torch", "numpy")
    versions = {name: importlib.metadata.version(name) for name in names}
    for line in sys.stdin:
        request = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):  # imitation prints to stdout
            answer = getattr(side, request.pop("do"))(**request)
        print(json.dumps({**answer, "versions": versions}), file=answers, flush=True)


if __name__ == "__main__":
    main()
