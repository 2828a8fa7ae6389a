"""Demonstrations of an expert: record, save and load them, and split them for behaviour cloning.

The file is an ``.npz`` of plain arrays as Stable Baselines 2 wrote them (``generate_expert_traj``): whole
episodes, one after another, under the names in :data:`KEYS`. Its files load here. Images lie
beside the file, in a folder of PNG files, and ``obs`` holds their relative paths. Files of this program hold
:data:`LAST` as well.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray

from teacher.envs.episodes import episode_seeds
from teacher.errors import ConfigError, DataError, EnvironmentUnsuitableError, StorageError, one_line
from teacher.extras import needed
from teacher.files import DAMAGED_ARCHIVE, opened_archive, written_whole
from teacher.images import are_images, read_images, write_images

KEYS = ("obs", "actions", "rewards", "episode_returns", "episode_starts")
"""The arrays of a file."""
LAST = "final_obs"
"""One more array, without which nobody knows what the last step of each episode led to."""

Pairs = tuple[NDArray[Any], NDArray[Any]]
"""Observations ``(n, *S)`` and actions ``(n, *A)``."""
Controller = Callable[[Any], Any]
"""From one observation to one action."""


class Agent(Protocol):
    """What :class:`agents.on_policy.OnPolicyAgent` offers."""

    def act(self, observations: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        """Actions for a batch of raw observations."""


class Model(Protocol):
    """What a model of Stable-Baselines3 offers; one with a memory is given back its state."""

    def predict(
        self, observation: Any, *, state: Any, episode_start: NDArray[np.bool_], deterministic: bool
    ) -> tuple[Any, Any]:
        """The action for one observation, and the state."""


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """Whole episodes, one after another; ``n`` steps in all. The space of a Discrete has the shape ``(1,)``.

    Attributes:
        obs: ``(n, *S)``, raw, each before its step.
        actions: ``(n, *A)``, as the environment executed them.
        rewards: ``(n,)``, the environment's.
        episode_returns: ``(episodes,)``, the undiscounted sums of rewards.
        episode_starts: ``(n,)``, True at the first step of each episode.
        final_obs: ``(episodes, *S)``, after the last step of each; None where that is not known.
    """

    obs: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float64]
    episode_returns: NDArray[np.float64]
    episode_starts: NDArray[np.bool_]
    final_obs: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.obs)

    def summary(self) -> str:
        """How much there is and how good it is, in one line."""
        returns, episodes = self.episode_returns, len(self.episode_returns)
        return (
            f"{episodes} episode{'s' * (episodes != 1)}, {len(self):,} steps, "
            f"return {returns.mean():.1f} +- {returns.std():.1f} ({returns.min():.1f} to {returns.max():.1f})"
        )

    def limited(self, episodes: int) -> "Demonstrations":
        """The first so many episodes, exactly. Raises :class:`DataError` where there are fewer."""
        if not 1 <= episodes <= len(self.episode_returns):
            raise DataError(
                f"expected a traj_limitation of 1 to {len(self.episode_returns)}, the episodes there are, "
                f"got {episodes}; record more, or ask for fewer"
            )
        steps = [*np.flatnonzero(self.episode_starts), len(self)][episodes]
        return Demonstrations(
            self.obs[:steps],
            self.actions[:steps],
            self.rewards[:steps],
            self.episode_returns[:episodes],
            self.episode_starts[:steps],
            None if self.final_obs is None else self.final_obs[:episodes],
        )

    def next_obs(self) -> NDArray[Any] | None:
        """``(n, *S)``, each after its step; None where those after the last ones are not known."""
        if self.final_obs is None:
            return None
        following = np.roll(self.obs, -1, axis=0)
        following[np.roll(self.episode_starts, -1)] = self.final_obs
        return following

    def split(
        self, train_fraction: float = 0.7, batch_size: int = 64, seed: int = 0, *, shuffle: bool = True
    ) -> "Split":
        """Divide the episodes at random into those to train on and those to validate on.

        Args:
            train_fraction: share of the episodes to train on, rounded, but at least one on either side; 1
                leaves none to validate on.
            batch_size: transitions per minibatch, at least (where there are as many).
            seed: of the division and of the order of the minibatches.
            shuffle: whether the minibatches are drawn in random order, another in each epoch.

        Raises:
            ConfigError: a value is out of range.
            DataError: a single episode cannot be divided.
        """
        if not 0 < train_fraction <= 1:
            raise ConfigError(f"expected a train_fraction above 0 and up to 1, got {train_fraction}")
        if batch_size < 1:
            raise ConfigError(f"expected a batch_size of at least 1, got {batch_size}")
        episodes, rng = len(self.episode_returns), np.random.default_rng(seed)
        if train_fraction == 1:
            for_training = np.ones(episodes, bool)
        elif episodes == 1:
            raise DataError("a single episode cannot be divided: pass a train_fraction of 1, or record more")
        else:
            count = min(max(round(train_fraction * episodes), 1), episodes - 1)
            for_training = rng.permutation(episodes) < count
        steps = for_training[np.cumsum(self.episode_starts) - 1]
        train, validation = ((self.obs[chosen], self.actions[chosen]) for chosen in (steps, ~steps))
        return Split(train, validation, batch_size, rng if shuffle else None)


class Split:
    """Demonstrations to train on, in minibatches, and others to validate on.

    Attributes:
        train: to train on.
        validation: of other episodes, possibly none.
    """

    def __init__(
        self, train: Pairs, validation: Pairs, batch_size: int, rng: np.random.Generator | None
    ) -> None:
        self.train = train
        self.validation = validation
        self._batch_size = batch_size
        self._rng = rng

    def epoch(self) -> Iterator[NDArray[np.intp]]:
        """Rows of ``train``, each once, in minibatches whose sizes differ by one at most."""
        size = len(self.train[0])
        order = np.arange(size) if self._rng is None else self._rng.permutation(size)
        yield from np.array_split(order, max(1, size // self._batch_size))


def record_demonstrations(
    expert: Agent | Model | Controller,
    env: gym.Env[Any, Any],
    n_episodes: int,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Demonstrations:
    """Let an expert play whole episodes.

    Args:
        expert: an agent of this project and a Stable-Baselines3 model choose their most likely actions (a
            model that still has its ``VecNormalize`` sees observations through it); or any function from one
            raw observation to one action.
        env: one environment, made for this; its episodes must end by themselves.
        n_episodes: how many.
        seed: of the episodes' resets.
        progress: called with the number of episodes played so far.

    Raises:
        EnvironmentUnsuitableError: its observations or actions are no Box, Discrete or MultiDiscrete.
        ConfigError: the expert is none of the above, or ``n_episodes`` is not positive.
        DataError: the expert's action does not fit, or the environment returned a NaN.
    """
    for what, space in (("observations", env.observation_space), ("actions", env.action_space)):
        if not isinstance(space, Box | Discrete | MultiDiscrete):
            raise EnvironmentUnsuitableError(
                f"expected {what} of a Box, Discrete or MultiDiscrete, got {one_line(space)}; wrap it"
            )
    if n_episodes < 1:
        raise ConfigError(f"expected at least 1 episode to record, got {n_episodes}")
    seeds, episodes = episode_seeds([seed], 0, 1), []
    for count in range(1, n_episodes + 1):
        episodes.append(_play(_controller(expert), env, next(seeds)))
        if progress is not None:
            progress(count)
    recorded = Demonstrations(*(np.concatenate(columns) for columns in zip(*episodes, strict=True)))
    # An environment may end an episode because its state is no number any more.
    ends_well = recorded.final_obs is not None and _fits_float32(recorded.final_obs).all()
    return recorded if ends_well else replace(recorded, final_obs=None)


def save_demonstrations(path: Path, demonstrations: Demonstrations) -> None:
    """Write the file, whole or not at all; images into a new folder ``<name>-images`` beside it.

    Raises:
        StorageError: it cannot be written, or there is such a folder already.
    """
    arrays = {key: getattr(demonstrations, key) for key in KEYS}
    if demonstrations.final_obs is not None:
        arrays[LAST] = demonstrations.final_obs
    with contextlib.ExitStack() as undo:
        if are_images(demonstrations.obs):
            folder = path.with_name(f"{path.stem}-images")
            seen = [key for key in ("obs", LAST) if key in arrays]
            names = write_images(folder, np.concatenate([arrays[key] for key in seen]))
            undo.callback(shutil.rmtree, folder)
            paths = np.array([f"{folder.name}/{name}" for name in names])
            arrays |= dict(zip(seen, np.split(paths, [len(demonstrations)]), strict=False))
        try:
            with written_whole(path) as file:
                np.savez(file, **arrays)
        except OSError as error:
            raise StorageError(f"cannot write the demonstrations {path}: {error.strerror}") from error
        undo.pop_all()


def load_demonstrations(
    source: Path | Mapping[str, NDArray[Any]], traj_limitation: int | None = None
) -> Demonstrations:
    """Read and check demonstrations. Images are held in memory, in one byte for each number.

    Args:
        source: a file of :func:`save_demonstrations` or of Stable Baselines 2, or its arrays by name.
        traj_limitation: take only the first so many episodes.

    Raises:
        DataError: the file or an image is missing, damaged or pickled, its arrays do not fit each other or
            hold a NaN, the path of an image leads out of the file's folder, or there are fewer episodes than
            wanted.
    """
    name, arrays = ("the dictionary", source) if isinstance(source, Mapping) else (source, _read(source))
    try:
        for key in ("obs", LAST):
            if not isinstance(source, Mapping) and key in arrays and arrays[key].dtype.kind == "U":
                arrays = {**arrays, key: read_images(source.parent, arrays[key].ravel().tolist())}
        demonstrations = _checked(arrays)
    except DataError as error:
        raise DataError(f"{name} holds no demonstrations: {error}") from error
    return demonstrations if traj_limitation is None else demonstrations.limited(traj_limitation)


def draw_returns(demonstrations: Demonstrations, path: Path) -> None:
    """Draw a histogram of the episodes' returns into a PNG file.

    Raises:
        ConfigError: matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    figures = needed("matplotlib.figure", f"the picture {path}", "plots")
    locator = needed("matplotlib.ticker", f"the picture {path}", "plots").MaxNLocator
    returns = demonstrations.episode_returns
    mean, margin = returns.mean(), 0.05 * (np.ptp(returns) or abs(returns[0]) or 1)
    figure = figures.Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    bins = "auto" if np.ptp(returns) else [mean - margin / 10, mean + margin / 10]
    axes.hist(returns, bins=bins, color="#4c78a8", edgecolor="white")
    axes.axvline(mean, color="#333333", linestyle="--", linewidth=1)
    axes.set(xlim=(returns.min() - margin, returns.max() + margin), xlabel="return (dashed: mean)")
    axes.set(ylabel="episodes", title=demonstrations.summary().replace("+-", "\N{PLUS-MINUS SIGN}"))
    axes.title.set_fontsize("medium")
    axes.yaxis.set_major_locator(locator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    try:
        with written_whole(path) as file:
            figure.savefig(file, format="png")
    except OSError as error:
        raise StorageError(f"cannot write the picture {path}: {error.strerror}") from error


def _controller(expert: Agent | Model | Controller) -> Controller:
    """A function for one episode, with a memory of its own."""
    act, predict = getattr(expert, "act", None), getattr(expert, "predict", None)
    if act is not None:
        return lambda observation: act(np.asarray(observation)[None], deterministic=True)[0]
    if predict is not None:
        return _ModelController(expert)
    if callable(expert):
        return expert
    raise ConfigError(f"expected an expert that acts, predicts or is a function, got {type(expert).__name__}")


class _ModelController:
    """A Stable-Baselines3 model in one episode."""

    def __init__(self, model: Any) -> None:
        self._model = model
        find_normalizer = getattr(model, "get_vec_normalize_env", lambda: None)
        self._normalizer = find_normalizer()
        self._state: Any = None
        self._starts = True

    def __call__(self, observation: Any) -> Any:
        if self._normalizer is not None:
            observation = self._normalizer.normalize_obs(observation)
        action, self._state = self._model.predict(
            observation, state=self._state, episode_start=np.array([self._starts]), deterministic=True
        )
        self._starts = False
        return action


def _play(controller: Controller, env: gym.Env[Any, Any], seed: int) -> tuple[NDArray[Any], ...]:
    """One episode, in the columns of :class:`Demonstrations`."""
    obs: list[NDArray[Any]] = []
    actions: list[NDArray[Any]] = []
    rewards: list[float] = []
    observation, _ = env.reset(seed=seed)
    ended = False
    while not ended:
        # A copy, because some environments write into the same array.
        obs.append(np.array(observation, env.observation_space.dtype))
        _require_finite("observation", obs[-1], seed, len(rewards))
        action = _executable(controller(observation), env.action_space)
        actions.append(np.array(action))
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        _require_finite("reward", rewards[-1], seed, len(rewards))
        ended = terminated or truncated
    starts = np.zeros(len(rewards), bool)
    starts[0] = True
    return (
        np.stack(obs).reshape(len(obs), *_shape(env.observation_space)),
        np.stack(actions).reshape(len(actions), *_shape(env.action_space)),
        np.array(rewards),
        np.array([sum(rewards)]),
        starts,
        np.array(observation, env.observation_space.dtype).reshape(1, *_shape(env.observation_space)),
    )


def _require_finite(what: str, value: Any, seed: int, step: int) -> None:
    if not np.isfinite(value).all():
        raise DataError(
            f"expected finite numbers from the environment, got the {what} {one_line(value)} at step {step} "
            f"of the episode with seed {seed}"
        )


def _executable(action: Any, space: gym.Space[Any]) -> Any:
    """The action as the environment takes it, clipped to a Box."""
    array = np.asarray(action)
    if array.dtype.kind in "fiub" and array.size == np.prod(space.shape or ()) and np.isfinite(array).all():
        array = array.reshape(space.shape or ())
        if isinstance(space, Box):
            return np.asarray(array.clip(space.low, space.high), space.dtype)
        if isinstance(space, MultiDiscrete):
            chosen = array.astype(space.dtype)
            if (chosen == array).all() and space.contains(chosen):
                return chosen
        elif int(array) == array and space.contains(int(array)):
            return int(array)
    raise DataError(f"expected an action of {one_line(space)}, got {one_line(action)} from the expert")


def _shape(space: gym.Space[Any]) -> tuple[int, ...]:
    return (1,) if isinstance(space, Discrete) else (space.shape or ())


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file, opened_archive(file) as archive:
            return {key: archive[key] for key in (*KEYS, LAST) if key in archive}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except DAMAGED_ARCHIVE as error:
        raise DataError(
            f"{path} is no readable file of demonstrations ({one_line(error)}); expected an .npz of "
            "plain arrays, because a pickled one could run anything"
        ) from error


def _fits_float32(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers are finite, also in the precision that policies compute in."""
    if array.dtype.kind != "f":
        return np.ones(array.shape, bool)
    fits: NDArray[np.bool_] = np.abs(array) <= np.finfo(np.float32).max  # not so for a NaN
    return fits


def _require_numbers(key: str, array: NDArray[Any]) -> None:
    if array.dtype.kind not in "fiub":
        raise DataError(f"expected numbers in {key}, got {array.dtype}")
    rows = np.argwhere(~_fits_float32(array))[:, 0]
    if rows.size:
        raise DataError(f"{key} holds a NaN, an infinity or a number beyond 3.4e38 in row {rows[0]}")


def _checked(arrays: Mapping[str, Any]) -> Demonstrations:
    """The arrays in the dtypes and shapes promised. Raises :class:`DataError` without saying where from."""
    missing = [key for key in KEYS if key not in arrays]
    if missing:
        raise DataError(f"expected the arrays {', '.join(KEYS)}, but {', '.join(missing)} is missing")
    obs, actions, *columns = (np.atleast_1d(arrays[key]) for key in KEYS)
    if obs.dtype.kind in "US":
        raise DataError(
            "obs holds paths of images; expected a file beside them, or the images, (steps, *shape)"
        )
    for key, array in zip(KEYS, (obs, actions, *columns), strict=True):
        _require_numbers(key, array)
    # Stable Baselines 2 writes the columns of a vector environment as (n, 1).
    rewards, returns, starts = (column.reshape(-1) for column in columns)
    lengths = {
        "obs": len(obs),
        "actions": len(actions),
        "rewards": len(rewards),
        "episode_starts": len(starts),
    }
    if len(set(lengths.values())) > 1:
        raise DataError(f"expected as many rows in each, got {lengths}")
    if len(obs) == 0:
        raise DataError("expected at least one episode, got no step")
    starts = starts.astype(bool)
    if not starts[0] or starts.sum() != len(returns):
        raise DataError(
            f"expected episode_starts to begin with True and to mark {len(returns)} episodes, one for each "
            f"of episode_returns, got {starts.sum()} with {bool(starts[0])} first"
        )
    last = None if arrays.get(LAST) is None else np.asarray(arrays[LAST])
    if last is not None:
        shape = (len(returns), *obs.shape[1:])
        if last.shape != shape or last.dtype != obs.dtype:
            raise DataError(f"expected {LAST} as {obs.dtype} {shape}, got {last.dtype} {last.shape}")
        _require_numbers(LAST, last)
    return Demonstrations(obs, actions, rewards.astype(np.float64), returns.astype(np.float64), starts, last)
