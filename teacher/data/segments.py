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

_LEVEL = 1  # compression level; the default of 6 takes four times as long and saves only a few percent
_FINAL = "last_observation"
_FRAMES, _FRAME_SIZES = "frames", "frame_sizes"


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive steps of one episode, with the recipe to replay them.

    Attributes:
        recipe: recipe that replays the episode up to the end of this segment, so
            ``len(recipe.actions) == start + len(self)``.
        observations: raw observations before each step, ``(length, *observation_shape)``.
        actions: executed actions, ``(length, *action_shape)``.
        true_rewards: the environment's rewards, ``(length,)``.
        final_observation: raw observation after the last step, ``observation_shape``; None if not recorded.
        terminated: True if the environment terminated the episode at the last step; False if not recorded.
        frames: JPEG image after each step, shown to labelers instead of a replay; None if not captured.

    Raises:
        ValueError: the attributes don't match each other in length, shape or type.
        DataError: a number is NaN, infinite, or too large for float32, which all networks use.
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
                f"a segment must have at least 1 step and end where its recipe ends, but this one has "
                f"{length} steps from step {self.start} on and a recipe of {len(self.recipe.actions)} steps"
            )
        if len(self.observations) != length or self.true_rewards.shape != (length,):
            raise ValueError(
                f"a segment of {length} steps has observations of shape {self.observations.shape} and true "
                f"rewards of shape {self.true_rewards.shape}; both must have {length} rows"
            )
        if self.frames is not None and len(self.frames) != length:
            raise ValueError(f"a segment of {length} steps must have {length} frames, not {len(self.frames)}")
        final = self.final_observation
        if final is not None and (final.shape, final.dtype) != (
            self.observations.shape[1:],
            self.observations.dtype,
        ):
            raise ValueError(
                f"the final observation has shape {final.shape} and type {final.dtype}, but the others have "
                f"shape {self.observations.shape[1:]} and type {self.observations.dtype}"
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
                f"found {values[~fits][0]} in {name} of an episode of {self.recipe.env_id} with seed "
                f"{self.recipe.seed} (numbers must be finite, with magnitude at most {LARGEST:.1e}); fix the "
                "environment"
            )

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of the observations and frames; the other arrays are shared or small."""
        return self.observations.nbytes + sum(map(len, self.frames or ()))

    @property
    def true_return(self) -> float:
        """Return the sum of the environment's rewards over the segment."""
        return float(self.true_rewards.sum())

    @property
    def next_observations(self) -> NDArray[Any]:
        """Return the raw observations after each step, ``(length, *observation_shape)``.

        Raises:
            DataError: the final observation was not recorded.
        """
        if self.final_observation is None:
            raise DataError(NOTHING_AFTER)
        return np.concatenate([self.observations[1:], self.final_observation[None]])

    @property
    def terminations(self) -> NDArray[np.bool_]:
        """Return a mask of the steps at which the environment terminated the episode, ``(length,)``.

        Only the last step can be True.

        Raises:
            DataError: the final observation was not recorded, so the termination is unknown.
        """
        if self.final_observation is None:
            raise DataError(NOTHING_AFTER)
        return terminations((len(self),), self.terminated)

    def to_bytes(self) -> bytes:
        """Serialize the segment to the bytes of an ``.npz`` archive without pickled objects."""
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
        """Deserialize a segment from the output of :meth:`to_bytes` in this or an earlier release.

        Raises:
            DataError: the archive is damaged.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                recipe = EpisodeRecipe.from_json(str(archive["recipe"]))
                start, observations = int(archive["start"]), archive["observations"]
                if observations.dtype.kind not in "iufb":
                    raise ValueError(f"observations have type {observations.dtype}, which is not numeric")
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
        except Exception as error:  # numpy, zipfile and zlib don't document their errors for damaged archives
            raise DataError(f"a stored segment cannot be read: {error}") from error


SegmentPair = tuple[Segment, Segment]


def slice_of(trajectory: Trajectory, start: int, stop: int) -> Segment:
    """Return steps ``start`` to ``stop`` (exclusive) of a trajectory as a segment.

    Observations and rewards are copied. Actions are shared with the trajectory.
    """
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
    """Split concatenated frames by their sizes. Raise ValueError if the total size doesn't match."""
    if sizes.sum() != len(joined) or (sizes < 0).any():
        raise ValueError(f"the frames have {len(joined)} bytes, but their sizes add up to {sizes.sum()}")
    return tuple(part.tobytes() for part in np.split(joined, np.cumsum(sizes)[:-1]))


class SegmentCutter:
    """Cuts a growing episode into consecutive segments that never overlap.

    The first segment starts at a random offset below ``length``, so that segments don't always start at the
    same phase of an episode. In a short episode, the offset is limited so that at least one segment fits.

    Args:
        first: index of the first step that a segment may contain.

    Attributes:
        next_start: index of the first step that the next segment may contain.
    """

    def __init__(self, length: int, random: np.random.Generator, first: int = 0) -> None:
        self.next_start = first
        self._length = length
        self._random = random
        self._began = False

    def cut(self, steps: int, *, finished: bool) -> list[slice]:
        """Return one slice of the episode's steps for each segment completed since the last call.

        Args:
            steps: number of steps in the episode so far.
            finished: True if the episode has ended.
        """
        length, left = self._length, steps - self.next_start
        if not self._began:
            if left < length or (not finished and left < 2 * length - 1):
                return []
            self.next_start += int(self._random.integers(min(length, left - length + 1)))
            self._began = True
        stops = range(self.next_start + length, steps + 1, length)
        self.next_start += length * len(stops)
        return [slice(stop - length, stop) for stop in stops]
