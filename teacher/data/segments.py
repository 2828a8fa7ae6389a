"""Segments: fixed-length slices of one episode."""

import io
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.data.steps import LARGEST, NOTHING_AFTER, fits_float32
from teacher.envs.recipe import EpisodeRecipe
from teacher.envs.trajectory import Trajectory, terminations
from teacher.errors import DataError

_LEVEL = 1  # compression level; the default, 6, takes four times as long to save a few percent
_FINAL = "last_observation"
_FRAMES, _FRAME_SIZES = "frames", "frame_sizes"


@dataclass(frozen=True, eq=False)
class Segment:
    """A slice of one episode.

    Attributes:
        recipe: replays the episode to the end of this segment; ``len(recipe.actions) == start + len(self)``.
        start: index of the segment's first step in its episode.
        observations: ``(length, *observation_shape)``, raw, before each step.
        actions: ``(length, *action_shape)``, as executed.
        true_rewards: ``(length,)``, the environment's rewards.
        final_observation: ``(*observation_shape)``, raw, after the last step; None if not recorded.
        terminated: the environment ended the episode with the last step; False if not recorded.
        frames: JPEG images, one after each step, shown in place of a replay; None if not captured.

    Raises:
        ValueError: the parts do not fit each other.
        DataError: a number is NaN, infinite, or too large for single precision, in which rewards are learned.
    """

    recipe: EpisodeRecipe
    start: int
    observations: NDArray[Any]
    actions: NDArray[Any]
    true_rewards: NDArray[np.float64]
    final_observation: NDArray[Any] | None = None
    terminated: bool = False
    frames: tuple[bytes, ...] | None = None

    def __post_init__(self) -> None:
        length = len(self.actions)
        if length == 0 or self.start < 0 or len(self.recipe.actions) != self.start + length:
            raise ValueError(
                f"expected a segment of 1 or more steps that ends where its recipe does, got {length} steps "
                f"from {self.start} and a recipe of {len(self.recipe.actions)}"
            )
        if len(self.observations) != length or self.true_rewards.shape != (length,):
            raise ValueError(
                f"expected observations and true rewards of {length} steps, got {self.observations.shape} "
                f"and {self.true_rewards.shape}"
            )
        if self.frames is not None and len(self.frames) != length:
            raise ValueError(f"expected one frame for each of {length} steps, got {len(self.frames)}")
        final = self.final_observation
        if final is not None and (final.shape, final.dtype) != (
            self.observations.shape[1:],
            self.observations.dtype,
        ):
            raise ValueError(
                f"expected a final observation like the others, {self.observations.shape[1:]} and "
                f"{self.observations.dtype}, got {final.shape} and {final.dtype}"
            )
        for name in ("observations", "actions", "true_rewards", "final_observation"):
            self._require_finite(name)

    def _require_finite(self, name: str) -> None:
        values = getattr(self, name)
        if values is None:
            return
        fits = fits_float32(values)
        if not fits.all():
            raise DataError(
                f"expected finite {name} of at most {LARGEST:.1e}, got {values[~fits][0]} in an episode of "
                f"{self.recipe.env_id} with seed {self.recipe.seed}; fix the environment"
            )

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def nbytes(self) -> int:
        """Return its size in memory, without the actions, which it shares with its episode."""
        return self.observations.nbytes + sum(map(len, self.frames or ()))

    @property
    def true_return(self) -> float:
        """Return the sum of the environment's rewards over the segment."""
        return float(self.true_rewards.sum())

    @property
    def next_observations(self) -> NDArray[Any]:
        """Return the raw observations after each step, ``(length, *observation_shape)``.

        Raises:
            DataError: there is no final observation.
        """
        if self.final_observation is None:
            raise DataError(NOTHING_AFTER)
        return np.concatenate([self.observations[1:], self.final_observation[None]])

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """Return a mask of the step with which the environment ended the episode, ``(length,)``.

        Raises:
            DataError: there is no final observation, so this is unknown, too.
        """
        if self.final_observation is None:
            raise DataError(NOTHING_AFTER)
        return terminations((len(self),), self.terminated)

    def to_bytes(self) -> bytes:
        """Return the segment as an ``.npz`` archive without pickled objects."""
        arrays: dict[str, Any] = {
            "recipe": self.recipe.to_json(),
            "start": self.start,
            "observations": self.observations,
            "true_rewards": self.true_rewards,
            "terminated": self.terminated,
        }
        if self.final_observation is not None:
            arrays[_FINAL] = self.final_observation
        if self.frames is not None:
            arrays[_FRAMES] = np.frombuffer(b"".join(self.frames), np.uint8)
            arrays[_FRAME_SIZES] = np.array([len(frame) for frame in self.frames])
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Segment":
        """Read the bytes of :meth:`to_bytes`, including those of versions without a final observation.

        Raises:
            DataError: the archive is damaged.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                recipe = EpisodeRecipe.from_json(str(archive["recipe"]))
                start, observations = int(archive["start"]), archive["observations"]
                if observations.dtype.kind not in "iufb":
                    raise ValueError(f"observations of dtype {observations.dtype}")
                true_rewards = archive["true_rewards"].astype(np.float64)
                return cls(
                    recipe,
                    start,
                    observations,
                    recipe.actions[start:],
                    true_rewards,
                    final_observation=archive.get(_FINAL),
                    terminated=_FINAL in archive and bool(archive["terminated"]),
                    frames=_split(archive[_FRAMES], archive[_FRAME_SIZES]) if _FRAMES in archive else None,
                )
        except Exception as error:  # numpy, zipfile and zlib document no list of errors for damaged archives
            raise DataError(f"a stored segment cannot be read: {error}") from error


SegmentPair = tuple[Segment, Segment]


def slice_of(trajectory: Trajectory, start: int, stop: int) -> Segment:
    """Return the steps from ``start`` up to ``stop`` (exclusive), copying observations and rewards."""
    recipe = trajectory.recipe(stop)
    return Segment(
        recipe,
        start,
        trajectory.observations[start:stop].copy(),
        recipe.actions[start:],
        trajectory.true_rewards[start:stop].copy(),
        np.array(trajectory.next_observations[stop - 1]),
        bool(trajectory.terminations[stop - 1]),
        None if trajectory.frames is None else tuple(trajectory.frames[start:stop]),
    )


def _split(joined: NDArray[np.uint8], sizes: NDArray[np.int64]) -> tuple[bytes, ...]:
    """Split frames joined by :meth:`Segment.to_bytes`. Raise ValueError if the sizes do not add up."""
    if sizes.sum() != len(joined) or (sizes < 0).any():
        raise ValueError(f"{len(joined)} bytes of frames, expected {sizes.sum()}")
    return tuple(part.tobytes() for part in np.split(joined, np.cumsum(sizes)[:-1]))
